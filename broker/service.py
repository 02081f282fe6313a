"""The Journal service: its RPCs, each handed to its own ``*_api`` on the terms that a client is owed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from google.protobuf.message import Message

from allocator.keys import Member, member_key
from broker.append_api import AppendCall, append
from broker.apply_api import ApplyApi
from broker.broker_member import KIN, BrokerMember
from broker.counted_call import CountedCall
from broker.fragments_api import FragmentsApi
from broker.journal_broker import JournalBroker
from broker.journal_changes import JournalChanges
from broker.journals import Answers
from broker.list_api import ListApi
from broker.metrics import BrokerCollector
from broker.notice import Notice
from broker.read_api import ReadApi
from broker.read_message import status_of
from broker.relay import relayed_fragments, relayed_read
from broker.replicate_api import replicate
from broker.resolution import EVERYTHING, Resolution
from broker.served_bytes import TOLD_AS
from broker.spool_chunks import SpoolChunks
from broker.store_health_api import StoreHealthApi
from broker.unpersisted import Unpersisted
from protocol.auth import Capability
from protocol.errors import PermissionDeniedError, Status
from protocol.gen import journal_pb2 as pb
from protocol.identifier import strip_meta
from protocol.label import CONTENT_TYPE
from protocol.route import ProcessId
from protocol.rpc.method import (
    AtExpiry,
    Call,
    RpcMethod,
    Rules,
    stream_stream,
    stream_unary,
    unary_stream,
    unary_unary,
)
from protocol.validation import validate

SERVICE = "protocol.Journal"

_LISTS = Rules(Capability.LIST, AtExpiry.END, is_long_lived=True)
_READS = Rules(Capability.READ, AtExpiry.END, is_long_lived=True)
# A stream between brokers outlives the token it began with.
_REPLICATES = Rules(Capability.REPLICATE, AtExpiry.GO_ON)


class _Apis:
    """Everything that a service hands its calls to."""

    def __init__(self, broker: JournalBroker) -> None:
        with_ = broker.surroundings
        watch, root, own_id = with_.watch, broker.root, broker.own_id
        changes = JournalChanges(watch.view)
        watch.observe(changes.observe)
        self.broker = broker
        # Fired when this broker goes: what it relays has no end of its own.
        self.stop_proxying = Notice()
        self.listing = ListApi(changes, root, own_id, broker.keeping.read_heads)
        self.applying = ApplyApi(with_.etcd, root, own_id, lambda: watch.view, watch.wait_revision)
        self.reading = ReadApi(
            broker.resolver, with_.stores.open, SpoolChunks(with_.readers), self._proxied_read, self.stop_proxying
        )
        self.fragments = FragmentsApi(broker.resolver, with_.stores.open, self._proxied_fragments)
        self.store_health = StoreHealthApi(root, own_id, lambda: watch.view, with_.stores.open, broker.healths.watched)

    def _proxied_read(self, resolution: Resolution, request: pb.ReadRequest) -> AsyncGenerator[bytes, None]:
        peers = self.broker.peers_of(resolution)
        return relayed_read(self.broker.surroundings.peers, peers, request.journal, request.SerializeToString())

    async def _proxied_fragments(self, resolution: Resolution, request: pb.FragmentsRequest) -> pb.FragmentsResponse:
        peers = self.broker.peers_of(resolution)
        channels = self.broker.surroundings.peers
        raw = await relayed_fragments(channels, peers, request.journal, request.SerializeToString())
        return pb.FragmentsResponse.FromString(raw)


class JournalService:
    """The Journals of this process, served as RPCs.

    Made before there is a broker to serve: a process has to know its port before it can be a member.
    """

    def __init__(self) -> None:
        self._apis: _Apis | None = None

    def begin(self, broker: JournalBroker) -> None:
        self._apis = _Apis(broker)

    def stop_proxying(self) -> None:
        if self._apis is not None:
            self._apis.stop_proxying.fire()

    @property
    def is_serving(self) -> bool:
        return self._apis is not None

    @property
    def _served(self) -> _Apis:
        assert self._apis is not None
        return self._apis

    def collector(self) -> BrokerCollector:
        return BrokerCollector(
            lambda: self._apis.broker.heads() if self._apis else (),
            lambda: self._apis.broker.unpersisted() if self._apis else Unpersisted(),
            lambda: self._apis.broker.replica_counts() if self._apis else (0, 0),
        )

    def methods(self) -> Sequence[RpcMethod[Any, Any]]:
        return (
            unary_stream("List", pb.ListRequest.FromString, _serialised, self.list_journals, _LISTS),
            unary_unary("Apply", pb.ApplyRequest.FromString, _serialised, self._apply, Rules(Capability.APPLY)),
            unary_stream("Read", pb.ReadRequest.FromString, _serialised, self._read, _READS),
            stream_unary("Append", _as_it_is, _as_it_is, self.append, Rules(Capability.APPEND)),
            stream_stream("Replicate", _as_it_is, _as_it_is, self._replicate, _REPLICATES),
            unary_unary(
                "ListFragments",
                pb.FragmentsRequest.FromString,
                _serialised,
                self._list_fragments,
                Rules(Capability.READ),
            ),
            unary_unary(
                "FragmentStoreHealth",
                pb.FragmentStoreHealthRequest.FromString,
                _serialised,
                self._store_health,
                Rules(Capability.READ),
            ),
        )

    async def list_journals(self, request: pb.ListRequest, answers: Answers[pb.ListResponse]) -> None:
        with CountedCall("List", is_open_ended=True):
            validate(request)
            async with aclosing(self._served.listing.list_journals(request, answers.claims.selector)) as responses:
                async for response in responses:
                    await answers.send(response)

    async def _apply(self, request: pb.ApplyRequest, call: Call[pb.ApplyRequest, pb.ApplyResponse]) -> pb.ApplyResponse:
        with CountedCall("Apply") as counted:
            validate(request)
            response = await self._served.applying.apply(request, call.claims.selector)
            counted.status = response.status
            return response

    async def _read(self, request: pb.ReadRequest, call: Call[pb.ReadRequest, pb.ReadResponse | bytes]) -> None:
        status = await self._answer_read(request, call)
        # Not to those who were told that there is no such journal.
        if request.metadata_only and status in (Status.OK, Status.OFFSET_NOT_YET_AVAILABLE):
            call.tell_at_end(TOLD_AS, str(self._served.reading.served.of(strip_meta(request.journal))))

    async def read(self, request: pb.ReadRequest, answers: Answers[pb.ReadResponse | bytes]) -> None:
        await self._answer_read(request, answers)

    async def _answer_read(self, request: pb.ReadRequest, answers: Answers[pb.ReadResponse | bytes]) -> int:
        """The last status that was sent, which may be one that only a peer knows."""
        with CountedCall("Read", is_open_ended=True) as counted:
            validate(request)
            async with aclosing(self._served.reading.read(request, answers.claims.selector)) as responses:
                async for response in responses:
                    counted.status = response.status if isinstance(response, pb.ReadResponse) else status_of(response)
                    await answers.send(response)
        return counted.status

    async def append(self, call: AppendCall) -> bytes:
        return await append(self._served.broker, call)

    def gateway_of(self, member: ProcessId) -> str:
        broker = self._served.broker
        kv = broker.surroundings.watch.view.get(member_key(broker.root, *member))
        if kv is None or not isinstance(kv.value, Member) or not isinstance(kv.value.value, BrokerMember):
            return ""
        known = kv.value.value
        # Gazette's brokers have their gateway where they have all else.
        return known.http_endpoint or ("" if known.capabilities & KIN else known.endpoint)

    def content_type_of(self, journal: str) -> str:
        current = self._served.broker.spec_now(journal)
        return "" if current is None else current.spec.labels.value_of(CONTENT_TYPE)

    async def _replicate(self, call: Call[bytes, bytes]) -> None:
        broker = self._served.broker
        with CountedCall("Replicate"):
            await replicate(broker, call)

    async def _list_fragments(
        self, request: pb.FragmentsRequest, call: Call[pb.FragmentsRequest, pb.FragmentsResponse]
    ) -> pb.FragmentsResponse:
        with CountedCall("ListFragments") as counted:
            validate(request)
            response = await self._served.fragments.list_fragments(request, call.claims.selector)
            counted.status = response.status
            return response

    async def _store_health(
        self,
        request: pb.FragmentStoreHealthRequest,
        call: Call[pb.FragmentStoreHealthRequest, pb.FragmentStoreHealthResponse],
    ) -> pb.FragmentStoreHealthResponse:
        with CountedCall("FragmentStoreHealth") as counted:
            validate(request)
            # A store is wherever its URL says, and is written to. Clients of Gazette ask with READ of everything; who
            # is kept to some journals has no business there, unless they may give those any store anyway.
            if call.claims.selector != EVERYTHING and not call.claims.capability & Capability.APPLY:
                raise PermissionDeniedError(
                    "the token is for some journals only, and a store belongs to none of them: use one without a "
                    "selector, or one that grants APPLY"
                )
            response = await self._served.store_health.store_health(request)
            counted.status = response.status
            return response


def _serialised(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def _as_it_is(message: bytes) -> bytes:
    return message
