"""Read: the bytes of a journal from an offset on, out of the spools here, out of its stores, or from another broker.

The answer is a sequence of groups: a message that says which fragment serves the offset, and its content. What is sent
is never queued: whoever does not take a message holds up the reading of the one after the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from broker.answer_header import answer_header, forwarded_header
from broker.local_replica import LocalReplica
from broker.notice import Notice
from broker.read_cursor import AwaitAcks, AwaitChange, Over, ReadCursor
from broker.read_message import content_length, content_message
from broker.replica_change import wait_change
from broker.resolution import EVERYTHING, Resolution, Wanted
from broker.resolver import Resolver
from broker.resolving import resolve
from broker.served_bytes import ServedBytes
from broker.spool_chunks import Pace, SpoolChunks
from fragment.fragment_reader import StoredObject
from fragment.fragment_reader import read as read_fragment
from fragment.index import Found, NotYetAvailable
from fragment.spool_file import SpoolFile
from fragment.stores.blob_store import BlobStore
from protocol.errors import Status
from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb
from protocol.identifier import strip_meta
from protocol.route import Header
from protocol.selector import LabelSelector

SIGNED_S = 60.0
ACK_WAIT_S = 1.0
"""How long a reader waits for what is written here to be acknowledged. It takes as long as a peer takes to answer."""

OpenStore = Callable[[str], Awaitable[BlobStore]]
ProxyRead = Callable[[Resolution, pb.ReadRequest], AsyncGenerator[bytes, None]]
"""Sends a request to a member of the resolution's Route, which is any of them; yields what comes back, as it comes."""

Messages = AsyncGenerator[pb.ReadResponse | bytes, None]
"""Those with content are serialised already."""


@dataclass(frozen=True, slots=True)
class ReadApi:
    resolver: Resolver[SpoolFile]
    open_store: OpenStore
    chunks: SpoolChunks
    proxy: ProxyRead
    # When this broker goes, reads that it relays have to end: they may go on for ever otherwise.
    stop_proxying: Notice
    ack_wait_s: float = ACK_WAIT_S
    # What others have handed out, and we have passed on, counts with them.
    served: ServedBytes = field(default_factory=ServedBytes)

    async def read(self, request: pb.ReadRequest, selector: LabelSelector = EVERYTHING) -> Messages:
        """The answers to a request that was found valid, of one who may see what `selector` matches.

        Leave it early only by way of ``contextlib.aclosing``.
        """
        resolution = await resolve(
            self.resolver,
            Wanted(
                strip_meta(request.journal),
                may_proxy=not request.do_not_proxy,
                min_revision=request.min_etcd_revision,
                header=Header.from_proto(request.header) if request.HasField("header") else None,
                selector=selector,
            ),
        )
        status = read_status(resolution)
        if status is not Status.OK:
            yield pb.ReadResponse(status=pb.Status.ValueType(status), header=answer_header(resolution))
            return
        if resolution.is_local:
            source: Messages = self._local(resolution, request)
        else:
            source = self._proxied(resolution, request)
        async with aclosing(source) as messages:
            async for message in messages:
                yield message

    async def _local(self, resolution: Resolution, request: pb.ReadRequest) -> Messages:
        replica = resolution.replica
        assert isinstance(replica, LocalReplica)
        cursor = ReadCursor(
            replica,
            request.offset,
            block=request.block,
            metadata_only=request.metadata_only,
            begin_mod_time=request.begin_mod_time,
        )
        header: pb.Header | None = answer_header(resolution)
        name = strip_meta(request.journal)
        end_offset, pace = request.end_offset, Pace()
        while (found := await _next(replica, cursor, self.ack_wait_s)) is not None:
            if isinstance(found, NotYetAvailable):
                yield pb.ReadResponse(
                    status=pb.OFFSET_NOT_YET_AVAILABLE,
                    header=header,
                    offset=found.offset,
                    write_head=found.write_head,
                )
                return
            yield await self._metadata(found, header)
            header = None
            is_elsewhere = found.file is None and request.do_not_proxy
            if request.metadata_only or is_elsewhere or 0 < end_offset <= found.offset:
                return
            end = min(found.fragment.end, end_offset) if end_offset else found.fragment.end
            async with aclosing(self._content(found, end, pace)) as messages:
                async for message in messages:
                    yield message
                    self.served.add(name, content_length(message))
            if end == end_offset:
                return
            cursor.offset = end

    async def _metadata(self, found: Found[SpoolFile], header: pb.Header | None) -> pb.ReadResponse:
        fragment = found.fragment
        response = pb.ReadResponse(
            header=header, offset=found.offset, write_head=found.write_head, fragment=fragment.to_proto()
        )
        if fragment.backing_store and fragment.mod_time:
            store = await self.open_store(fragment.backing_store)
            response.fragment_url = await store.sign_get(fragment.content_path, SIGNED_S)
        return response

    def _content(self, found: Found[SpoolFile], end: int, pace: Pace) -> AsyncGenerator[bytes, None]:
        if found.file is not None:
            return self.chunks.messages(found.file, found.offset, end, pace)
        return self._stored(found.fragment, found.offset, end, pace)

    async def _stored(self, fragment: Fragment, begin: int, end: int, pace: Pace) -> AsyncGenerator[bytes, None]:
        store = await self.open_store(fragment.backing_store)
        source = StoredObject(store, fragment.content_path)
        async with aclosing(read_fragment(fragment, source, begin, end)) as pieces:
            async for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    chunk, rest = rest[: pace.chunk_bytes], rest[pace.chunk_bytes :]
                    yield content_message(begin, chunk)
                    begin += len(chunk)
                    pace.taken()

    async def _proxied(self, resolution: Resolution, request: pb.ReadRequest) -> Messages:
        forwarded = pb.ReadRequest()
        forwarded.CopyFrom(request)
        forwarded.header.CopyFrom(forwarded_header(resolution))
        async with aclosing(self.proxy(resolution, forwarded)) as messages:
            while (message := await _next_unless(self.stop_proxying, messages)) is not None:
                yield message


def read_status(resolution: Resolution) -> Status:
    """Whether the journal may be read, at all and here."""
    if resolution.status is Status.OK and not resolution.spec.may_read:
        return Status.NOT_ALLOWED
    return resolution.status


async def _next(
    replica: LocalReplica, cursor: ReadCursor[SpoolFile], ack_wait_s: float
) -> Found[SpoolFile] | NotYetAvailable | None:
    """What the cursor comes to. None if there is nothing, and nothing to wait for any more."""
    while True:
        match cursor.step():
            case AwaitChange():
                await wait_change(replica)
            case AwaitAcks(through):
                with suppress(TimeoutError):
                    async with asyncio.timeout(ack_wait_s):
                        while not cursor.has_reached(through):
                            await wait_change(replica)
            case Over():
                return None
            case found:
                return found


async def _next_unless(stop: Notice, messages: AsyncGenerator[bytes, None]) -> bytes | None:
    """The next message; None if there is none, or if we are told to stop before it comes."""
    if stop.is_fired:
        return None
    loop = asyncio.get_running_loop()
    scope = asyncio.timeout(None)
    try:
        async with scope:
            forget = stop.listen(lambda: scope.reschedule(loop.time()))
            try:
                return await anext(messages, None)
            finally:
                forget()
    except TimeoutError:
        if not scope.expired():
            raise
        return None
