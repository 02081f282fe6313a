"""EtcdClient: etcd's calls in our values. What is not used is not here.

Every call has a deadline. Reads, and writes of which it is known that nothing happened, are tried at each endpoint in
turn within it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType

import grpc

from allocator.etcd_connections import Endpoint, EtcdConnections, Metadata, Method
from allocator.etcd_errors import (
    AnswerTooLargeError,
    CompactedError,
    EtcdUnavailableError,
    LeaseNotFoundError,
)
from allocator.etcd_failure import error_of
from allocator.etcd_watch import WatchStream, header_of, stored_key, watch_request
from allocator.gen import etcd_pb2 as pb
from allocator.key_event import EtcdHeader, Listing, StoredKey
from allocator.transaction import KEEP_LEASE, Compare, Delete, Put, Target, Transaction

TIMEOUT_S = 10.0
# etcd counts what is left of the prefix for every page: with 100,000 keys, pages of 1000 take twice as long.
PAGE_KEYS = 4000
# How often a listing begins anew because etcd compacted its revision away meanwhile.
_LISTINGS_MAX = 3

_RANGE = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse, is_repeatable=True)
_PUT = Method("/etcdserverpb.KV/Put", pb.PutRequest, pb.PutResponse, is_repeatable=False)
_DELETE = Method("/etcdserverpb.KV/DeleteRange", pb.DeleteRangeRequest, pb.DeleteRangeResponse, is_repeatable=False)
_TXN = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse, is_repeatable=False)
# A lease that was granted twice is one lease and another that runs out unused.
_GRANT = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse, is_repeatable=True)
_REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse, is_repeatable=True)
_KEEP_ALIVE = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse, is_repeatable=True
)
_STATUS = Method("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse, is_repeatable=True)
_WATCH = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse, is_repeatable=True)


@dataclass(frozen=True, slots=True)
class Committed:
    """How a transaction went. Where the comparisons did not hold, the revision is merely that of the store."""

    succeeded: bool
    header: EtcdHeader


@dataclass(frozen=True, slots=True)
class GrantedLease:
    lease_id: int
    # As granted, which may be more than was asked for.
    ttl_s: int


@dataclass(frozen=True, slots=True)
class EtcdStatus:
    header: EtcdHeader
    version: str
    db_bytes: int
    # Of the members; zero where there is none.
    leader_id: int
    errors: tuple[str, ...]


class EtcdClient:
    def __init__(self, connections: EtcdConnections, *, timeout_s: float = TIMEOUT_S) -> None:
        self._connections = connections
        self._timeout_s = timeout_s

    async def __aenter__(self) -> EtcdClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connections.close()

    # Keys.

    async def get(self, key: str) -> StoredKey | None:
        answer = await self._connections.unary(_RANGE, pb.RangeRequest(key=key.encode()), self._timeout_s)
        return stored_key(answer.kvs[0]) if answer.kvs else None

    async def header(self, key: str) -> EtcdHeader:
        """The store's revision at this moment, agreed on by a majority. `key` is one that we may read, if it is."""
        request = pb.RangeRequest(key=key.encode(), count_only=True)
        return header_of((await self._connections.unary(_RANGE, request, self._timeout_s)).header)

    async def list_prefix(self, prefix: str, revision: int | None = None, *, keys_only: bool = False) -> Listing:
        """Everything under `prefix` at one revision, now if none is given, page by page.

        Raises a CompactedError if the revision asked for is gone. The revision of "now" may go as well, if the
        listing takes longer than etcd keeps it: then it begins again.
        """
        for _ in range(_LISTINGS_MAX - 1):
            try:
                return await self._list_pages(prefix, revision, keys_only)
            except CompactedError:
                if revision is not None:
                    raise
        return await self._list_pages(prefix, revision, keys_only)

    async def _list_pages(self, prefix: str, revision: int | None, keys_only: bool) -> Listing:
        begin, end = prefix.encode(), prefix_end(prefix.encode())
        header: EtcdHeader | None = None
        found: list[StoredKey] = []
        page_keys = PAGE_KEYS
        while True:
            request = pb.RangeRequest(
                key=begin, range_end=end, limit=page_keys, revision=revision or 0, keys_only=keys_only
            )
            try:
                answer = await self._connections.unary(_RANGE, request, self._timeout_s)
            except AnswerTooLargeError:
                if page_keys == 1:
                    raise
                page_keys = max(1, page_keys // 8)
                continue
            # Later pages may say more of the store, but they are read at this revision.
            header = header or header_of(answer.header)
            revision = revision or header.revision
            found.extend(map(stored_key, answer.kvs))
            if not answer.more:
                return Listing(header._replace(revision=revision), found)
            begin = found[-1].key + b"\0"

    async def put(self, key: str, value: bytes, lease: int = 0) -> EtcdHeader:
        request = _put_request(Put(key, value, lease))
        return header_of((await self._connections.unary(_PUT, request, self._timeout_s)).header)

    async def delete(self, key: str) -> EtcdHeader:
        request = pb.DeleteRangeRequest(key=key.encode())
        return header_of((await self._connections.unary(_DELETE, request, self._timeout_s)).header)

    async def commit(self, transaction: Transaction) -> Committed:
        request = pb.TxnRequest(
            compare=map(_compare, transaction.compares), success=map(_operation, transaction.operations)
        )
        answer = await self._connections.unary(_TXN, request, self._timeout_s)
        return Committed(answer.succeeded, header_of(answer.header))

    @asynccontextmanager
    async def watch(self, prefix: str, start_revision: int) -> AsyncIterator[WatchStream]:
        """Events under `prefix` from `start_revision` on, from the endpoint in use. It is not resumed for you."""
        endpoint = self._connections.current
        try:
            metadata = await self._connections.fresh_metadata(endpoint, self._timeout_s)
            call = endpoint.stream(_WATCH, metadata, None)
            stream = WatchStream(call, endpoint.url)
            try:
                await stream.begin(
                    watch_request(prefix.encode(), prefix_end(prefix.encode()), start_revision), self._timeout_s
                )
                yield stream
            finally:
                call.cancel()
        except EtcdUnavailableError:
            self._connections.leave(endpoint)
            raise

    # Leases.

    async def grant_lease(self, ttl_s: int) -> GrantedLease:
        answer = await self._connections.unary(_GRANT, pb.LeaseGrantRequest(TTL=ttl_s), self._timeout_s)
        return GrantedLease(answer.ID, answer.TTL)

    async def keep_alive(self, lease_id: int, timeout_s: float) -> int:
        """The seconds that the lease has got from when this was asked. Raises a LeaseNotFoundError if it is gone."""

        async def once(endpoint: Endpoint, metadata: Metadata, left_s: float) -> pb.LeaseKeepAliveResponse:
            # A stream for one question: an answer can then never belong to an earlier one.
            call = endpoint.stream(_KEEP_ALIVE, metadata, left_s)
            try:
                await call.write(pb.LeaseKeepAliveRequest(ID=lease_id))
                answer = await call.read()
            except grpc.aio.AioRpcError as error:
                raise error_of(error, endpoint.url) from error
            finally:
                call.cancel()
            if not isinstance(answer, pb.LeaseKeepAliveResponse):
                raise EtcdUnavailableError(f"{endpoint.url}: closed without an answer", maybe_applied=True)
            return answer

        answer = await self._connections.attempts(once, timeout_s, is_repeatable=True)
        if answer.TTL <= 0:
            raise LeaseNotFoundError("the lease has run out or was revoked")
        return answer.TTL

    async def revoke_lease(self, lease_id: int) -> None:
        """Deletes its keys, in one revision. Raises a LeaseNotFoundError if there is no such lease (any more)."""
        await self._connections.unary(_REVOKE, pb.LeaseRevokeRequest(ID=lease_id), self._timeout_s)

    # Maintenance.

    async def status(self) -> EtcdStatus:
        """Of the member in use."""
        answer = await self._connections.unary(_STATUS, pb.StatusRequest(), self._timeout_s)
        return EtcdStatus(header_of(answer.header), answer.version, answer.dbSize, answer.leader, tuple(answer.errors))


def prefix_end(prefix: bytes) -> bytes:
    """The least key above all that begin with `prefix`; etcd's word for "no bound" if there is none.

    >>> prefix_end(b"/gazette/cluster")
    b'/gazette/clustes'
    >>> prefix_end(b"")
    b'\\x00'
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"


_TARGETS = {
    Target.VERSION: pb.Compare.CompareTarget.VERSION,
    Target.CREATE: pb.Compare.CompareTarget.CREATE,
    Target.MOD: pb.Compare.CompareTarget.MOD,
}


def _compare(compare: Compare) -> pb.Compare:
    request = pb.Compare(key=compare.key.encode(), target=_TARGETS[compare.target])
    # The name of a Target is that of the field.
    setattr(request, compare.target.value, compare.equals)
    return request


def _operation(operation: Put | Delete) -> pb.RequestOp:
    match operation:
        case Put():
            return pb.RequestOp(request_put=_put_request(operation))
        case Delete(key):
            return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key.encode()))


def _put_request(put: Put) -> pb.PutRequest:
    if put.lease == KEEP_LEASE:
        return pb.PutRequest(key=put.key.encode(), value=put.value, ignore_lease=True)
    return pb.PutRequest(key=put.key.encode(), value=put.value, lease=put.lease)
