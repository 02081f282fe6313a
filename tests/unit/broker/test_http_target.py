"""What the targets of requests mean, and which of them mean nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.http_target import OFFSET_MAX, ReadWanted, Target, append_wanted
from protocol.errors import ValidationError
from protocol.identifier import check_journal
from protocol.label import LabelSet


def wanted(raw: str, range_header: str | None = None) -> ReadWanted:
    return ReadWanted.of(Target.parse(raw), range_header)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("/acme/orders", ReadWanted("acme/orders")),
        ("/acme/orders?offset=12", ReadWanted("acme/orders", 12)),
        ("/acme/orders?offset=-1&block=true", ReadWanted("acme/orders", -1, block=True)),
        ("/acme/orders?end_offset=12&block=0", ReadWanted("acme/orders", 0, 12)),
        (f"/acme/orders?offset={OFFSET_MAX}", ReadWanted("acme/orders", OFFSET_MAX)),
        ("/acme%2Forders;why", ReadWanted("acme/orders;why")),
        ("/acme/%6Frders", ReadWanted("acme/orders")),
        ("/caf%C3%A9", ReadWanted("café")),
    ],
)
def test_reads(raw: str, expected: ReadWanted) -> None:
    assert wanted(raw) == expected


@pytest.mark.parametrize(
    ("header", "offset", "end", "last"),
    [
        ("bytes=0-0", 0, 1, None),
        ("bytes=10-19", 10, 20, None),
        ("Bytes = 10 - 19", 10, 20, None),
        ("bytes=7-", 7, None, None),
        ("bytes=-5", 0, None, 5),
        (f"bytes=0-{OFFSET_MAX}", 0, OFFSET_MAX, None),
        ("lines=1-2", 0, None, None),
    ],
)
def test_ranges(header: str, offset: int, end: int | None, last: int | None) -> None:
    assert wanted("/acme/orders", header) == ReadWanted("acme/orders", offset, end, last=last)


@pytest.mark.parametrize(
    "header",
    ["bytes=", "bytes=-", "bytes=-0", "bytes=5-3", "bytes=1-2,4-5", "bytes=a-b", "bytes=-5-", "bytes", "bytes=٣-"],
)
def test_ranges_that_mean_nothing_are_refused(header: str) -> None:
    with pytest.raises(ValidationError):
        wanted("/acme/orders", header)


def test_appends() -> None:
    request = append_wanted(
        Target.parse(
            "/acme/orders?offset=7&check-registers=aa!%3Db&union-registers=cc%3Dd,ee%3Df&subtract-registers=gg"
        )
    )
    assert (request.journal, request.offset, str(request.check_registers)) == ("acme/orders", 7, "aa!=b")
    assert request.union_registers == LabelSet.of(("cc", "d"), ("ee", "f"))
    assert request.subtract_registers == LabelSet.of(("gg", ""))


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "*",
        "acme/orders",
        "//acme/orders",
        "/acme/orders#fragment",
        "/acme/%2e%2e/orders",
        "/../orders",
        "/acme/..",
        "/acme/%",
        "/acme/%ff%fe",
        "/abc",
        "/" + "x" * 513,
        "/acme/or%20ders",
        "/acme/orders?nope=1",
        "/acme/orders?offset=1&offset=1",
        "/acme/orders?offset",
        "/acme/orders?offset=",
        "/acme/orders?offset=+1",
        "/acme/orders?offset=1_0",
        "/acme/orders?offset=%D9%A3",
        "/acme/orders?offset=-2",
        f"/acme/orders?offset={OFFSET_MAX + 1}",
        "/acme/orders?block=maybe",
        "/acme/orders?end_offset=0",
        "/acme/orders?" + "&".join(f"a{at}=b" for at in range(17)),
    ],
    ids=lambda raw: raw[:40],
)
def test_targets_that_mean_nothing_are_refused(raw: str) -> None:
    with pytest.raises(ValidationError):
        wanted(raw)


@pytest.mark.parametrize(
    "query",
    ["offset=0", "offset=-1", "block=true", "union-registers=aa!%3Db", "union-registers=%3D", "check-registers="],
)
def test_appends_that_mean_nothing_are_refused(query: str) -> None:
    with pytest.raises(ValidationError):
        append_wanted(Target.parse(f"/acme/orders?{query}"))


@given(st.text(max_size=40))
def test_a_target_either_names_a_journal_or_is_refused(raw: str) -> None:
    try:
        name = Target.parse(f"/{raw}").journal
    except ValidationError:
        return
    check_journal(name)
    assert ".." not in name.split("/")
