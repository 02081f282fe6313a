"""How much is in no store yet, and since when."""

from __future__ import annotations

import pytest

from broker.unpersisted import Unpersisted, unpersisted
from fragment.spool import Spool
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment

NOW_NS = 100_000_000_000


def spool(length: int, first_append_s: int | None) -> Spool:
    fragment = Fragment("a/journal", 1000, 1000 + length, bytes(20), CompressionCodec.NONE)
    return Spool(fragment, first_append_ns=None if first_append_s is None else first_append_s * 1_000_000_000)


@pytest.mark.parametrize(
    ("complete", "spools", "expected"),
    [
        pytest.param((0, None), [], Unpersisted(0, 0.0), id="nothing at all"),
        pytest.param((0, None), [spool(0, None)], Unpersisted(0, 0.0), id="a spool without content"),
        pytest.param((0, None), [spool(5, 40), spool(7, 90)], Unpersisted(12, 60.0), id="open ones alone"),
        pytest.param((30, 70_000_000_000), [], Unpersisted(30, 30.0), id="complete ones alone"),
        pytest.param((30, 70_000_000_000), [spool(5, 40)], Unpersisted(35, 60.0), id="an open one is older"),
        pytest.param((30, 20_000_000_000), [spool(5, 40)], Unpersisted(35, 80.0), id="a complete one is older"),
        pytest.param((0, None), [spool(5, 101)], Unpersisted(5, 0.0), id="from the future"),
    ],
)
def test_open_spools_count_beside_those_that_are_complete(
    complete: tuple[int, int | None], spools: list[Spool], expected: Unpersisted
) -> None:
    assert unpersisted(*complete, spools, NOW_NS) == expected
