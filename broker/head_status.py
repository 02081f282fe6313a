"""What operators are told of a journal's head: which epoch it is in, and who of its holders is there."""

from __future__ import annotations

from collections.abc import Mapping

from broker.durable_head import DurableHead
from protocol.gen import epoch_pb2


def head_status(head: DurableHead | None, create_revision: int, members: Mapping[bytes, str]) -> epoch_pb2.HeadStatus:
    """`members` are the names of brokers by their spool directories."""
    known = None if head is None else head.of(create_revision)
    last = known.last if known is not None else None
    if known is None or last is None:
        return epoch_pb2.HeadStatus(void=known is not None and known.is_void)
    status = epoch_pb2.HeadStatus(
        epoch=last.number, begin=last.begin, floor=known.floor, void=known.is_void, epochs=len(known.epochs)
    )
    if last.end is not None:
        status.end = last.end
    for spool_id in last.holders:
        is_damaged = spool_id in last.damaged
        status.holders.add(spool_id=spool_id, member=members.get(spool_id, ""), damaged=is_damaged)
    return status
