"""ReadCursor: where a reader of a replica is, and what it gets next or has to wait for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, Protocol

from fragment.index import WRITE_HEAD, FileT, Found, Index, NotYetAvailable


class ReadReplica(Protocol[FileT]):
    """What a reader looks at."""

    @property
    def index(self) -> Index[FileT]: ...

    @property
    def is_stopped(self) -> bool: ...

    @property
    def acked_end(self) -> int:
        """Through where the journal is known to be acknowledged, whether or not the bytes are here."""
        ...

    @property
    def applied_end(self) -> int:
        """The end of what is committed here and not shown to readers yet; zero if there is nothing of the kind."""
        ...

    def query(self, offset: int, begin_mod_time: int) -> Found[FileT] | NotYetAvailable:
        """As the index has it now."""
        ...


@dataclass(frozen=True, slots=True)
class AwaitChange:
    """Wait until the index changes or the replica is stopped, then take the next step."""


@dataclass(frozen=True, slots=True)
class AwaitAcks:
    """Wait until readers have the bytes below `through` or the replica is stopped, for a moment at most, then take the
    next step."""

    through: int


@dataclass(frozen=True, slots=True)
class Over:
    """There is nothing, and nothing to wait for any more: this broker has given up the journal."""


class ReadCursor(Generic[FileT]):
    def __init__(
        self,
        replica: ReadReplica[FileT],
        offset: int,
        *,
        block: bool,
        metadata_only: bool = False,
        begin_mod_time: int = 0,
    ) -> None:
        self.offset = offset
        self._replica = replica
        self._block = block
        self._metadata_only = metadata_only
        self._begin_mod_time = begin_mod_time
        self._is_placed = False
        # Whether it may still wait for acknowledgements: once, since there may always be more to wait for.
        self._may_wait = True

    def step(self) -> Found[FileT] | NotYetAvailable | AwaitChange | AwaitAcks | Over:
        """Whoever begins to wait for a change without a pause misses none."""
        replica = self._replica
        if not self._is_placed:
            needs_head = self.offset == WRITE_HEAD or self._metadata_only
            if needs_head and (awaited := self._awaited()) is not None:
                return awaited
            self._is_placed = True
            if self.offset == WRITE_HEAD:
                self.offset = max(replica.index.summary().end, replica.acked_end)
        found = replica.query(self.offset, self._begin_mod_time)
        if replica.acked_end > found.write_head:
            # One that has just joined has not seen those bytes, but knows of them: they are with others.
            found = replace(found, write_head=replica.acked_end)
        if isinstance(found, Found):
            return found
        # The write head was meant as it stood when the reader came.
        self.offset = found.offset
        if self._block:
            return Over() if replica.is_stopped else AwaitChange()
        return self._awaited() or found

    def has_reached(self, through: int) -> bool:
        """Whether there is no more to wait for."""
        return self._replica.index.summary().end >= through or self._replica.is_stopped

    def _awaited(self) -> AwaitAcks | None:
        """Let the index catch up with what is committed here.

        A client whose append was acknowledged by the primary expects to read it here at once, and we are told of the
        acknowledgement a moment later than the client is.
        """
        applied = self._replica.applied_end
        if not self._may_wait or self._replica.index.summary().end >= applied:
            return None
        self._may_wait = False
        return AwaitAcks(applied)
