"""The command tree of ``gazctl``."""

from __future__ import annotations

import click

from gazctl.serve import serve


@click.group()
@click.version_option(package_name="pygazette", prog_name="gazctl")
def main() -> None:
    """Work with journals and the brokers that serve them.

    \b
    Start a broker:
      gazctl serve --broker.id my-broker --broker.port 8080 --broker.file-root /tmp/fragments
    """


main.add_command(serve)

if __name__ == "__main__":
    main()
