"""What an AppendFSM has done for it. Those that say "then" are waited for: what comes of them is the next event."""

from __future__ import annotations

from dataclasses import dataclass

from broker.append_event import AppendOutcome
from broker.durable_head import DurableHead, EpochTerms, Fate
from broker.pipeline import HeldSpool, Pipeline
from broker.resolution import Resolution
from fragment.spool import EpochMark
from protocol.errors import GazetteError
from protocol.fragment import Fragment
from protocol.journal import SuspendLevel
from protocol.label import LabelSet


@dataclass(frozen=True, slots=True)
class Resolve:
    """Then ``Resolved``, at this revision or a later one."""

    min_revision: int


@dataclass(frozen=True, slots=True)
class TakePipeline:
    """Then ``PipelineTaken``, or ``Invalidated``."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Pass the pipeline on, or None if the next one has to build it."""

    pipeline: Pipeline | None


@dataclass(frozen=True, slots=True)
class TakeSpool:
    """Then ``SpoolTaken``, or ``Invalidated``."""


@dataclass(frozen=True, slots=True)
class ReadHead:
    """Then ``HeadRead``."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Get the spool ready for a synchronisation: as it is, or retired to its fate. Then ``Prepared``."""

    held: HeldSpool
    fate: Fate | None


@dataclass(frozen=True, slots=True)
class Release:
    """Give the spool back, for which there is no pipeline."""

    held: HeldSpool


@dataclass(frozen=True, slots=True)
class Open:
    """Build a pipeline. Then ``Opened``."""

    held: HeldSpool
    resolution: Resolution
    terms: EpochTerms | None


@dataclass(frozen=True, slots=True)
class Synchronise:
    """Propose to all members. Then ``Answered``."""

    pipeline: Pipeline
    fragment: Fragment
    registers: LabelSet
    is_first: bool


@dataclass(frozen=True, slots=True)
class ShutDown:
    """End a pipeline and give its spool back. Nobody waits for it."""

    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class HeadChange:
    """What is to be on record of the journal's head, if that is still as of `mod_revision`."""

    head: DurableHead
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Advertise:
    """Write the Route to all assignments, and the head with it. Then ``Transacted``."""

    resolution: Resolution
    change: HeadChange | None = None


@dataclass(frozen=True, slots=True)
class Voided:
    """It is on record that a member without epochs takes part."""


@dataclass(frozen=True, slots=True)
class EpochOpened:
    """The pipeline has an epoch of its own. What is left of the one before was closed where it begins."""

    pipeline: Pipeline
    terms: EpochTerms
    closed: EpochMark | None


@dataclass(frozen=True, slots=True)
class SetSuspend:
    """Write to the spec whether and where the journal is suspended. Then ``Transacted``."""

    resolution: Resolution
    level: SuspendLevel
    offset: int
    change: HeadChange | None = None


@dataclass(frozen=True, slots=True)
class AwaitReady:
    """Then ``Ready``, or ``Invalidated``."""

    # Whether the stores are to be listed anew, and who is a member is to be told.
    is_fresh: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a new fragment."""

    pipeline: Pipeline
    fragment: Fragment
    registers: LabelSet


@dataclass(frozen=True, slots=True)
class NextChunk:
    """Then ``Chunk``, ``Intent``, ``End`` or ``Failed``."""


@dataclass(frozen=True, slots=True)
class Send:
    pipeline: Pipeline
    data: bytes | memoryview
    delta: int


@dataclass(frozen=True, slots=True)
class Seal:
    """Then ``ContentSealed``."""

    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Commit:
    """Propose to all members. Then ``Answered``."""

    pipeline: Pipeline
    fragment: Fragment
    registers: LabelSet


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """All members hold the bytes below `through`, or have agreed to go on from there."""

    pipeline: Pipeline
    through: int


@dataclass(frozen=True, slots=True)
class Show:
    """``Acknowledge``, and then ``Shown``."""

    pipeline: Pipeline
    through: int


@dataclass(frozen=True, slots=True)
class Proxy:
    """Hand the request to the primary."""

    resolution: Resolution


@dataclass(frozen=True, slots=True)
class Finish:
    outcome: AppendOutcome


@dataclass(frozen=True, slots=True)
class Fail:
    error: GazetteError


@dataclass(frozen=True, slots=True)
class Abandon:
    """There is nobody left to answer."""


Effect = (
    Resolve
    | TakePipeline
    | GiveBack
    | TakeSpool
    | ReadHead
    | Prepare
    | Release
    | Open
    | Synchronise
    | ShutDown
    | Advertise
    | EpochOpened
    | Voided
    | SetSuspend
    | AwaitReady
    | Begin
    | NextChunk
    | Send
    | Seal
    | Commit
    | Acknowledge
    | Show
    | Proxy
    | Finish
    | Fail
    | Abandon
)

Effects = tuple[Effect, ...]
