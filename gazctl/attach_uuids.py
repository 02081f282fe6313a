"""``gazctl attach-uuids``."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import click

from consumer.message.message_uuid import Flags, build, clock_at, producer_id, ticked, updated
from gazctl.command import Command

_ACTION = re.compile(r"\{\{-?\s*\.(UUID|Line)\s*-?\}\}")


@click.command("attach-uuids", cls=Command)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--template",
    default="{{.UUID}},{{.Line}}\\n",
    show_default=True,
    help="What each line becomes; \\n, \\t and \\\\ stand for what they do elsewhere.",
)
@click.option("--max-length", type=int, default=4 << 20, show_default=True, help="Of a line, in bytes.")
@click.option("--skip-header", is_flag=True, help="Leave out the first line of each file.")
def attach_uuids(files: tuple[str, ...], template: str, max_length: int, skip_header: bool) -> None:
    """Give each line of files, or of stdin, a UUID, by which readers drop what comes twice.

    \b
      gazctl attach-uuids orders.csv | gazctl journals append -l name=my/orders -f lines
      gazctl attach-uuids --template '{"uuid":"{{.UUID}}","row":{{.Line}}}\\n' < rows.json
    """
    render = _renderer(template)
    producer = producer_id(os.urandom(6))
    clock = clock_at(time.time_ns())
    output = sys.stdout.buffer
    for source in _sources(files):
        for at, line in enumerate(_lines(source, max_length)):
            if at == 0 and skip_header:
                continue
            clock = ticked(updated(clock, time.time_ns()))
            uuid = str(build(producer, clock, Flags.OUTSIDE_TXN)).encode()
            output.write(render(uuid, line))
    output.flush()


def _sources(files: tuple[str, ...]) -> Iterator[BinaryIO]:
    if not files:
        yield sys.stdin.buffer
    for path in files:
        with open(path, "rb") as file:
            yield file


def _lines(source: BinaryIO, max_length: int) -> Iterator[bytes]:
    number = 0
    while line := source.readline(max_length + 2):
        number += 1
        content = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(content) > max_length:
            raise click.ClickException(f"line {number} is longer than {max_length} bytes: raise --max-length")
        yield content


def _renderer(template: str) -> Callable[[bytes, bytes], bytes]:
    """Plain fields alone: what else Go's templates can do has no use for a line and its UUID."""
    text = re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t", "\\": "\\"}[found[1]], template)
    parts: list[Any] = _ACTION.split(text)
    if any("{{" in part for part in parts[::2]):
        raise click.ClickException("a template has {{.UUID}} and {{.Line}}, and no other actions")
    fixed = [part.encode() for part in parts[::2]]
    names = parts[1::2]

    def render(uuid: bytes, line: bytes) -> bytes:
        rendered = [fixed[0]]
        for name, after in zip(names, fixed[1:], strict=True):
            rendered += (uuid if name == "UUID" else line, after)
        return b"".join(rendered)

    return render
