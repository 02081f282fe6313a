"""WatchStream: one watch on one member, as answers of ours. When it ends, for whatever reason, it raises."""

from __future__ import annotations

import asyncio

import grpc

from allocator.etcd_errors import CompactedError, EtcdUnavailableError
from allocator.etcd_failure import cancellation_of, error_of
from allocator.gen import etcd_pb2 as pb
from allocator.key_event import DeletedKey, EtcdHeader, StoredKey, WatchEvents, WatchProgress


class WatchStream:
    def __init__(self, call: grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse], endpoint: str) -> None:
        self.endpoint = endpoint
        self._call = call
        self._watch_id = 0

    async def begin(self, request: pb.WatchRequest, timeout_s: float) -> None:
        """Returns when the member has taken the watch on."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._call.write(request)
                answer = await self._answer()
        except grpc.aio.AioRpcError as error:
            raise error_of(error, self.endpoint) from error
        except TimeoutError as error:
            raise EtcdUnavailableError(f"{self.endpoint}: no answer to a watch", maybe_applied=False) from error
        self._watch_id = answer.watch_id

    async def read(self, timeout_s: float) -> WatchEvents | WatchProgress:
        """What comes next. All events of one revision come together."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._answer()
                events = [_event(event) for event in answer.events]
                while answer.fragment:
                    answer = await self._answer()
                    events.extend(map(_event, answer.events))
        except TimeoutError as error:
            text = f"{self.endpoint}: nothing heard for {timeout_s:g} s"
            raise EtcdUnavailableError(text, maybe_applied=False) from error
        header = header_of(answer.header)
        if events:
            return WatchEvents(header, events)
        # What etcd says of this watch went the way that events go. An answer to a request bears no watch's number, and
        # that a watch was created says nothing of what it has been sent.
        is_complete = answer.watch_id == self._watch_id and not answer.created
        return WatchProgress(header, is_complete)

    async def request_progress(self) -> None:
        """Ask for a sign of life. If the stream has ended, whoever reads it will hear."""
        try:
            await self._call.write(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    async def _answer(self) -> pb.WatchResponse:
        try:
            answer = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise error_of(error, self.endpoint) from error
        if not isinstance(answer, pb.WatchResponse):
            raise EtcdUnavailableError(f"{self.endpoint}: closed the watch in silence", maybe_applied=False)
        if answer.compact_revision:
            raise CompactedError(answer.compact_revision)
        if answer.canceled:
            raise cancellation_of(answer.cancel_reason, self.endpoint)
        return answer


def watch_request(begin: bytes, end: bytes, start_revision: int) -> pb.WatchRequest:
    """With progress, so that a quiet watch can be resumed after a compaction; in fragments, as a thousand revisions
    in one answer may be more than a message can hold."""
    create = pb.WatchCreateRequest(
        key=begin, range_end=end, start_revision=start_revision, progress_notify=True, fragment=True
    )
    return pb.WatchRequest(create_request=create)


def header_of(header: pb.ResponseHeader) -> EtcdHeader:
    return EtcdHeader(header.cluster_id, header.member_id, header.revision, header.raft_term)


def stored_key(kv: pb.KeyValue) -> StoredKey:
    return StoredKey(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def _event(event: pb.Event) -> StoredKey | DeletedKey:
    if event.type == pb.Event.DELETE:
        return DeletedKey(event.kv.key, event.kv.mod_revision)
    return stored_key(event.kv)
