from __future__ import annotations

import pytest

from protocol.errors import ValidationError
from spark_readers.sink_options import KeyMapping, SinkFraming, SinkOptions

BROKER = {"broker": "localhost:8080"}
ONE = {**BROKER, "journal": "acme/orders"}
COLUMNS = {"order": "long", "customer": "string", "tags": "array", "value": "string"}
PROTO = {"framing": "fixed", "descriptorFile": "orders.pb", "messageName": "test.Order"}
TRANSACTION = {"txnAppId": "daily", "txnVersion": "7", "commitJournal": "acme/commits"}


def test_what_most_say_is_enough() -> None:
    options = SinkOptions.of(ONE, COLUMNS)
    assert options.broker.addresses == ("http://localhost:8080",)
    assert options.journals == ("acme/orders",)
    assert options.framing is SinkFraming.JSON
    assert options.uuid_path == ("UUID",)
    assert options.transaction is None


def test_names_of_options_are_in_any_case() -> None:
    given = {"BROKER": "a:1, b:2", "journals": "acme/b, acme/a", "KEYcolumn": "customer", "Mapping": "Rendezvous"}
    options = SinkOptions.of(given, COLUMNS)
    assert options.broker.addresses == ("http://a:1", "http://b:2")
    # In the order of a listing, which is what a mapping counts by.
    assert options.journals == ("acme/a", "acme/b")
    assert options.mapping is KeyMapping.RENDEZVOUS


@pytest.mark.parametrize("mapping", [{}, {"mapping": "direct"}])
def test_a_column_that_names_journals_is_the_direct_mapping(mapping: dict[str, str]) -> None:
    options = SinkOptions.of({**BROKER, "journalColumn": "customer", **mapping}, COLUMNS)
    assert (options.journal_column, options.mapping) == ("customer", KeyMapping.DIRECT)
    assert options.column_count == len(COLUMNS) - 1


@pytest.mark.parametrize(
    ("given", "has_uuids"),
    [
        ({}, True),
        ({"framing": "csv"}, True),
        (PROTO, True),
        ({"framing": "fixed"}, False),
        ({"framing": "lines"}, False),
        ({"framing": "bytes"}, False),
    ],
)
def test_which_framings_have_uuids(given: dict[str, str], has_uuids: bool) -> None:
    columns = {"value": "binary"}
    assert SinkOptions.of({**ONE, **given}, columns).has_uuids is has_uuids
    if has_uuids:
        assert SinkOptions.of({**ONE, **given, **TRANSACTION}, columns).transaction is not None


def test_a_write_with_a_version_has_all_three_of_its_options() -> None:
    transaction = SinkOptions.of({**ONE, **TRANSACTION}, COLUMNS).transaction
    assert transaction is not None
    assert (transaction.app, transaction.version, transaction.commit_journal) == ("daily", 7, "acme/commits")


def test_a_stream_takes_its_versions_from_batches_and_its_name_from_the_query() -> None:
    transaction = SinkOptions.of({**ONE, "commitJournal": "acme/commits"}, COLUMNS, streaming=True).transaction
    assert transaction is not None
    assert (transaction.app, transaction.version) == (None, None)


@pytest.mark.parametrize(
    ("given", "field", "rule"),
    [
        ({"journal": "acme/orders"}, "broker", "localhost:8080"),
        ({"broker": "http://", "journal": "acme/orders"}, "broker", ""),
        (BROKER, "journal", "exactly one of"),
        ({**ONE, "selector": "app=web"}, "journal", "got journal and selector"),
        ({**BROKER, "journal": "acme/a, acme/b"}, "journal", "use journals with a keyColumn"),
        ({**BROKER, "journal": "acme//a"}, "journal", "clean path"),
        ({**BROKER, "journals": "acme/a,acme/b"}, "keyColumn", "give keyColumn"),
        ({**BROKER, "selector": "app=web"}, "keyColumn", "give keyColumn"),
        ({**BROKER, "selector": "app web", "keyColumn": "order"}, "selector", "cannot be understood"),
        ({**ONE, "keyColumn": "order"}, "keyColumn", "leave it out"),
        ({**BROKER, "journals": "acme/a,acme/b", "keyColumn": "tags"}, "keyColumn", "cast it to string"),
        ({**BROKER, "journalColumn": "nope"}, "journalColumn", "there is no column 'nope'"),
        ({**ONE, "framing": "xml"}, "framing", "json, lines, csv, fixed or bytes"),
        ({**ONE, "framing": "fixed"}, "framing", "of type binary"),
        ({**ONE, "framing": "lines", "uuidField": "UUID"}, "uuidField", "json and csv have UUIDs"),
        ({**ONE, "framing": "csv", "uuidField": "UUID"}, "uuidField", "is its first field"),
        ({**ONE, **PROTO, "messageName": ""}, "messageName", "go together"),
        ({**ONE, **PROTO, "descriptorFile": ""}, "descriptorFile", "go together"),
        ({**ONE, **PROTO, "framing": "json"}, "descriptorFile", "set framing to fixed"),
        ({**ONE, **TRANSACTION, "framing": "fixed"}, "txnAppId", "fixed with a descriptorFile"),
        ({**BROKER, "journals": "acme/a,acme/b", "mapping": "direct"}, "keyColumn", "give keyColumn"),
        ({**ONE, "mapping": "direct"}, "mapping", "give journalColumn"),
        ({**BROKER, "journalColumn": "customer", "mapping": "modulo"}, "mapping", "journalColumn is direct"),
        ({**ONE, "mapping": "random"}, "mapping", "modulo, rendezvous or direct"),
        ({**ONE, "uuidField": "_meta."}, "uuidField", "_meta.uuid"),
        ({**ONE, "uuidField": "customer.uuid"}, "uuidField", "drop or rename it"),
        ({**ONE, "jsonColumn": "order"}, "jsonColumn", "to_json"),
        ({**ONE, "framing": "csv", "jsonColumn": "value"}, "jsonColumn", "only framing json"),
        ({**ONE, "txnAppId": "daily"}, "txnVersion", "all three"),
        ({**ONE, "commitJournal": "acme/commits"}, "txnAppId", "all three"),
        ({**ONE, **TRANSACTION, "txnVersion": "-1"}, "txnVersion", "whole number"),
        ({**ONE, **TRANSACTION, "txnVersion": "9" * 5000}, "txnVersion", "whole number"),
        ({**ONE, **TRANSACTION, "txnAppId": "a b"}, "txnAppId", "letters"),
        ({**ONE, **TRANSACTION, "txnAppId": "a" * 61}, "txnAppId", "2 to 60 bytes"),
        ({**ONE, **TRANSACTION, "commitJournal": "acme/orders"}, "commitJournal", "a journal of its own"),
        ({**ONE, **TRANSACTION, "framing": "lines"}, "txnAppId", "at least once"),
        ({**ONE, **TRANSACTION, "framing": "bytes"}, "txnAppId", "at least once"),
        ({**ONE, "journl": "x"}, "journl", "the ones there are: broker,"),
    ],
)
def test_a_mistake_is_named_with_its_rule(given: dict[str, str], field: str, rule: str) -> None:
    with pytest.raises(ValidationError) as raised:
        SinkOptions.of(given, COLUMNS)
    assert raised.value.path[0] == field
    assert rule in raised.value.rule


@pytest.mark.parametrize(
    ("given", "field", "rule"),
    [
        (ONE, "commitJournal", "create it first"),
        ({**ONE, **TRANSACTION}, "txnVersion", "leave this out"),
        ({**ONE, "framing": "lines", "commitJournal": "acme/commits"}, "commitJournal", "at least once"),
    ],
)
def test_a_stream_has_rules_of_its_own(given: dict[str, str], field: str, rule: str) -> None:
    with pytest.raises(ValidationError) as raised:
        SinkOptions.of(given, COLUMNS, streaming=True)
    assert raised.value.path[0] == field
    assert rule in raised.value.rule


def test_nothing_but_the_journal_is_not_worth_writing() -> None:
    with pytest.raises(ValidationError, match="select what is to be written"):
        SinkOptions.of({**BROKER, "journalColumn": "name"}, {"name": "string"})
