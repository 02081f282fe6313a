"""UUIDs that a plan reads: by threads, by processes, or not again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from consumer.message.message_uuid import Flags, build
from protocol.codec import CompressionCodec
from protocol.errors import CorruptError
from spark_readers import summary_pool
from spark_readers.clock_summary import ProducerSummary
from spark_readers.fragment_task import Piece, Run
from spark_readers.read_options import ReadOptions
from spark_readers.run_summaries import RunSummaries
from spark_readers.scan import plan_tasks
from spark_readers.summary_cache import SummaryCache
from spark_readers.summary_pool import SummaryPool
from tests.support.fragment_bag import options_of, put

JOURNAL = "acme/orders"
PRODUCERS = [bytes((1, 0, 0, 0, 0, n)) for n in range(3)]


def runs_of(store: Path, count: int = 6) -> list[Run]:
    """A fragment each."""
    runs = []
    begin = 0
    for n in range(count):
        lines = [
            json.dumps({"UUID": str(build(PRODUCERS[at % 3], 100 * n + at + 1, Flags(at % 7 == 6 and 2))), "n": at})
            for at in range(50)
        ]
        of, _ = put(store, JOURNAL, begin, [f"{line}\n".encode() for line in lines], CompressionCodec.GZIP)
        runs.append(Run(JOURNAL, (Piece(of, of.begin, of.end, of.begin, of.end),)))
        begin = of.end
    return runs


def json_options(store: Path, **more: str) -> ReadOptions:
    return options_of(path=store, framing="json", **more)


def read(pool: SummaryPool, runs: list[Run]) -> list[RunSummaries]:
    [(known, found)] = pool.in_order([("known", runs)])
    assert known == "known"
    return found


@pytest.fixture
def few_bytes_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_pool, "PROCESSES_BYTES_MIN", 1)
    monkeypatch.setattr(summary_pool, "_cores", lambda: 2)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def in_threads(options: ReadOptions, runs: list[Run]) -> list[RunSummaries]:
    with SummaryPool(options, SummaryCache()) as pool:
        found = read(pool, runs)
        assert pool.pids == []
    assert [of.run for of in found] == runs
    return found


def test_little_is_read_without_processes_and_all_in_order(tmp_path: Path) -> None:
    runs = runs_of(tmp_path)
    options = json_options(tmp_path)
    found = in_threads(options, runs)
    assert all(of.summaries[0].keys() == set(PRODUCERS) for of in found)
    journals = [(at, runs[at : at + at % 3]) for at in range(100)]
    with SummaryPool(options, SummaryCache()) as pool:
        assert [(known, [of.run for of in taken]) for known, taken in pool.in_order(journals)] == journals


@pytest.mark.usefixtures("few_bytes_are_enough")
def test_processes_find_what_threads_do_and_end_with_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = runs_of(tmp_path)
    options = json_options(tmp_path)
    with SummaryPool(options, SummaryCache()) as pool:
        found = read(pool, runs)
        pids = pool.pids
        # One that is killed, for want of memory say, is done without.
        os.kill(pids[0], signal.SIGKILL)
        assert read(pool, runs_of(tmp_path / "other"))
    assert 1 <= len(pids) <= 2
    assert not any(is_alive(pid) for pid in pids)
    monkeypatch.setattr(summary_pool, "PROCESSES_BYTES_MIN", 1 << 60)
    assert found == in_threads(options, runs)


@pytest.mark.usefixtures("few_bytes_are_enough")
def test_what_a_process_cannot_read_fails_the_plan_or_is_left_out(tmp_path: Path) -> None:
    runs = runs_of(tmp_path)
    [bad] = runs[2].pieces
    assert bad.fragment is not None
    path = tmp_path / bad.fragment.content_path
    path.write_bytes(path.read_bytes()[:-9])
    with SummaryPool(json_options(tmp_path), SummaryCache()) as pool, pytest.raises(CorruptError, match=path.name):
        read(pool, runs)
    assert not any(is_alive(pid) for pid in pool.pids)
    with SummaryPool(json_options(tmp_path, failOnDataLoss="false"), SummaryCache()) as pool:
        assert [of.run for of in read(pool, runs)] == [*runs[:2], *runs[3:]]


@pytest.mark.usefixtures("few_bytes_are_enough")
def test_a_machine_that_starts_no_process_reads_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "none"))
    with SummaryPool(json_options(tmp_path), SummaryCache()) as pool:
        assert len(read(pool, runs_of(tmp_path))) == 6
        assert pool.pids == []


def test_what_was_planned_once_is_not_read_again(tmp_path: Path) -> None:
    """Nobody looks into the second file any more. A scan that passes over what is bad looks each time."""
    given = {"path": tmp_path, "framing": "json", "splitSize": "1k"}
    for number in range(3):
        put(tmp_path, JOURNAL, number * 1000, [b'{"n":1,"pad":"%s"}\n' % (b"x" * 983)])
    planned = plan_tasks(options_of(**given))
    assert len(planned) == 3
    path = sorted(tmp_path.rglob("*-*"))[1]
    mod_time = path.stat().st_mtime
    path.write_bytes(b"spoilt")
    os.utime(path, (mod_time, mod_time))
    assert plan_tasks(options_of(**given)) == planned
    assert len(plan_tasks(options_of(**given, failOnDataLoss="false"))) == 2
    with pytest.raises(CorruptError, match=path.name):
        plan_tasks(options_of(**given, uuidField="id"))
    # It is another object now.
    os.utime(path, (mod_time + 1, mod_time + 1))
    with pytest.raises(CorruptError, match=path.name):
        plan_tasks(options_of(**given))


def test_a_cache_keeps_what_was_asked_for_last_up_to_so_many_producers() -> None:
    cache = SummaryCache(producers_max=9)
    summaries = [{producer: ProducerSummary(1) for producer in PRODUCERS[:2]}]
    for key in (b"a", b"b", b"c"):
        cache.put(key, summaries)
    assert cache.get(b"a") == summaries
    cache.put(b"d", summaries)
    cache.put(b"d", summaries)
    assert [key for key in (b"a", b"b", b"c", b"d") if cache.get(key)] == [b"a", b"c", b"d"]
    cache.put(None, summaries)
    assert cache.get(None) is None
    cache.put(b"e", [{bytes((1, *n.to_bytes(5, "big"))): ProducerSummary(1) for n in range(20)}])
    assert cache.get(b"e") is None
