from __future__ import annotations

import asyncio
import threading

import pytest

from allocator.etcd_client import EtcdClient
from allocator.keyspace import KeySpace
from allocator.keyspace_view import Update
from allocator.keyspace_watch import KeySpaceWatch, WatchTiming
from allocator.transaction import Delete, Put, Transaction
from tests.support.etcd_server import EtcdServer
from tests.support.eventually import eventually
from tests.support.metrics import metric
from tests.support.mirror import mirror_of, text

PATIENCE_S = 20.0
AT_ONCE = WatchTiming(delay_s=0)


async def test_a_mirror_is_loaded_in_the_past_and_catches_up(
    etcd: EtcdClient, shared_etcd: EtcdServer, prefix: str
) -> None:
    first = await etcd.put(f"{prefix}/a", b"1")
    await etcd.put(f"{prefix}/a", b"2")
    last = await etcd.put(f"{prefix}/b", b"3")
    async with mirror_of(etcd, prefix, load_at=first.revision) as mirror:
        loaded = mirror.updates[0]
        assert [(kv.key, kv.value) for kv in loaded.view.key_values] == [(f"{prefix}/a", "1")]
        assert loaded.view.revision == first.revision
        view = await mirror.watch.wait_revision(last.revision, PATIENCE_S)
        assert view.header == last
        mirror.check(shared_etcd)


async def test_events_of_a_short_while_are_one_update(etcd: EtcdClient, prefix: str) -> None:
    created = await etcd.put(f"{prefix}/journal", b"old")
    async with mirror_of(etcd, prefix, WatchTiming(delay_s=0.5)) as mirror:
        await etcd.delete(f"{prefix}/journal")
        again = await etcd.put(f"{prefix}/journal", b"new")
        await mirror.watch.wait_revision(again.revision, PATIENCE_S)
        (update,) = mirror.updates[1:]
        (change,) = update.changes
        assert change.before is not None
        assert change.after is not None
        assert (change.before.create_revision, change.after.create_revision) == (created.revision, again.revision)


async def test_a_transaction_is_one_update_even_without_delay(etcd: EtcdClient, prefix: str) -> None:
    async with mirror_of(etcd, prefix, AT_ONCE) as mirror:
        puts = tuple(Put(f"{prefix}/{at}", b"") for at in range(100))
        done = await etcd.commit(Transaction((), puts))
        await mirror.watch.wait_revision(done.header.revision, PATIENCE_S)
        assert [len(update.changes) for update in mirror.updates] == [0, 100]


async def test_a_large_transaction_that_comes_in_parts_is_one_update(etcd: EtcdClient, prefix: str) -> None:
    begun = (await etcd.header(prefix)).revision
    last = [await etcd.put(f"{prefix}/{at}", b"x" * 1_000_000) for at in range(6)][-1]
    async with mirror_of(etcd, prefix, AT_ONCE, load_at=begun) as mirror:
        await mirror.watch.wait_revision(last.revision, PATIENCE_S)
        assert [len(update.changes) for update in mirror.updates] == [0, 6]


async def test_observers_are_told_in_turn_and_before_waiters(etcd: EtcdClient, prefix: str) -> None:
    async with mirror_of(etcd, prefix, AT_ONCE) as mirror:
        told: list[str] = []
        mirror.watch.observe(lambda update: told.append(f"first {update.view is mirror.watch.view}"))
        mirror.watch.observe(lambda update: told.append(f"second {update.view is mirror.watch.view}"))
        done = await etcd.put(f"{prefix}/a", b"1")
        await mirror.watch.wait_revision(done.revision, PATIENCE_S)
        assert told == ["first True", "second True"]


async def test_an_observer_that_fails_is_logged_and_keeps_nothing_from_others(
    etcd: EtcdClient, shared_etcd: EtcdServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    failed = metric("gazette_keyspace_observer_failures_total")
    async with mirror_of(etcd, prefix, AT_ONCE) as mirror:
        told: list[str] = []

        def fail(update: Update[str]) -> None:
            told.append("first")
            raise ZeroDivisionError("by chance")

        mirror.watch.observe(fail)
        mirror.watch.observe(lambda update: told.append("second"))
        for at in range(2):
            done = await etcd.put(f"{prefix}/a", str(at).encode())
            await mirror.watch.wait_revision(done.revision, PATIENCE_S)
        assert told == ["first", "second"] * 2
        mirror.check(shared_etcd)
    assert metric("gazette_keyspace_observer_failures_total") == failed + 2
    logged = [record for record in caplog.records if "observer" in record.message]
    assert len(logged) == 2
    assert all(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in logged)


async def test_a_wait_ends_when_the_caller_has_waited_long_enough(etcd: EtcdClient, prefix: str) -> None:
    async with mirror_of(etcd, prefix) as mirror:
        revision = mirror.watch.view.revision
        assert await mirror.watch.wait_revision(revision, 0.01) is mirror.watch.view
        with pytest.raises(TimeoutError):
            await mirror.watch.wait_revision(revision + 1, 0.01)
        with pytest.raises(TimeoutError):
            await mirror.watch.wait_change(mirror.watch.view, 0.01)


async def test_what_happens_elsewhere_does_not_move_the_revision(etcd: EtcdClient, prefix: str) -> None:
    """It would go out in headers, and peers would wait for it in vain. A sibling is not elsewhere."""
    async with mirror_of(etcd, prefix, AT_ONCE) as mirror:
        before = mirror.watch.view
        elsewhere = await etcd.put("/elsewhere/a", b"1")
        sibling = await etcd.put(f"{prefix}2/a", b"bad")
        view = await mirror.watch.wait_change(before, PATIENCE_S)
        assert before.revision < elsewhere.revision < sibling.revision == view.revision
        assert list(view.key_values) == list(before.key_values)


async def test_bad_data_is_logged_and_ignored(
    etcd: EtcdClient, shared_etcd: EtcdServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    await etcd.put(f"{prefix}/a", b"good")
    await etcd.put(f"{prefix}/b", b"bad")
    async with mirror_of(etcd, prefix, AT_ONCE) as mirror:
        await etcd.put(f"{prefix}/a", b"bad")
        shared_etcd.call("kv/put", key="L3Rlc3T/", value="")
        await etcd.put(f"{prefix}/c", b"good")
        await etcd.delete(f"{prefix}/b")
        repaired = await etcd.put(f"{prefix}/a", b"better")
        view = await mirror.watch.wait_revision(repaired.revision, PATIENCE_S)
        assert {kv.key: kv.value for kv in view.key_values} == {f"{prefix}/a": "better", f"{prefix}/c": "good"}
        mirror.check(shared_etcd)
    ignored = [vars(record)["key"] for record in caplog.records if "not as expected" in record.message]
    assert ignored == [f"{prefix}/b", f"{prefix}/a"]


async def test_a_hundred_bad_keys_are_not_a_hundred_lines(
    etcd: EtcdClient, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    await etcd.commit(Transaction((), tuple(Put(f"{prefix}/{at}", b"bad") for at in range(100))))
    async with mirror_of(etcd, prefix) as mirror:
        assert len(mirror.watch.view.undecodable) == 100
    assert len(caplog.records) == 21


async def test_a_quiet_watch_gives_signs_of_life(etcd: EtcdClient, prefix: str) -> None:
    """Requested progress is answered, and is what tells a quiet watch from a dead one."""
    resumed = metric("gazette_keyspace_watches_resumed_total")
    async with mirror_of(etcd, prefix, WatchTiming(probe_s=0.05, stall_s=5)):
        for _ in range(3):
            await eventually(lambda: metric("gazette_keyspace_silence_seconds") > 0.02, "silence")
            await eventually(lambda: metric("gazette_keyspace_silence_seconds") < 0.02, "the end of the silence")
    assert metric("gazette_keyspace_watches_resumed_total") == resumed


# The mirror proves itself.


def verified(outcome: str) -> float:
    return metric("gazette_keyspace_verifications_total", outcome=outcome)


async def test_a_right_mirror_is_proved_again_and_again_while_it_changes(
    etcd: EtcdClient, shared_etcd: EtcdServer, prefix: str
) -> None:
    same, differs = verified("same"), verified("differs")
    await etcd.put(f"{prefix}/spoilt", b"bad")
    async with mirror_of(etcd, prefix, WatchTiming(delay_s=0.01, verify_s=0.02)) as mirror:
        for at in range(100):
            await etcd.put(f"{prefix}/{at % 7}", str(at).encode())
            if at % 3 == 0:
                await etcd.delete(f"{prefix}/{at % 7}")
        done = await etcd.put(f"{prefix}/last", b"1")
        await mirror.watch.wait_revision(done.revision, PATIENCE_S)
        await eventually(lambda: verified("same") > same + 3, "more verifications")
        mirror.check(shared_etcd)
    assert verified("differs") == differs


@pytest.mark.parametrize("lost", ["put", "update", "delete"])
async def test_a_wrong_mirror_is_noticed_and_repaired(
    etcd: EtcdClient, shared_etcd: EtcdServer, prefix: str, lost: str
) -> None:
    """etcd says that it has delivered everything up to a revision, and then comes with something older."""
    differs, reloaded = verified("differs"), metric("gazette_keyspace_reloads_total")
    await etcd.put(f"{prefix}/a", b"1")
    timing = WatchTiming(delay_s=0, stall_s=0.5, probe_s=0.1, verify_s=0.05, confirm_s=0.05)
    async with mirror_of(etcd, prefix, timing) as mirror:
        header = mirror.watch.view.header
        mirror.keyspace.progress(header._replace(revision=header.revision + 2))
        match lost:
            case "put":
                await etcd.put(f"{prefix}/b", b"2")
            case "update":
                await etcd.put(f"{prefix}/a", b"2")
            case _:
                await etcd.delete(f"{prefix}/a")
        await etcd.put("/elsewhere/a", b"1")
        await eventually(lambda: metric("gazette_keyspace_reloads_total") > reloaded, "a reload")
        mirror.check(shared_etcd)
        assert verified("differs") == differs + 1
        # It goes on from there.
        done = await etcd.put(f"{prefix}/b", b"2")
        await mirror.watch.wait_revision(done.revision, PATIENCE_S)
        mirror.check(shared_etcd)


async def test_after_a_reload_waiting_for_a_change_is_not_waiting_for_a_revision(etcd: EtcdClient, prefix: str) -> None:
    """The listing is of a revision that no key has. Whoever waits for what comes next must not be told "it came"."""
    await etcd.put(f"{prefix}/a", b"1")
    keyspace = KeySpace(prefix, text)
    keyspace.load(keyspace.decoded(await etcd.list_prefix(prefix)))
    elsewhere = await etcd.put("/elsewhere/a", b"1")
    keyspace.reload(keyspace.decoded(await etcd.list_prefix(prefix)))
    watch = KeySpaceWatch(etcd, keyspace)
    assert watch.view.revision < elsewhere.revision
    assert await watch.wait_revision(elsewhere.revision, 0.01) is watch.view
    with pytest.raises(TimeoutError):
        await watch.wait_change(watch.view, 0.01)


async def test_many_events_at_once_do_not_keep_the_loop_busy(etcd: EtcdClient, prefix: str) -> None:
    """They are decoded elsewhere. A few are not worth it."""
    on_loop: dict[str, bool] = {}

    def decode(key: str, raw: bytes) -> str:
        on_loop[key] = threading.current_thread() is threading.main_thread()
        return raw.decode()

    begun = (await etcd.header(prefix)).revision
    last = None
    for at in range(0, 1000, 100):
        puts = tuple(Put(f"{prefix}/{at + each:04}", b"x") for each in range(100))
        last = await etcd.commit(Transaction((), puts))
    assert last is not None
    watch = KeySpaceWatch(etcd, KeySpace(prefix, decode), timing=AT_ONCE)
    await watch.load(begun)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watch.run())
        view = await watch.wait_revision(last.header.revision, PATIENCE_S)
        few = await etcd.put(f"{prefix}/few", b"x")
        await watch.wait_revision(few.revision, PATIENCE_S)
        running.cancel()
    assert len(view.key_values) == 1000
    assert on_loop.pop(f"{prefix}/few")
    assert not any(on_loop.values())


async def test_ten_thousand_keys_are_loaded_without_holding_up_the_loop(etcd: EtcdClient, prefix: str) -> None:
    """Decoding them, which is most of the work, is done elsewhere."""
    for at in range(0, 10_000, 100):
        await etcd.commit(Transaction((), tuple(Put(f"{prefix}/{at + each:05}", b"x" * 200) for each in range(100))))
    threads: set[threading.Thread] = set()

    def decode(key: str, raw: bytes) -> str:
        threads.add(threading.current_thread())
        return raw.decode()

    view = await KeySpaceWatch(etcd, KeySpace(prefix, decode)).load()
    assert len(view.key_values) == 10_000
    assert threads
    assert threading.current_thread() not in threads
    for at in range(0, 10_000, 100):
        await etcd.commit(Transaction((), tuple(Delete(f"{prefix}/{at + each:05}") for each in range(100))))
