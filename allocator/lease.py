"""Lease: what a process may believe of its lease, by its own clock.

etcd counts from when it gets a keep-alive, we count from when we sent it: so our lease ends first. What is
acknowledged while ``is_certain`` holds was acknowledged before etcd can have given the member's items to others.

The clock is one that goes on while the machine sleeps: a process that is woken must not take up where it left off.
"""

from __future__ import annotations

from dataclasses import dataclass

# A clock of ours that goes slower than etcd's would end the lease late.
_CLOCK_DRIFT = 0.01
_ATTEMPT_MIN = 1 / 6
_PAUSE_S = 0.1
_PAUSE_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Ask now, and give up after so long."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class Lost:
    why: str


class Lease:
    def __init__(self, lease_id: int, ttl_s: float, asked_s: float) -> None:
        """`asked_s` is when the lease was asked for."""
        self.lease_id = lease_id
        self._ttl_s = ttl_s
        # When the latest keep-alive that was answered had been sent.
        self._confirmed_s = asked_s
        self._next_s = asked_s + ttl_s / 3
        self._failures = 0
        self._lost: Lost | None = None

    @property
    def deadline_s(self) -> float:
        """From here on the lease may have run out."""
        return self._confirmed_s + self._ttl_s * (1 - _CLOCK_DRIFT)

    def is_certain(self, now_s: float) -> bool:
        """Whoever was told that it is not, is never told that it is: an answer that comes after that is too late."""
        return self._lost_by(now_s) is None

    def next(self, now_s: float) -> KeepAlive | Wait | Lost:
        """What to do now."""
        if (lost := self._lost_by(now_s)) is not None:
            return lost
        if now_s < self._next_s:
            return Wait(min(self._next_s, self.deadline_s) - now_s)
        # Half of what is left: an etcd all of whose members are slow is not taken for a dead one, and there is still
        # time to ask again.
        left_s = self.deadline_s - now_s
        return KeepAlive(min(max(self._ttl_s * _ATTEMPT_MIN, left_s / 2), left_s))

    def _lost_by(self, now_s: float) -> Lost | None:
        if self._lost is None and now_s >= self.deadline_s:
            self._lost = Lost(f"no keep-alive of the last {now_s - self._confirmed_s:.1f} s was answered")
        return self._lost

    def answered(self, sent_s: float, ttl_s: float) -> None:
        """A keep-alive sent at `sent_s` was answered; it gave the lease `ttl_s` seconds."""
        if sent_s >= self._confirmed_s:
            self._confirmed_s, self._ttl_s = sent_s, ttl_s
            self._next_s = sent_s + ttl_s / 3
            self._failures = 0

    def failed(self, now_s: float) -> None:
        """A keep-alive was not answered. Soon another one is due."""
        self._next_s = now_s + min(_PAUSE_S_MAX, _PAUSE_S * (1 << min(self._failures, 10)))
        self._failures += 1

    def gone(self, why: str) -> None:
        """etcd, or the absence of our keys, says that the lease is no more."""
        self._lost = self._lost or Lost(why)
