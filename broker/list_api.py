"""List: the journals that a selector matches, with who holds them; and again whenever their specs change, if asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from allocator.key_value import KeyValue
from allocator.keys import members_prefix
from allocator.keyspace_view import KeySpaceView
from broker.answer_header import own_header
from broker.broker_member import BrokerMember
from broker.cluster_keys import BrokerEntity
from broker.durable_head import DurableHead
from broker.head_status import head_status
from broker.journal_changes import JournalChanges
from broker.listing import Selection, snapshot
from broker.resolution import EVERYTHING, REVISION_WAIT_S
from protocol.errors import UnavailableError
from protocol.gen import journal_pb2 as pb
from protocol.route import ProcessId
from protocol.selector import LabelSelector

TURN_JOURNALS = 500
"""So many are matched before others get their turn, which takes some 2 ms."""


@dataclass(frozen=True, slots=True)
class ListApi:
    changes: JournalChanges
    root: str
    own_id: ProcessId
    # All that is on record of the heads of journals. Raises an UnavailableError.
    read_heads: Callable[[], Awaitable[Mapping[str, DurableHead]]]
    # How long one that is resumed waits for this broker to know what the client knows already.
    revision_wait_s: float = REVISION_WAIT_S

    async def list_journals(
        self, request: pb.ListRequest, selector: LabelSelector = EVERYTHING
    ) -> AsyncGenerator[pb.ListResponse, None]:
        """The answers to a request that was found valid, of one who may see what `selector` matches.

        One that watches never ends by itself. An empty message follows each of its snapshots. Who only holds the
        journals does not make for another one: that would be news without end while a cluster finds its balance.
        """
        selection = Selection(LabelSelector.from_proto(request.selector), selector)
        if request.watch and request.HasField("watch_resume"):
            await self._wait_later(request.watch_resume.etcd.revision)
        while True:
            count, view = self.changes.count, self.changes.view
            heads = await self.read_heads() if request.heads else None
            async with aclosing(self._snapshot(selection, view)) as messages:
                async for message in messages:
                    if heads is not None:
                        self._add_heads(message, heads, view)
                    yield message
            if not request.watch:
                return
            yield pb.ListResponse()
            await self._wait_touched(selection, count)

    async def _wait_later(self, resumed: int) -> None:
        """Until there is something after revision `resumed`: a client takes none that is not later than its last.
        That may be long, but the revision itself is one that etcd has had. Raises an UnavailableError."""
        try:
            async with asyncio.timeout(self.revision_wait_s):
                await self.changes.wait_revision(resumed)
        except TimeoutError as error:
            raise UnavailableError(
                f"this broker is at revision {self.changes.view.revision} of etcd and has waited "
                f"{self.revision_wait_s:g} s for revision {resumed}, from which the watch is resumed: is it of this "
                "cluster?"
            ) from error
        await self.changes.wait_revision(resumed + 1)

    async def _snapshot(
        self, selection: Selection, view: KeySpaceView[BrokerEntity]
    ) -> AsyncGenerator[pb.ListResponse, None]:
        header = own_header(view, self.root, self.own_id)
        matching = _matching(selection, selection.candidates(view, self.root))
        for response in snapshot(view, self.root, header, matching):
            if response is not None:
                yield response
            await asyncio.sleep(0)

    def _add_heads(
        self, message: pb.ListResponse, heads: Mapping[str, DurableHead], view: KeySpaceView[BrokerEntity]
    ) -> None:
        members = {
            kv.value.value.spool_id: "/".join(kv.value.value.id)
            for kv in view.prefixed(members_prefix(self.root))
            if isinstance(kv.value.value, BrokerMember)
        }
        for journal in message.journals:
            status = head_status(heads.get(journal.spec.name), journal.create_revision, members)
            journal.head.CopyFrom(status)

    async def _wait_touched(self, selection: Selection, count: int) -> None:
        """Until there is a change, after the first `count`, of a journal that is selected, or was before it."""
        while True:
            await self.changes.wait(count)
            changes = self.changes.since(count)
            if changes is None:
                return
            count = self.changes.count
            for number, change in enumerate(changes, start=1):
                if selection.touches(change):
                    return
                if number % TURN_JOURNALS == 0:
                    await asyncio.sleep(0)


def _matching(
    selection: Selection, candidates: Sequence[KeyValue[BrokerEntity]]
) -> Iterator[KeyValue[BrokerEntity] | None]:
    """Those that match, and a None after each so many that were looked at."""
    for number, kv in enumerate(candidates, start=1):
        if selection.matches(kv):
            yield kv
        if number % TURN_JOURNALS == 0:
            yield None
