from __future__ import annotations

import pytest

from protocol.errors import ValidationError
from spark_readers.read_options import Bound, Framing, Isolation, Mode, ReadOptions

STORE = {"path": "s3://bucket/prefix/"}
BROKER = {"broker": "localhost:8080", "journal": "acme/orders"}


def test_defaults_are_the_careful_ones() -> None:
    options = ReadOptions.parse(BROKER)
    assert options.isolation is Isolation.READ_COMMITTED
    assert options.fail_on_data_loss
    assert options.tail
    assert (options.starting, options.ending) == (Bound.EARLIEST, Bound.LATEST)
    assert not ReadOptions.parse(STORE).tail


def test_names_of_options_know_no_case() -> None:
    """Spark hands them over in lower case, at times."""
    options = ReadOptions.parse({**BROKER, "SPLITSIZE": "64m", "framing": "JSON", "MODE": "failfast"})
    assert (options.split_bytes, options.framing, options.mode) == (64 << 20, Framing.JSON, Mode.FAILFAST)


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/data/fragments", "file:///data/fragments/"),
        ("file:/data/", "file:///data/"),
        ("file:///data", "file:///data/"),
        ("s3://b/p?endpoint=http://e/", "s3://b/p/?endpoint=http://e/"),
    ],
)
def test_a_path_is_a_store_or_a_folder(path: str, url: str) -> None:
    assert ReadOptions.parse({"path": path}).path == url


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("1700000000000", 1_700_000_000),
        ("1700000000001", 1_700_000_001),
        ("2023-11-14T22:13:20Z", 1_700_000_000),
        ("2023-11-14 22:13:20", 1_700_000_000),
        ("2023-11-14T22:13:20.5+00:00", 1_700_000_001),
    ],
)
def test_times_are_told_in_two_ways(time: str, seconds: int) -> None:
    assert ReadOptions.parse({**BROKER, "startingTimestamp": time}).starting_s == seconds


@pytest.mark.parametrize(
    ("field", "path"), [("UUID", ("UUID",)), ("_meta.uuid", ("_meta", "uuid")), ("/a.b/c~1d", ("a.b", "c/d"))]
)
def test_a_field_is_named_by_its_path(field: str, path: tuple[str, ...]) -> None:
    assert ReadOptions.parse({**BROKER, "framing": "json", "uuidField": field}).uuid_field == path


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "broker"),
        ({**STORE, **BROKER}, "not both"),
        ({"broker": "b"}, "which journals"),
        ({**BROKER, "journalPattern": ".*"}, "one way only"),
        ({**STORE, "selector": "app=web"}, "journalPattern"),
        ({**BROKER, "journal": "/acme"}, "journal"),
        ({"broker": "b", "journalPattern": "("}, "regular expression"),
        ({**BROKER, "statingOffsets": "earliest"}, "did you mean startingOffsets"),
        ({**BROKER, "zzz": "1"}, "known are"),
        ({**BROKER, "startingOffsets": "soon"}, "earliest, latest"),
        ({**BROKER, "startingOffsets": '{"acme/orders": -1}'}, "startingOffsets"),
        ({**BROKER, "endingOffsets": '{"acme/orders": true}'}, "endingOffsets"),
        ({**BROKER, "startingTimestamp": "yesterday"}, "2026-11-16T04"),
        ({**BROKER, "startingTimestamp": "1", "startingOffsets": "earliest"}, "leave one of them out"),
        ({**BROKER, "framing": "xml"}, "bytes, lines, json, csv, fixed"),
        ({**BROKER, "isolation": "none"}, "read_committed"),
        ({**BROKER, "framing": "bytes", "isolation": "read_committed"}, "bytes have no UUIDs"),
        ({**BROKER, "isolation": "read_committed"}, "lines have no UUIDs"),
        ({**BROKER, "timeZone": "2 o'clock"}, "Europe/Berlin"),
        ({**BROKER, "splitSize": "12"}, "1024"),
        ({**BROKER, "failOnDataLoss": "yes"}, "true or false"),
        ({**STORE, "tail": "true"}, "broker"),
        ({**BROKER, "uuidField": "UUID"}, "framing to json"),
        ({**BROKER, "framing": "fixed", "messageName": "a.B"}, "descriptorFile"),
        ({**BROKER, "where": '{"date": 1}'}, "date"),
        ({**BROKER, "journals": "[1]"}, "journals"),
    ],
)
def test_a_mistake_is_named_with_what_to_write_instead(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValidationError, match=says.replace("(", r"\(")):
        ReadOptions.parse(given)
