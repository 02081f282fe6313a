"""SpoolWriter: performs the effects of a Spool on its files.

It blocks: whoever holds the spool runs it on a worker thread, one call at a time. What others have to hear of
(readers, the persister) comes back as a value and is told by the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import assert_never

from fragment.spool import (
    Abandoned,
    Completed,
    Effect,
    Proposal,
    Record,
    Reply,
    Spool,
    Sync,
    Visible,
    Write,
)
from fragment.spool_directory import SpoolDirectory
from fragment.spool_file import SpoolFile
from protocol.errors import GazetteError
from protocol.fragment import Fragment


@dataclass(frozen=True, slots=True)
class LocalFragment:
    """Bytes that readers may have, and the file they are in, from its beginning."""

    fragment: Fragment
    file: SpoolFile


@dataclass(frozen=True, slots=True)
class CompletedSpool:
    """A spool that is not written any more. Its commits may still wait to be acknowledged."""

    spool: Spool
    file: SpoolFile
    # Whether its epoch is over, or a later record of it is on disk: then this one's log may go with its content.
    is_superseded: bool = False


@dataclass(frozen=True, slots=True)
class Performed:
    """What came of a step."""

    reply: Reply | None
    visible: tuple[LocalFragment, ...] = ()
    completed: CompletedSpool | None = None


class SpoolWriter:
    """A Spool, its files, and nothing else."""

    def __init__(
        self, journal: str, directory: SpoolDirectory, spec: Callable[[], bytes], create_revision: int = 0
    ) -> None:
        """`spec` gives the journal's current spec as protobuf: a copy that outlives it must know where to go, and of
        which incarnation it is."""
        self.spool = Spool.fresh(journal)
        self._create_revision = create_revision
        self._directory = directory
        self._spec = spec
        self._file: SpoolFile | None = None
        # The file of a fragment that a roll begins, until the one before it is handed on.
        self._begun: SpoolFile | None = None
        # Of fragments that are complete but have commits that no reader has been shown yet.
        self._completed: dict[int, SpoolFile] = {}

    @property
    def has_ended(self) -> bool:
        """Whether the file takes no more writes."""
        return self._file is not None and self._file.has_ended

    def content(self, data: bytes | memoryview, content_delta: int) -> None:
        """Take in content. If it cannot be written, it is as if it had not come."""
        spool, write = self.spool.content(data, content_delta)
        self._write(write)
        self.spool = spool

    def propose(self, proposal: Proposal) -> Performed:
        """Take in a proposal. If what it asks for cannot be done, it is as if it had not come."""
        try:
            return self._perform(*self.spool.propose(proposal))
        finally:
            # Left only if a roll failed before the file it began was taken into use.
            if self._begun:
                self._begun.remove()
                self._begun = None

    def acked(self, through: int) -> Performed:
        return self._perform(*self.spool.acked(through))

    def roll_back(self) -> Performed:
        """Forget the pending content, as when the stream that sent it ends.

        If the file takes no more writes, this is the end of it: the spool is handed on, and goes on empty in another.
        """
        self.spool = self.spool.rolled_back()
        if self.has_ended:
            return self.complete()
        return Performed(None)

    def complete(self) -> Performed:
        """Hand the spool on, as when the replica is given up."""
        return self._perform(*self.spool.complete())

    def retire(self) -> Performed:
        """Hand the spool on, and go on as one that knows nothing of the journal."""
        return self._perform(*self.spool.retired())

    def unplace(self) -> Performed:
        """Be ready to take part in a synchronisation."""
        return self._perform(*self.spool.unplaced())

    def _perform(self, spool: Spool, effects: tuple[Effect, ...]) -> Performed:
        try:
            return self._perform_all(spool, effects)
        except Exception:
            # A fragment that could not be begun is not begun: its file must not be taken for the next one's.
            begun, self._begun = self._begun, None
            if begun is not None:
                with suppress(GazetteError, OSError):
                    begun.remove()
            raise

    def _perform_all(self, spool: Spool, effects: tuple[Effect, ...]) -> Performed:
        reply: Reply | None = None
        completed: CompletedSpool | None = None
        visible: list[LocalFragment] = []
        for effect in effects:
            match effect:
                case Sync():
                    self._sync()
                case Record(recorded):
                    self._record(recorded)
                case Completed(whole, is_superseded):
                    completed = self._hand_on(whole, is_superseded)
                case Abandoned():
                    self._abandon()
                case Visible(fragment):
                    visible.append(LocalFragment(fragment, self._file_of(fragment)))
                case Reply():
                    reply = effect
                case Write():
                    self._write(effect)
                case _:
                    assert_never(effect)
        self.spool = spool
        if self._completed:
            waiting = {fragment.begin for fragment in spool.unseen}
            self._completed = {begin: file for begin, file in self._completed.items() if begin in waiting}
        return Performed(reply, tuple(visible), completed)

    def _write(self, write: Write) -> None:
        if self._file is None:
            self._file = self._directory.create(self.spool.fragment, self._create_revision)
        self._file.write(write.position, write.data)

    def _sync(self) -> None:
        if self._directory.syncs_commits and (file := self._begun or self._file):
            file.sync()

    def _record(self, spool: Spool) -> None:
        """Record into the file of that fragment, which a roll may be just beginning."""
        file = self._file
        if file is None or file.begin != spool.fragment.begin:
            file = self._begun = self._directory.create(spool.fragment, self._create_revision)
        file.record(spool, self._spec())

    def _hand_on(self, spool: Spool, is_superseded: bool) -> CompletedSpool | None:
        file, self._file, self._begun = self._file, self._begun, None
        if file is None:
            return None
        self._completed[spool.fragment.begin] = file
        return CompletedSpool(spool, file, is_superseded)

    def _abandon(self) -> None:
        if self._file:
            self._file.remove()
        self._file, self._begun = self._begun, None

    def _file_of(self, fragment: Fragment) -> SpoolFile:
        if self._file and self._file.begin == fragment.begin:
            return self._file
        return self._completed[fragment.begin]
