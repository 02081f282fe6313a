from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.simulation.etcd import Etcd, EtcdAccess
from tests.simulation.lease_keeping import LeaseKeeping
from tests.simulation.network import Network
from tests.simulation.world import World


@dataclass
class Kept:
    world: World
    network: Network
    etcd: Etcd
    granted: list[int] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    keeping: LeaseKeeping = field(init=False)

    def __post_init__(self) -> None:
        access = EtcdAccess(self.network, self.etcd, self.world.node("b0"))
        self.keeping = LeaseKeeping(access, 10, self.granted.append, self.lost.append)
        self.keeping.start()
        self.world.run(1.0)


@pytest.fixture
def it() -> Kept:
    world = World(0)
    return Kept(world, Network(world), Etcd(world.node("etcd")))


def test_a_lease_is_kept(it: Kept) -> None:
    it.world.run(100.0)
    assert it.keeping.is_certain()
    assert it.etcd.leases == it.granted
    assert len(it.granted) == 1
    assert it.lost == []


def test_who_is_paused_past_its_lease_is_not_certain_when_it_wakes(it: Kept) -> None:
    node = it.world.nodes["b0"]
    it.world.pause(node)
    it.world.run(30.0)
    assert it.etcd.leases == []
    assert not it.keeping.is_certain()
    it.world.resume(node)
    it.world.run(30.1)
    assert len(it.lost) == 1


def test_who_cannot_reach_etcd_gives_up_before_etcd_does(it: Kept) -> None:
    it.network.cut(it.world.nodes["b0"], it.etcd.node)
    it.world.run(60.0, lambda: bool(it.lost))
    assert it.etcd.leases == it.granted, "it is still there"
    assert not it.keeping.is_certain()


def test_a_lease_that_is_revoked_is_noticed_and_one_that_is_released_is_not(it: Kept) -> None:
    it.etcd.revoke(it.granted[0])
    it.world.run(10.0)
    assert len(it.lost) == 1
    it.keeping.give_up("once is enough")
    assert len(it.lost) == 1


def test_a_released_lease_runs_out(it: Kept) -> None:
    it.keeping.release()
    it.world.run(30.0)
    assert it.etcd.leases == []
    assert it.lost == []


def test_a_lease_may_be_given_up_on_other_evidence(it: Kept) -> None:
    it.keeping.give_up("our member key is gone")
    assert it.lost == ["our member key is gone"]
