"""Command: a command whose flags have a place in the environment and in the INI file as well.

A flag on the command line wins over the environment, and that over the file. Sections and keys are named as Gazette
names them, so that files of its users go on working.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import click

from gazctl.ini_file import IniFile
from protocol import duration
from protocol.errors import ValidationError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

LOG_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
    "panic": logging.CRITICAL,
}
LOG_FORMATS = ("text", "json", "color")
"""Names are Gazette's, so that its files go on working. Ours are never coloured: they are for machines."""

_ABBREVIATIONS = {"Ca": "CA", "Grpc": "GRPC", "Id": "ID", "Rf": "RF", "Ttl": "TTL"}
_GROUPS = {"broker": "Broker", "etcd": "Etcd", "log": "Logging", "debug": "Debug", "consumer": "Consumer"}


class Duration(click.ParamType[float]):
    """Such as 20s or 1m30s, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else duration.parse(value) / 1e9
        except ValidationError as error:
            self.fail(f"{error}; write it like 20s or 1m30s", param, ctx)


class Size(click.ParamType[int]):
    """Bytes, or with a unit such as 512MiB or 4GB."""

    name = "size"
    _UNITS: ClassVar = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"([0-9]+)\s*([A-Za-z]*)", str(value))
        unit = self._UNITS.get(found[2].upper()) if found else None
        if found is None or unit is None:
            self.fail("write it like 4194304, 512MiB or 4GB", param, ctx)
        return int(found[1]) * unit


class Key(NamedTuple):
    """Where a flag stands in an INI file."""

    section: str
    name: str


def dotted_option(flag: str, **settings: Any) -> Callable[[Decorated], Decorated]:
    """A flag whose name has a dot, as Gazette's have, and its environment variable."""
    name = flag.removeprefix("--").replace(".", "_").replace("-", "_")
    settings.setdefault("envvar", name.upper())
    settings.setdefault("show_default", True)
    return click.option(flag, name, show_envvar=True, **settings)


class Command(click.Command):
    """Of ``gazctl``. Commands that speak to brokers share what is set for ``journals``."""

    file_name = "gazctl.ini"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            ctx.default_map = dict(self._from_file(ctx))
        return super().parse_args(ctx, args)

    def _from_file(self, ctx: click.Context) -> Iterator[tuple[str, Any]]:
        file = read_ini(self.file_name)
        for option, key in self.keys(_path(ctx)):
            if found := file.values(*key):
                assert option.name is not None
                yield option.name, found if option.multiple else found[-1]

    def keys(self, path: str) -> Iterator[tuple[click.Option, Key]]:
        """`path` is that of the command, as ``journals.list`` is."""
        for option in self.params:
            if isinstance(option, click.Option) and option.name not in (None, "help"):
                yield option, self.key_of(option, path)

    def key_of(self, option: click.Option, path: str) -> Key:
        assert option.name is not None
        group, dot, rest = option.opts[-1].lstrip("-").partition(".")
        if dot:
            return Key(f"journals.{_GROUPS[group]}", _camel(rest.rpartition(".")[2]))
        return Key("journals" if option.name == "zone" else path, _camel(option.name))


class ServiceCommand(Command):
    """One that is a service of its own, with a file of its own."""

    file_name = "gazette.ini"

    def key_of(self, option: click.Option, path: str) -> Key:
        key = super().key_of(option, path)
        name = {"Lease": "LeaseTTL"}.get(key.name, key.name)
        return Key(key.section.removeprefix("journals."), name)


def read_ini(name: str) -> IniFile:
    """The first that there is: here, or in ``~/.config/gazette``."""
    for folder in ini_folders():
        path = folder / name
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise click.ClickException(f"{path} cannot be read: {error}") from error
        try:
            return IniFile.parse(text)
        except ValidationError as error:
            raise click.ClickException(f"{path}: {error}") from error
    return IniFile()


def ini_folders() -> list[Path]:
    homes = (os.environ.get("HOME"), os.environ.get("USERPROFILE"))
    return [Path(), *(Path(home) / ".config" / "gazette" for home in homes if home)]


def _path(ctx: click.Context) -> str:
    names = []
    here: click.Context | None = ctx
    while here is not None and here.parent is not None:
        names.append(here.info_name or "")
        here = here.parent
    return ".".join(reversed(names))


def _camel(name: str) -> str:
    parts = [part.capitalize() for part in re.split(r"[-_]", name)]
    return "".join(_ABBREVIATIONS.get(part, part) for part in parts)
