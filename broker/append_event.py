"""What an append is asked, what can happen to it, and how it is answered."""

from __future__ import annotations

from dataclasses import dataclass

from broker.durable_head import DurableHead, Extents
from broker.pipeline import Ask, HeldSpool, Pipeline, Sealed
from broker.resolution import Resolution
from fragment.index import Summary
from protocol.errors import GazetteError, Status
from protocol.fragment import Fragment
from protocol.journal import SuspendMode
from protocol.label import LabelSet
from protocol.route import Header
from protocol.selector import LabelSelector


@dataclass(frozen=True, slots=True)
class AppendOpening:
    """The first message of an append."""

    # Without what may follow a semicolon.
    journal: str
    # Of the broker that proxied the request.
    header: Header | None = None
    do_not_proxy: bool = False
    # Where the append has to begin; None is wherever it may.
    offset: int | None = None
    check_registers: LabelSelector | None = None
    union_registers: LabelSet = LabelSet()
    subtract_registers: LabelSet = LabelSet()
    suspend: SuspendMode = SuspendMode.RESUME
    min_revision: int = 0


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """The answer to an append, be it done or refused."""

    status: Status
    header: Header
    # With OK: the bytes of this append alone, and their SHA-1.
    commit: Fragment | None = None
    registers: LabelSet | None = None
    store_health_error: str = ""


@dataclass(frozen=True, slots=True)
class Resolved:
    resolution: Resolution


@dataclass(frozen=True, slots=True)
class PipelineTaken:
    # None if there is none and it is ours to build.
    pipeline: Pipeline | None


@dataclass(frozen=True, slots=True)
class SpoolTaken:
    held: HeldSpool


@dataclass(frozen=True, slots=True)
class HeadRead:
    """What is on record of the journal's head."""

    head: DurableHead | None
    # Of that record; zero where there is none.
    mod_revision: int
    # What the store has of the journal.
    stored: Extents = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """The spool is ready for a synchronisation."""


@dataclass(frozen=True, slots=True)
class Opened:
    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Invalidated:
    """The Resolution does not hold any more."""


@dataclass(frozen=True, slots=True)
class Answered:
    ask: Ask
    # Whether this broker is a member beyond doubt: one whose lease may have run out acknowledges nothing.
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class Transacted:
    # Of the transaction; None if it did not take effect.
    revision: int | None


@dataclass(frozen=True, slots=True)
class Ready:
    """All stores of the journal were listed."""

    summary: Summary
    # Why the first store cannot be used, if it cannot.
    unhealthy: str | None = None
    # The spool directories of all members, where it was asked for.
    spool_ids: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Chunk:
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Intent:
    """The empty chunk: what was sent is all there is, and is to be committed."""


@dataclass(frozen=True, slots=True)
class End:
    """The client's side of the stream is over."""


@dataclass(frozen=True, slots=True)
class ContentSealed:
    sealed: Sealed


@dataclass(frozen=True, slots=True)
class Shown:
    """Readers here have the bytes."""

    # As with an answer: the disk may have taken long.
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class Failed:
    """What was waited for cannot be had; or the client broke the protocol, or is too slow."""

    error: GazetteError


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client is gone."""


Event = (
    Resolved
    | PipelineTaken
    | SpoolTaken
    | HeadRead
    | Prepared
    | Opened
    | Invalidated
    | Answered
    | Transacted
    | Ready
    | Chunk
    | Intent
    | End
    | ContentSealed
    | Shown
    | Failed
    | Cancelled
)
