"""The messages of a Replicate stream as values: what a primary tells its peers, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass

from broker.durable_head import Claim, EpochTerms
from protocol.errors import Status
from protocol.fragment import Fragment
from protocol.label import LabelSet
from protocol.route import Header


@dataclass(frozen=True, slots=True)
class Propose:
    """What the spool is to be: to synchronise, to begin a fragment, to commit, or to roll back."""

    fragment: Fragment
    registers: LabelSet
    # Whether it is to be answered. If not, it must fit.
    acknowledge: bool = True
    # With the first message of a stream: under which Route it was opened, and for whom.
    header: Header | None = None
    # None to and from those who keep no epochs, and where one of these takes part.
    epoch: EpochTerms | None = None
    # None to and from those who do not tell: Gazette's own brokers.
    acked_through: int | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes that follow on the `delta` bytes of content that came since the last proposal."""

    data: bytes | memoryview
    delta: int
    acked_through: int | None = None


@dataclass(frozen=True, slots=True)
class Acked:
    """All holders have the bytes below `through`. Sent when there is nothing else to send it with."""

    through: int


Message = Propose | Content | Acked


@dataclass(frozen=True, slots=True)
class Answer:
    """To a Propose that asked for one. With a mismatch, what the peer holds instead."""

    status: Status
    header: Header | None = None
    fragment: Fragment | None = None
    registers: LabelSet | None = None
    # To a synchronisation that named an epoch: what the peer has of it.
    claim: Claim | None = None
