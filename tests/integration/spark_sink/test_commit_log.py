"""The commit journal when more than one driver writes to it, and when its registers are not what they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.client.blocking import BlockingClient
from broker.client.outcome import Appended, UnknownOutcomeError
from broker.client.settings import ClientSettings
from protocol.errors import PreconditionError, UnavailableError, ValidationError
from protocol.label import LabelSet
from spark_readers.commit_log import CommitLog
from spark_readers.commit_record import BATCH_QUERY, CommitRecord, Standing, register_name

Create = Callable[..., list[str]]


class LosingClient(BlockingClient):
    """Of the first append with content the answer does not come; it was done, or it was not."""

    def __init__(self, settings: ClientSettings, is_done: bool) -> None:
        super().__init__(settings=settings)
        self._is_done = is_done
        self._has_lost = False

    def append(self, journal: str, content: Any = b"", **conditions: Any) -> Appended:
        if not content or self._has_lost:
            return super().append(journal, content, **conditions)
        self._has_lost = True
        if self._is_done:
            super().append(journal, content, **conditions)
        raise UnknownOutcomeError("the connection broke")


class Driver:
    """Notes which acknowledgements it is to append, and fails to as often as it is told."""

    def __init__(self, client: BlockingClient, journal: str, failures: int = 0) -> None:
        self.sent: list[dict[str, bytes]] = []
        self._failures = failures
        self._log = CommitLog(client, journal, self._send)

    def _send(self, acks: Mapping[str, bytes]) -> None:
        if self._failures:
            self._failures -= 1
            raise UnavailableError("the broker is out of reach")
        self.sent.append(dict(acks))

    def commit(self, version: int, ack: bytes, app: str = "daily", query: str = BATCH_QUERY) -> bool:
        return self._log.commit(CommitRecord(app, version, query, {"acme/orders": ack} if ack else {}))


@pytest.fixture
def journal(create: Create) -> str:
    return create("commits")[0]


def registers(client: BlockingClient, journal: str) -> LabelSet:
    return client.append(journal).registers


def lose_registers(client: BlockingClient, journal: str) -> None:
    """As when all brokers of a journal are lost: its content comes back from the store, its registers do not."""
    client.append(journal, b"\n", subtract_registers=registers(client, journal))
    assert not registers(client, journal)


def test_a_version_counts_once_and_a_rerun_of_what_is_done_sends_nothing(client: BlockingClient, journal: str) -> None:
    first, rerun = Driver(client, journal), Driver(client, journal)
    assert first.commit(1, b"a")
    assert not rerun.commit(1, b"b")
    assert not rerun.commit(0, b"c")
    assert (first.sent, rerun.sent) == ([{"acme/orders": b"a"}], [])
    standing = Standing.of(registers(client, journal), "daily")
    assert standing is not None
    assert (standing.version, standing.is_done) == (1, True)


def test_what_was_stored_and_not_sent_is_sent_by_the_rerun(client: BlockingClient, journal: str) -> None:
    with pytest.raises(UnavailableError):
        Driver(client, journal, failures=1).commit(1, b"a")
    rerun = Driver(client, journal)
    assert not rerun.commit(1, b"b")
    assert rerun.sent == [{"acme/orders": b"a"}]


def test_acknowledgements_that_are_no_text_are_stored_as_they_are(client: BlockingClient, journal: str) -> None:
    """As those of protobuf."""
    ack = bytes(range(256))
    with pytest.raises(UnavailableError):
        Driver(client, journal, failures=1).commit(1, ack)
    rerun = Driver(client, journal)
    assert not rerun.commit(1, b"b")
    assert rerun.sent == [{"acme/orders": ack}]


def test_also_by_a_rerun_that_has_no_rows_and_by_the_next_version(client: BlockingClient, journal: str) -> None:
    with pytest.raises(UnavailableError):
        Driver(client, journal, failures=1).commit(1, b"a")
    empty = Driver(client, journal, failures=0)
    assert not empty.commit(1, b"")
    assert empty.sent == [{"acme/orders": b"a"}]
    with pytest.raises(UnavailableError):
        Driver(client, journal, failures=1).commit(2, b"b")
    following = Driver(client, journal)
    assert following.commit(3, b"c")
    assert following.sent == [{"acme/orders": b"b"}, {"acme/orders": b"c"}]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_record_of_which_no_answer_came_is_looked_for(is_done: bool, client: BlockingClient, journal: str) -> None:
    with LosingClient(client.settings, is_done) as losing:
        driver = Driver(losing, journal)
        assert driver.commit(1, b"a")
    assert driver.sent == [{"acme/orders": b"a"}]
    rerun = Driver(client, journal)
    assert not rerun.commit(1, b"b")
    assert rerun.sent == []


def test_nothing_is_stored_of_a_write_without_rows(client: BlockingClient, journal: str) -> None:
    assert Driver(client, journal).commit(1, b"")
    assert client.append(journal).end == 0


def test_applications_share_a_journal(client: BlockingClient, journal: str) -> None:
    driver = Driver(client, journal)
    for version in (1, 2):
        for app in ("daily", "hourly"):
            assert driver.commit(version, f"{app}-{version}".encode(), app)
            assert not driver.commit(version, b"again", app)
    assert len(driver.sent) == 4


def test_of_many_drivers_at_once_one_is_stored(client: BlockingClient, journal: str) -> None:
    drivers = [Driver(client, journal) for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        counted = list(threads.map(lambda at: drivers[at].commit(1, f"ack-{at}".encode()), range(6)))
    assert counted.count(True) == 1
    winner = f"ack-{counted.index(True)}".encode()
    # Some found it stored and not yet done, and sent it too.
    assert {tuple(acks.values()) for driver in drivers for acks in driver.sent} == {(winner,)}


def test_lost_registers_are_restored_for_all_applications(client: BlockingClient, journal: str) -> None:
    driver = Driver(client, journal)
    for app in ("daily", "hourly"):
        assert driver.commit(5, app.encode(), app)
    lose_registers(client, journal)
    after = Driver(client, journal)
    assert not after.commit(5, b"again", "daily")
    assert after.commit(6, b"new", "daily")
    assert not after.commit(5, b"again", "hourly")
    assert after.sent == [{"acme/orders": b"new"}]


def test_lost_registers_of_a_driver_that_died_are_restored_too(client: BlockingClient, journal: str) -> None:
    with pytest.raises(UnavailableError):
        Driver(client, journal, failures=1).commit(1, b"a")
    lose_registers(client, journal)
    rerun = Driver(client, journal)
    assert not rerun.commit(1, b"b")
    assert rerun.sent == [{"acme/orders": b"a"}]


@pytest.mark.parametrize("before", [[], [1]])
def test_a_register_that_moved_without_its_record_does_not_count(
    before: list[int], client: BlockingClient, journal: str
) -> None:
    driver = Driver(client, journal)
    for version in before:
        assert driver.commit(version, b"before")
    moved = Standing(2, client.append(journal).end, BATCH_QUERY, is_done=False)
    client.append(journal, b"\n", union_registers=LabelSet.of((register_name("daily"), str(moved))))
    assert driver.commit(2, b"a")
    assert driver.sent[-1] == {"acme/orders": b"a"}
    assert not driver.commit(2, b"b")


def test_another_checkpoint_cannot_go_on_under_the_same_name(client: BlockingClient, journal: str) -> None:
    """Its batches begin at zero again, and would all be taken for reruns."""
    driver = Driver(client, journal)
    assert driver.commit(7, b"a", query="query-1")
    with pytest.raises(PreconditionError, match="a new checkpoint needs a new txnAppId"):
        driver.commit(0, b"b", query="query-2")


def test_a_register_of_others_is_not_taken_for_ours(client: BlockingClient, journal: str) -> None:
    client.append(journal, b"\n", union_registers=LabelSet.of((register_name("daily"), "me")))
    with pytest.raises(ValidationError, match="used for nothing else"):
        Driver(client, journal).commit(1, b"a")
