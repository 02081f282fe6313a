"""LazyGroup: a group of commands whose modules are loaded when they are used, so that help comes at once."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import click


class Place(NamedTuple):
    """Where a command is, and the line that lists of commands show for it."""

    module: str
    attribute: str
    short_help: str


class LazyGroup(click.Group):
    def __init__(self, *args: Any, places: dict[str, Place], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        if place is None:
            return None
        command = getattr(importlib.import_module(place.module), place.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.short_help) for name, place in self._places.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self._places and not args[0].startswith("-"):
            raise click.UsageError(f"no such command {args[0]!r}; there are {', '.join(self._places)}", ctx)
        return super().resolve_command(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _ExitOne():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _ExitOne():
            return super().invoke(ctx)


class _ExitOne:
    """Wrong usage ends with code 1, as with Gazette's gazctl: 2 is what its crashes end with."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, click.UsageError):
            # mypy takes it for the class's alone.
            setattr(error, "exit_code", 1)  # noqa: B010
