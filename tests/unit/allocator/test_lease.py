from __future__ import annotations

from copy import copy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.lease import KeepAlive, Lease, Lost, Wait
from allocator.lease_file import LeaseFile
from allocator.lease_keeper import boot_clock

TTL_S = 20.0


def lease_of(asked_s: float = 100.0) -> Lease:
    return Lease(1, TTL_S, asked_s)


def test_a_lease_is_renewed_after_a_third_of_its_time() -> None:
    lease = lease_of()
    step = lease.next(100.0)
    assert isinstance(step, Wait)
    assert 6 < step.seconds < 7
    assert isinstance(lease.next(100.0 + step.seconds), KeepAlive)


def test_certainty_ends_before_the_lease_does_at_etcd() -> None:
    lease = lease_of()
    assert lease.is_certain(119.7)
    assert not lease.is_certain(119.9)
    assert not lease.is_certain(500.0)


def test_the_time_counts_from_the_sending_of_a_keep_alive() -> None:
    """A slow answer does not lengthen the lease."""
    lease = lease_of()
    lease.answered(107.0, TTL_S)
    step = lease.next(112.0)
    assert isinstance(step, Wait)
    assert step.seconds < 107.0 + TTL_S / 3 - 112.0 + 0.001
    assert lease.is_certain(126.7)
    assert not lease.is_certain(126.9)


def test_an_answer_to_an_older_keep_alive_changes_nothing() -> None:
    lease = lease_of()
    lease.answered(110.0, TTL_S)
    lease.answered(105.0, TTL_S)
    assert lease.is_certain(129.0)


def test_etcd_has_the_last_word_on_how_long_a_lease_is() -> None:
    lease = lease_of()
    lease.answered(107.0, 5.0)
    assert not lease.is_certain(112.0)


def test_a_keep_alive_that_failed_is_repeated_soon_and_given_up_at_the_deadline() -> None:
    lease, now_s, tried = lease_of(), 107.0, 0
    while isinstance(step := lease.next(now_s), KeepAlive | Wait):
        if isinstance(step, KeepAlive):
            tried += 1
            assert step.timeout_s <= lease.deadline_s - now_s
            lease.failed(now_s)
        else:
            assert step.seconds <= 1.0
            now_s += step.seconds
    assert tried > 10
    assert now_s == lease.deadline_s
    assert isinstance(step, Lost)
    assert "answered" in step.why


@pytest.mark.parametrize("slow_s", [0.1, 1.0, 2.0, 6.0])
def test_a_slow_etcd_is_not_taken_for_a_dead_one(slow_s: float) -> None:
    """It answers every keep-alive, if only after a while."""
    lease, now_s, answers = lease_of(), 100.0, 0
    while answers < 100:
        step = lease.next(now_s)
        assert not isinstance(step, Lost)
        if isinstance(step, Wait):
            now_s += step.seconds
            continue
        sent_s = now_s
        now_s += min(slow_s, step.timeout_s)
        if slow_s <= step.timeout_s:
            lease.answered(sent_s, TTL_S)
            answers += 1
        else:
            lease.failed(now_s)


def test_one_keep_alive_leaves_time_for_another() -> None:
    lease, now_s, tried = lease_of(), 100.0, 0
    while isinstance(step := lease.next(now_s), KeepAlive | Wait):
        if isinstance(step, KeepAlive):
            tried += 1
            now_s += step.timeout_s
            lease.failed(now_s)
        else:
            now_s += step.seconds
    assert tried >= 3
    assert now_s == pytest.approx(lease.deadline_s)


def test_a_machine_that_slept_through_its_lease_has_lost_it() -> None:
    """An answer that was under way when the machine fell asleep is no help."""
    lease = lease_of()
    lease.answered(107.0, TTL_S)
    assert not lease.is_certain(107.0 + 3600)
    assert isinstance(lease.next(107.0 + 3600), Lost)


def test_an_answer_that_comes_after_the_lease_was_doubted_is_too_late() -> None:
    lease = lease_of()
    assert not lease.is_certain(119.9)
    lease.answered(119.7, TTL_S)
    assert not lease.is_certain(119.9)
    assert isinstance(lease.next(119.9), Lost)


def test_a_lost_lease_stays_lost() -> None:
    lease = lease_of()
    lease.gone("revoked")
    lease.answered(101.0, TTL_S)
    assert not lease.is_certain(101.0)
    assert lease.next(101.0) == Lost("revoked")
    lease.gone("another reason")
    assert lease.next(101.0) == Lost("revoked")


@given(
    st.lists(
        st.tuples(
            st.floats(0, 30),
            st.sampled_from(["answered", "failed", "lost answer"]),
        ),
        max_size=30,
    )
)
def test_a_process_is_never_certain_of_a_lease_that_etcd_has_ended(steps: list[tuple[float, str]]) -> None:
    """etcd ends a lease a TTL after the last keep-alive that reached it, whether or not the answer reached us."""
    lease = lease_of(0.0)
    now_s, ends_s = 0.0, TTL_S
    for delay_s, outcome in steps:
        step = lease.next(now_s)
        if isinstance(step, Lost):
            break
        if isinstance(step, Wait):
            now_s += step.seconds
            continue
        sent_s = now_s
        now_s += min(delay_s, step.timeout_s)
        arrived_s = (sent_s + now_s) / 2
        if outcome != "failed" and arrived_s < ends_s:
            ends_s = arrived_s + TTL_S
        if outcome == "answered" and sent_s < ends_s:
            lease.answered(sent_s, TTL_S)
        else:
            lease.failed(now_s)
        for later_s in (now_s, ends_s - 0.001, ends_s, ends_s + 5):
            assert not copy(lease).is_certain(later_s) or later_s < ends_s


def test_the_clock_of_leases_runs_while_the_machine_sleeps() -> None:
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    assert abs(boot_clock() - uptime_s) < 5


async def test_a_lease_file_remembers_until_told_to_forget(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    assert await LeaseFile(path).recall() is None
    await LeaseFile(path).remember(7587870123456789012)
    assert await LeaseFile(path).recall() == 7587870123456789012
    await LeaseFile(path).remember(5)
    assert await LeaseFile(path).recall() == 5
    await LeaseFile(path).remember(None)
    assert await LeaseFile(path).recall() is None
    await LeaseFile(path).remember(None)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\0\0", b"12a", b"\xff", b"1_000", b"+5", b"0", b"-5", b"9223372036854775808", b"9" * 5000, b"\xd9\xa1"],
    ids=lambda content: repr(content[:20]),
)
async def test_a_lease_file_that_cannot_be_understood_is_no_obstacle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = tmp_path / "lease"
    path.write_bytes(content)
    assert await LeaseFile(path).recall() is None
    (record,) = caplog.records
    assert "lease file" in record.message
    await LeaseFile(path).remember(9223372036854775807)
    assert await LeaseFile(path).recall() == 9223372036854775807
