from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.rpc.logs import JsonFormatter, LogFormat, TextFormatter, set_up_logs


def record(message: str = "a constant message", *args: object, error: Exception | None = None, **extra: object) -> Any:
    exc_info = (type(error), error, error.__traceback__) if error else None
    made = logging.getLogger("broker.test").makeRecord(
        "broker.test", logging.WARNING, "file.py", 1, message, args, exc_info, extra=extra
    )
    made.created = 1_760_000_000.25
    return made


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(made)
    assert "\n" not in line
    fields: dict[str, Any] = json.loads(line)
    return fields


def test_a_line_of_json_has_the_message_and_its_fields() -> None:
    assert as_json(record(journal="acme/one", offset=12, ok=True, ratio=0.5, nothing=None)) == {
        "time": "2025-10-09T08:53:20.250Z",
        "level": "warning",
        "logger": "broker.test",
        "msg": "a constant message",
        "journal": "acme/one",
        "offset": 12,
        "ok": True,
        "ratio": 0.5,
        "nothing": None,
    }


def test_a_line_of_text_has_pairs_whose_values_are_quoted_where_needed() -> None:
    line = TextFormatter().format(record(journal="acme/one", text='two words\nand "more"', empty="", n=1))
    assert line == (
        'time=2025-10-09T08:53:20.250Z level=warning logger=broker.test msg="a constant message" '
        'journal=acme/one text="two words\\nand \\"more\\"" empty="" n=1'
    )


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
def test_no_part_of_a_record_shows_a_secret(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("GET https://b/k?X-Amz-Signature=hunter2")
    except ValueError as error:
        made = record(
            "failed with %s",
            {"password": "hunter2"},
            error=error,
            url="https://b/k?sig=hunter2",
            metadata=(("authorization", "Bearer hunter2"),),
            auth_keys="hunter2",
            nested={"deep": ["token=hunter2"]},
        )
    line = formatter.format(made)
    assert "hunter2" not in line
    assert line.count("[redacted]") >= 6
    assert "ValueError" in line


def test_an_error_has_its_traceback_in_one_line() -> None:
    try:
        raise ValueError("reason")
    except ValueError as error:
        fields = as_json(record(error=error))
    assert "ValueError: reason" in fields["traceback"]
    assert "test_logs.py" in fields["traceback"]


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_field_of_any_kind_makes_a_line() -> None:
    fields = as_json(record(value=b"\xff", other=Unspeakable()))
    assert fields["value"] == "b'\\xff'"
    assert fields["other"] == "[Unspeakable without a text: RuntimeError]"


def test_a_field_has_a_limit() -> None:
    fields = as_json(record(long="x" * 200_000 + " the end", longer="word " * 200_000, one_word="x" * 1_000_000))
    assert all(len(fields[name]) < 9_000 for name in ("long", "longer", "one_word"))
    assert fields["long"].endswith("the end")


@pytest.mark.parametrize("length", [1_000, 50_000, 500_000])
def test_a_secret_that_is_cut_does_not_show(length: int) -> None:
    fields = as_json(record(cut="a word token=" + "hunter2" * length))
    assert "hunter2" not in fields["cut"]


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # Those of pytest are not ours to close.
    root.handlers.clear()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_logs_go_where_they_are_sent_and_without_what_a_stranger_sent() -> None:
    stream = io.StringIO()
    set_up_logs(stream, logging.INFO, LogFormat.JSON)
    logging.getLogger("broker.test").info("seen", extra={"journal": "a/b"})
    logging.getLogger("broker.test").debug("not seen")
    logging.getLogger("grpc._cython.cygrpc").error("Invalid encoding on %s", b"\xff a token")
    logging.getLogger("grpc._cython.cygrpc").error("another")
    assert [json.loads(line)["msg"] for line in stream.getvalue().splitlines()] == ["seen", "another"]
