from __future__ import annotations

from dataclasses import replace

from allocator.keys import item_key
from broker.last_spec import LastSpec
from tests.support.broker_cores import JOURNAL, ROOT, SPEC
from tests.support.mini_cluster import ClusterKeys


def raw(etcd: ClusterKeys) -> bytes:
    kv = etcd.view().get(item_key(ROOT, JOURNAL))
    assert kv is not None
    return kv.raw


def created() -> tuple[ClusterKeys, LastSpec]:
    etcd = ClusterKeys()
    etcd.apply(SPEC)
    kv = etcd.view().get(item_key(ROOT, JOURNAL))
    assert kv is not None
    return etcd, LastSpec(etcd.view, ROOT, JOURNAL, kv.create_revision)


def test_it_is_the_spec_as_it_is() -> None:
    etcd, last = created()
    assert last() == raw(etcd)
    etcd.apply(replace(SPEC, replication=1))
    assert last() == raw(etcd)


def test_after_the_deletion_it_is_what_the_spec_was_though_nobody_had_asked_before() -> None:
    etcd, last = created()
    before = raw(etcd)
    etcd.remove(item_key(ROOT, JOURNAL))
    assert last() == before


def test_that_of_a_journal_of_the_same_name_is_another() -> None:
    etcd, last = created()
    before = raw(etcd)
    etcd.remove(item_key(ROOT, JOURNAL))
    etcd.apply(replace(SPEC, replication=1))
    assert last() == before != raw(etcd)
