"""What operators are told of a journal's head."""

from __future__ import annotations

from broker.durable_head import DurableHead, Epoch
from broker.head_status import head_status

A, B, C = (bytes([letter]) * 16 for letter in b"abc")
MEMBERS = {A: "zone/one", C: "zone/three"}
OPEN = DurableHead(7, (Epoch(1, 0, (A,), end=10), Epoch(2, 10, (A, B, C), damaged=(C,))), floor=12)


def test_an_open_epoch_names_who_is_there_who_is_missing_and_who_is_damaged() -> None:
    status = head_status(OPEN, 7, MEMBERS)
    assert (status.epoch, status.begin, status.floor, status.epochs) == (2, 10, 12, 2)
    assert not status.HasField("end")
    assert [(held.spool_id, held.member, held.damaged) for held in status.holders] == [
        (A, "zone/one", False),
        (B, "", False),
        (C, "zone/three", True),
    ]


def test_a_closed_epoch_has_an_end_be_it_zero() -> None:
    status = head_status(DurableHead(7, (Epoch(1, 0, (A,), end=0),)), 7, MEMBERS)
    assert status.HasField("end")
    assert status.end == 0


def test_nothing_on_record_and_the_record_of_another_incarnation_are_no_epoch() -> None:
    for head in (None, DurableHead(6, OPEN.epochs)):
        status = head_status(head, 7, MEMBERS)
        assert (status.epoch, status.void, len(status.holders)) == (0, False, 0)
    assert head_status(DurableHead(7, is_void=True), 7, MEMBERS).void
