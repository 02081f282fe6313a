"""The command tree of ``gazctl``."""

from __future__ import annotations

import click


@click.group()
@click.version_option(package_name="pygazette", prog_name="gazctl")
def main() -> None:
    """Work with journals and the brokers that serve them.

    The commands arrive with the brokers; until then there is nothing here to run.
    """
