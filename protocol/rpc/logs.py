"""Log lines for machines: a constant message and fields, one line each, without secrets.

Code logs with the standard library and gives its fields as `extra`. This module is what `main` sets up, once.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
from collections.abc import Iterator
from enum import Enum
from typing import TextIO

from protocol.rpc.redaction import IS_SECRET_NAME, REDACTED, redacted

_OF_EVERY_RECORD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_FIELD_CHARACTERS_MAX = 8192
_CHARACTERS_LOOKED_AT = 1 << 18
_IS_PLAIN = re.compile(r"[\w.:/@+#\[\],;*-]+", re.ASCII).fullmatch

Field = str | int | float | bool | None


class LogFormat(Enum):
    JSON = "json"
    TEXT = "text"


def set_up_logs(stream: TextIO, level: int = logging.WARNING, log_format: LogFormat = LogFormat.TEXT) -> None:
    """All logs of this process go to `stream`. In place of what was set up before."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # It would log the header that it could not read, at the pleasure of anybody who can connect.
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_not_about_encoding)


def _is_not_about_encoding(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Invalid encoding on")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(dict(_fields(record)), ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`key=value` pairs, where a value with spaces or line ends is in quotes."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_text(value)}" for name, value in _fields(record))


def _text(value: Field) -> str:
    if isinstance(value, str):
        return value if _IS_PLAIN(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, Field]]:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    yield "time", moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    yield "level", record.levelname.lower()
    yield "logger", record.name
    yield "msg", _safe(record.getMessage())
    for name, value in record.__dict__.items():
        if name not in _OF_EVERY_RECORD:
            yield name, REDACTED if IS_SECRET_NAME(name) else _safe(value)
    if record.exc_info:
        yield "traceback", _safe(logging.Formatter().formatException(record.exc_info))
    if record.stack_info:
        yield "stack", _safe(record.stack_info)


def _safe(value: object) -> Field:
    """A field may hold anything, and its text may be of any length and raise."""
    if value is None or isinstance(value, bool | int | float):
        return value
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception as error:
        return f"[{type(value).__name__} without a text: {type(error).__name__}]"
    if len(text) > _CHARACTERS_LOOKED_AT:
        # Between words, so that no secret is cut in half and goes unrecognised.
        text = text[:_CHARACTERS_LOOKED_AT].rpartition(" ")[0]
    text = redacted(text)
    if len(text) > _FIELD_CHARACTERS_MAX:
        # The end of a traceback says what went wrong.
        half = _FIELD_CHARACTERS_MAX // 2
        return f"{text[:half]} [...] {text[-half:]}"
    return text
