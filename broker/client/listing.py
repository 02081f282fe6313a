"""Listing: the journals that match a selector, as of one revision of etcd; and how a stream of messages becomes one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from broker.client.outcome import FailedCallError
from protocol.errors import RefusedError, Status, ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.journal import JournalSpec
from protocol.journal_rpc_validation import check_listed_journal
from protocol.route import Route
from protocol.validation import validate


@dataclass(frozen=True, slots=True)
class ListedJournal:
    spec: JournalSpec
    # What a change of the spec has to expect.
    mod_revision: int
    create_revision: int
    route: Route

    @classmethod
    def from_proto(cls, message: pb.ListResponse.Journal) -> ListedJournal:
        return cls(
            JournalSpec.from_proto(message.spec),
            message.mod_revision,
            message.create_revision,
            Route.from_proto(message.route),
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """In ascending order of names."""

    revision: int
    journals: tuple[ListedJournal, ...]

    def __iter__(self) -> Iterator[ListedJournal]:
        return iter(self.journals)

    def __len__(self) -> int:
        return len(self.journals)

    @property
    def names(self) -> list[str]:
        return [journal.spec.name for journal in self.journals]


class ListingBuilder:
    """Messages of one stream in, whole listings out: never a part of one.

    The first message of a listing has a header, those after it have journals alone. A watch ends each of them by a
    message with nothing in it.
    """

    def __init__(self, resumed: pb.Header | None = None) -> None:
        # Of the listing that is being built, and then of the last whole one, which is where a watch is resumed.
        self.header = resumed
        self._begun: pb.Header | None = None
        self._journals: list[ListedJournal] = []

    def feed(self, message: pb.ListResponse) -> Listing | None:
        """The listing that this message completes. Raises a RefusedError or a FailedCallError."""
        if self._begun is None:
            self._begin(message)
        elif not message.journals:
            return self._whole()
        try:
            for journal in message.journals:
                check_listed_journal(journal)
                self._journals.append(ListedJournal.from_proto(journal))
        except ValidationError as error:
            raise FailedCallError(f"a listing makes no sense: {error}") from error
        return None

    def end(self) -> Listing:
        """The stream of a listing that is not watched has ended."""
        if self._begun is None:
            raise FailedCallError("a listing ended before it had begun")
        return self._whole()

    def _begin(self, message: pb.ListResponse) -> None:
        try:
            validate(message)
        except ValidationError as error:
            raise FailedCallError(f"a listing makes no sense: {error}") from error
        if message.status != pb.OK:
            raise RefusedError(Status(message.status))
        if self.header is not None and message.header.etcd.revision <= self.header.etcd.revision:
            raise FailedCallError("a watched listing did not advance")
        self._begun = message.header

    def _whole(self) -> Listing:
        assert self._begun is not None
        listing = Listing(self._begun.etcd.revision, tuple(self._journals))
        self.header, self._begun, self._journals = self._begun, None, []
        return listing
