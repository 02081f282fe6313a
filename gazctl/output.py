"""Results of commands: on stdout, in one piece, in the form that was asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from google.protobuf import text_format
from google.protobuf.message import Message

_ESCAPED = {ord(char): f"\\u{ord(char):04x}" for char in "&<>\u2028\u2029"}


def proto_text(message: Message) -> str:
    """As Go prints it: with pointed brackets, and without durations of zero."""
    shown = type(message)()
    shown.CopyFrom(message)
    _drop_zero_durations(shown)
    return text_format.MessageToString(shown, pointy_brackets=True, force_colon=True)


def _drop_zero_durations(message: Message) -> None:
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else (value,):
            _drop_zero_durations(each)
        if field.message_type.full_name == "google.protobuf.Duration" and not value.ByteSize():
            message.ClearField(field.name)


def json_text(value: Any) -> str:
    """As Go writes it, which is safe to be put into HTML."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPED)


_bars: list[Callable[[str], None]] = []


@contextmanager
def lines_above(write: Callable[[str], None]) -> Iterator[None]:
    """Within the body something stays at the foot of the terminal: lines for the terminal are to go through `write`."""
    _bars.append(write)
    try:
        yield
    finally:
        _bars.remove(write)


def result(text: str) -> None:
    """A line of what was asked for, on stdout."""
    if _bars and sys.stdout.isatty():
        _bars[-1](text)
    else:
        click.echo(text)


def notice(text: str) -> None:
    """What is not a result goes to stderr."""
    if _bars:
        _bars[-1](text)
    else:
        click.echo(text, err=True)
