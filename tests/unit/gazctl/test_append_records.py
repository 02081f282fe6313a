from __future__ import annotations

import pytest

from consumer.message import fixed_framing
from gazctl.journals.append_command import Records, mapping_of
from protocol.errors import CorruptError, ValidationError

JOURNALS = ["cli/a1", "cli/b2", "cli/c3"]


def fed(records: Records, data: bytes, piece: int = 3) -> list[tuple[str, bytes]]:
    found = [placed for at in range(0, len(data), piece) for placed in records.feed(data[at : at + piece])]
    records.end()
    return found


@pytest.mark.parametrize("journal", JOURNALS)
def test_d2_direct_mapping_finds_each_of_several_journals(journal: str) -> None:
    records = Records("lines", mapping_of("direct", JOURNALS), is_keyed=True)
    assert fed(records, f'{journal}\n{{"d":1}}\n'.encode()) == [(journal, b'{"d":1}\n')]


def test_direct_mapping_refuses_a_journal_that_the_selector_does_not_match() -> None:
    with pytest.raises(CorruptError, match="not among the 3 journals"):
        mapping_of("direct", JOURNALS)(b"cli/d4")


@pytest.mark.parametrize(
    ("mapping", "journals"),
    [("modulo", ["cli/b2", "cli/c3", "cli/a1"]), ("rendezvous", ["cli/a1", "cli/a1", "cli/a1"])],
)
def test_keys_go_where_gazette_sends_them(mapping: str, journals: list[str]) -> None:
    """As recorded in golden/live/cli: a key is its line without the newline."""
    records = Records("lines", mapping_of(mapping, JOURNALS), is_keyed=True)
    written = b'key-1\n{"v":1}\nkey-2\n{"v":2}\nkey-3\n{"v":3}\n'
    assert fed(records, written) == [(journals[at], f'{{"v":{at + 1}}}\n'.encode()) for at in range(3)]


def test_base64_is_of_keys_alone() -> None:
    records = Records("lines", mapping_of("direct", JOURNALS), is_keyed=True, base64=True)
    assert fed(records, b"Y2xpL2Iy\neyJiIjoxfQo=\n") == [("cli/b2", b"eyJiIjoxfQo=\n")]
    with pytest.raises(CorruptError, match="base64"):
        records.feed(b"?\n")


def test_fixed_frames_are_appended_with_their_header() -> None:
    records = Records("fixed", mapping_of("random", JOURNALS[:1]), is_keyed=False)
    frame = fixed_framing.encode(b"abc")
    assert fed(records, frame + frame) == [("cli/a1", frame), ("cli/a1", frame)]


@pytest.mark.parametrize(
    ("framing", "data", "why"),
    [
        ("lines", b"key\n", "ends after a key"),
        ("lines", b"key\nrecord", "ends within a record"),
        ("fixed", b"no magic word in here", "not framed as fixed"),
    ],
)
def test_input_that_is_cut_or_wrong_is_an_error(framing: str, data: bytes, why: str) -> None:
    records = Records(framing, mapping_of("modulo", JOURNALS), is_keyed=True)
    with pytest.raises(CorruptError, match=why):
        fed(records, data, piece=64)


def test_without_journals_there_is_no_mapping() -> None:
    with pytest.raises(ValidationError):
        mapping_of("random", [])
