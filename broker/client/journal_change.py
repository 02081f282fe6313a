"""Changes of specs: what an Apply is made of, in requests that etcd takes at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from protocol.gen import journal_pb2 as pb
from protocol.journal import JournalSpec

CHANGES_MAX = 100
"""In one request: etcd does up to 128 operations at once by default, and Go brokers need some for themselves."""
REQUEST_BYTES_MAX = 1 << 19

ANY_REVISION = -1
"""Whatever there is."""
NEW = 0
"""There is nothing yet."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """Create a journal, or give it another spec. A `suspend` that a listing showed has to be passed on as it was."""

    spec: JournalSpec
    # The one at which the spec was listed.
    expect_revision: int = NEW

    def to_proto(self) -> pb.ApplyRequest.Change:
        return pb.ApplyRequest.Change(expect_mod_revision=self.expect_revision, upsert=self.spec.to_proto())


@dataclass(frozen=True, slots=True)
class Delete:
    journal: str
    expect_revision: int

    def to_proto(self) -> pb.ApplyRequest.Change:
        return pb.ApplyRequest.Change(expect_mod_revision=self.expect_revision, delete=self.journal)


Change = Upsert | Delete | pb.ApplyRequest.Change


def requests_of(changes: Iterable[Change], changes_max: int = CHANGES_MAX) -> Iterator[pb.ApplyRequest]:
    """The changes in their order, in as few requests as will do. Each is done wholly or not at all.

    >>> [len(request.changes) for request in requests_of([Delete("acme/orders", 7)] * 5, changes_max=2)]
    [2, 2, 1]
    """
    request = pb.ApplyRequest()
    size = 0
    for change in changes:
        message = change if isinstance(change, pb.ApplyRequest.Change) else change.to_proto()
        size += message.ByteSize()
        if len(request.changes) == changes_max or (request.changes and size > REQUEST_BYTES_MAX):
            yield request
            request, size = pb.ApplyRequest(), message.ByteSize()
        request.changes.append(message)
    if request.changes:
        yield request
