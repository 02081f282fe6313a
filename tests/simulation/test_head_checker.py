"""The checker of heads on record, with records that are wrong."""

from __future__ import annotations

from broker.durable_head import DurableHead, Epoch, head_key
from tests.simulation.checkers import Violation
from tests.simulation.etcd import Etcd
from tests.simulation.head_checker import HeadChecker
from tests.simulation.history import History
from tests.simulation.world import World

ROOT = "/root"
OPEN, CLOSED = Epoch(1, 0, (b"id",)), Epoch(1, 0, (b"id",), end=50)


def names(*records: tuple[Epoch, ...], acked_through: int = 0) -> list[str]:
    """Of what is wrong with these records, one after the other, after so much was acknowledged."""
    world, found = World(1), list[Violation]()
    etcd, history = Etcd(world.node("etcd")), History(lambda: world.now_s)
    HeadChecker(etcd, ROOT, history, found.append)
    history.ok(history.append("client", "a/journal@7", acked_through), 0, acked_through, "a/journal@7")
    for epochs in records:
        etcd.put(head_key(ROOT, "a/journal"), DurableHead(7, epochs).encoded())
    return [violation.name for violation in found]


def test_epochs_that_follow_each_other_are_well() -> None:
    following = Epoch(2, 50, (b"id",))
    assert names((OPEN,), (CLOSED,), (CLOSED, following), (following,), acked_through=50) == []


def test_no_epoch_is_closed_below_what_was_acknowledged() -> None:
    assert names((OPEN,), (CLOSED,), acked_through=51) == ["closed below what was acknowledged"]


def test_an_operator_may_close_one_there() -> None:
    forced = Epoch(1, 0, (b"id",), end=50, is_forced=True)
    assert names((OPEN,), (forced,), acked_through=51) == []


def test_no_epoch_is_closed_twice() -> None:
    assert names((OPEN,), (CLOSED,), (Epoch(1, 0, (b"id",), end=60),)) == ["closed twice"]


def test_no_epoch_follows_a_later_one() -> None:
    assert names((Epoch(2, 0, (b"id",)),), (OPEN,)) == ["epochs go back"]
