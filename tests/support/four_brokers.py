"""A MiniCluster of four brokers, of which three hold the journal."""

from __future__ import annotations

from protocol.errors import Status
from tests.support.broker_cores import A, B, C, D
from tests.support.mini_cluster import Client, MiniCluster


def three() -> MiniCluster:
    return MiniCluster(A, B, C, D)


def settled(cluster: MiniCluster, *chunks: bytes) -> Client:
    """An append that went through, once all brokers have seen what is in etcd."""
    cluster.run()
    client = cluster.append(A, *chunks)
    cluster.run()
    assert client.status is Status.OK
    return client


def all_ends(cluster: MiniCluster) -> set[int]:
    return {cluster.brokers[member].spool.spool.fragment.end for member in (A, B, C)}
