"""``gazctl print-config``."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from gazctl import main as tree
from gazctl.command import Command, ServiceCommand, ini_folders, read_ini


@click.command("print-config")
@click.argument("what", type=click.Choice(["gazctl", "serve"]), default="gazctl")
@click.pass_context
def print_config(ctx: click.Context, what: str) -> None:
    """Show the configuration as an INI file: what is set, and behind a semicolon what is not.

    A flag on the command line wins over the environment, and that over the file: gazctl.ini, or gazette.ini for
    `gazctl serve`, in this folder or in ~/.config/gazette.

    \b
      gazctl print-config > ~/.config/gazette/gazctl.ini
      gazctl print-config serve > gazette.ini
    """
    name = "gazette.ini" if what == "serve" else "gazctl.ini"
    click.echo(f"; Read from the first of {', '.join(str(folder / name) for folder in ini_folders())}")
    sections: dict[str, list[str]] = {}
    for path, command in _commands(ctx, what):
        own = click.Context(command, info_name=path.rpartition(".")[2], parent=ctx)
        for option, key in command.keys(path):
            lines = sections.setdefault(key.section, [])
            assert option.name is not None
            shown = _shown(command, option, own, key)
            if shown not in lines:
                lines.append(shown)
    for section, lines in sorted(sections.items(), key=lambda item: item[0]):
        click.echo(f"\n[{section}]")
        click.echo("\n\n".join(lines))


def _commands(ctx: click.Context, what: str) -> Iterator[tuple[str, Command]]:
    """All that have a place in the file."""
    groups = {"": tree.main, "journals.": tree.journals, "brokers.": tree.brokers}
    for prefix, group in groups.items():
        for name in group.list_commands(ctx):
            command = None if name == "print-config" else group.get_command(ctx, name)
            if isinstance(command, Command) and isinstance(command, ServiceCommand) == (what == "serve"):
                yield prefix + name, command


def _shown(command: Command, option: click.Option, ctx: click.Context, key: tuple[str, str]) -> str:
    set_values = option.value_from_envvar(ctx) or read_ini(command.file_name).values(*key)
    values = [set_values] if isinstance(set_values, str) else list(set_values or ())
    help_line = f"; {' '.join((option.help or '').split())}\n" if option.help else ""
    if values:
        return help_line + "\n".join(f"{key[1]} = {_quoted(str(value))}" for value in values)
    default = option.default
    if default is None or callable(default) or not isinstance(default, str | int | float):
        default = ""
    text = "false" if option.is_flag else str(default)
    return f"{help_line}; {key[1]} = {_quoted(text)}".rstrip()


def _quoted(text: str) -> str:
    return json.dumps(text) if text.startswith('"') or text != text.strip() or "\\" in text else text
