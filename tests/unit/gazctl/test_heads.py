"""What ``gazctl journals list --heads`` says of a head, in each of its states."""

from __future__ import annotations

import pytest

from gazctl.journals.list_command import holders, proof, witnesses
from protocol.gen.epoch_pb2 import HeadStatus

Held = HeadStatus.Holder
THERE = Held(spool_id=b"a" * 16, member="zone/one")
MISSING = Held(spool_id=b"b" * 16)
DAMAGED = Held(spool_id=b"c" * 16, member="zone/three", damaged=True)


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (HeadStatus(), "none yet"),
        (HeadStatus(void=True), "void: a broker without epochs took part"),
        (HeadStatus(epoch=3, end=0, holders=[MISSING]), "closed at 0"),
        (HeadStatus(epoch=3, holders=[THERE]), "proven"),
        (HeadStatus(epoch=3, holders=[THERE, MISSING, DAMAGED]), "proven, by 1 of 3 holders"),
        (HeadStatus(epoch=3, holders=[MISSING, MISSING]), "unproven: all 2 holders are missing"),
        (HeadStatus(epoch=3, holders=[MISSING, DAMAGED]), "unproven: of 2 holders 1 are missing and 1 damaged"),
    ],
)
def test_whether_anybody_can_tell_where_a_journal_ends(head: HeadStatus, told: str) -> None:
    assert proof(head) == told


def test_holders_go_by_name_or_by_the_id_of_their_directory() -> None:
    head = HeadStatus(epoch=3, holders=[THERE, MISSING, DAMAGED])
    assert holders(head) == "one,62626262 (missing),three (damaged)"
    assert holders(HeadStatus()) == "<none>"
    assert witnesses(head) == ["one"]
