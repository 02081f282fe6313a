"""The client without asyncio: in scripts, in threads, and sent to another process."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.client.blocking import BlockingClient
from broker.client.journal_change import Upsert
from broker.client.retry import Retry
from broker.client.settings import ClientSettings
from protocol.errors import RefusedError
from tests.support.broker_cluster import journal_spec

_NUMBERS = itertools.count()


@pytest.fixture
def blocking(settings: ClientSettings) -> Iterator[BlockingClient]:
    with BlockingClient(settings=settings) as client:
        yield client


@pytest.fixture
def journal(blocking: BlockingClient) -> str:
    name = f"client/blocking-{next(_NUMBERS):03}"
    blocking.apply(Upsert(journal_spec(name)))
    return name


def test_a_script_appends_and_reads(blocking: BlockingClient, journal: str) -> None:
    assert blocking.append(journal, b"one\ntwo\n").end == 8
    blocking.append(journal, iter([b"thr", b"ee\n"]))
    with blocking.read(journal, block=False) as reader:
        assert b"".join(reader) == b"one\ntwo\nthree\n"
        reader.seek(4)
        assert reader.read(3) == b"two"
        assert reader.offset == 7
    with blocking.read_lines(journal, block=False) as lines:
        assert [(line, lines.offset) for line in lines] == [(b"one", 4), (b"two", 8), (b"three", 14)]
    assert blocking.list(f"name={journal}").names == [journal]
    assert blocking.read_metadata(journal).write_head == 14
    assert blocking.fragments(journal)[0].fragment.begin == 0
    blocking.store_health("file:///")
    with pytest.raises(RefusedError):
        blocking.append("client/no-such-journal", b"x")


def test_many_threads_share_one_client(blocking: BlockingClient, journal: str) -> None:
    def work(number: int) -> None:
        for at in range(20):
            blocking.append(journal, b"%02d %02d\n" % (number, at), retry=Retry(within_s=60))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    lines = list(blocking.read_lines(journal, block=False))
    assert sorted(lines) == [b"%02d %02d" % (number, at) for number in range(8) for at in range(20)]
    for number in range(8):
        own = [line for line in lines if line.startswith(b"%02d" % number)]
        assert own == sorted(own)


def test_a_pickled_client_is_its_settings(blocking: BlockingClient, journal: str) -> None:
    blocking.append(journal, b"one\n")
    with pickle.loads(pickle.dumps(blocking)) as copy:
        assert copy.settings == blocking.settings
        assert list(copy.read_lines(journal, block=False)) == [b"one"]


def test_a_closed_client_starts_again_when_it_is_used(blocking: BlockingClient, journal: str) -> None:
    blocking.close()
    assert blocking.append(journal, b"one\n").end == 4


def test_appends_go_on_while_the_next_are_made(blocking: BlockingClient, journal: str) -> None:
    appends = blocking.append_service(pending_bytes_max=64)
    for number in range(50):
        appends.append(journal, b"%02d\n" % number)
    appends.flush()
    assert list(blocking.read_lines(journal, block=False)) == [b"%02d" % number for number in range(50)]


def test_an_append_that_failed_is_told_by_the_next_and_by_flush(blocking: BlockingClient) -> None:
    appends = blocking.append_service()
    appends.append("client/no-such-journal", b"x")
    with pytest.raises(RefusedError):
        appends.flush()
    with pytest.raises(RefusedError):
        appends.append("client/no-such-journal", b"y")
