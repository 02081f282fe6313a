"""Journals that are lists of bytes, for whoever asks a broker's process for them; and a gateway in front of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from broker.append_api import AppendCall
from broker.append_event import Chunk, End, Intent
from broker.append_wire import decode_chunk, decode_opening
from broker.client.outcome import REFUSED_MARK
from broker.debug_server import Diagnostics
from broker.http_cors import Cors
from broker.http_exchange import GatewayLimits
from broker.http_gateway import HttpGateway
from broker.http_server import http_server, listening_socket
from broker.journals import Answers
from broker.read_message import content_message
from protocol.auth import Keys
from protocol.errors import UnavailableError
from protocol.gen import journal_pb2 as pb
from protocol.route import ProcessId
from protocol.rpc.authorization import Authorizer
from protocol.validation import validate

NAME = "test/journal"


@dataclass
class MemoryJournals:
    """One journal, whose fragments are as they are set. It has no brokers while `status` says so."""

    fragments: list[tuple[int, bytes]] = field(default_factory=list)
    status: pb.Status.ValueType = pb.OK
    is_serving: bool = True
    # Whether an append is forgotten about once its commit was asked for.
    loses_commits: bool = False
    # Whether of such a one it is said that it was not done.
    marks_failures: bool = False
    content_type: str = ""
    reading: int = 0
    # Set when a read has begun, and when it has ended.
    read_begun: asyncio.Event = field(default_factory=asyncio.Event)
    read_ended: asyncio.Event = field(default_factory=asyncio.Event)
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def write_head(self) -> int:
        return max((begin + len(content) for begin, content in self.fragments), default=0)

    async def list_journals(self, request: pb.ListRequest, answers: Answers[pb.ListResponse]) -> None:
        validate(request)
        await answers.send(pb.ListResponse(header=self._header(), journals=[]))
        if request.watch:
            await asyncio.Event().wait()

    async def read(self, request: pb.ReadRequest, answers: Answers[pb.ReadResponse | bytes]) -> None:
        validate(request)
        self.reading += 1
        self.read_begun.set()
        try:
            await self._read(request, answers)
        finally:
            self.reading -= 1
            self.read_ended.set()

    async def _read(self, request: pb.ReadRequest, answers: Answers[pb.ReadResponse | bytes]) -> None:
        if self.status != pb.OK:
            await answers.send(pb.ReadResponse(status=self.status, header=self._header()))
            return
        offset, end_offset = self.write_head if request.offset == -1 else request.offset, request.end_offset
        while not end_offset or offset < end_offset:
            at = next((part for part in self.fragments if offset < part[0] + len(part[1])), None)
            if at is None and not request.block:
                await answers.send(
                    pb.ReadResponse(
                        status=pb.OFFSET_NOT_YET_AVAILABLE,
                        header=self._header(),
                        offset=offset,
                        write_head=self.write_head,
                    )
                )
                return
            if at is None:
                self.grown.clear()
                await self.grown.wait()
                continue
            begin, content = at
            offset = max(offset, begin)
            fragment = pb.Fragment(journal=NAME, begin=begin, end=begin + len(content), compression_codec=pb.NONE)
            await answers.send(
                pb.ReadResponse(header=self._header(), offset=offset, write_head=self.write_head, fragment=fragment)
            )
            if request.metadata_only or 0 < end_offset <= offset:
                return
            end = min(begin + len(content), end_offset or begin + len(content))
            await answers.send(content_message(offset, content[offset - begin : end - begin]))
            offset = end

    async def append(self, call: AppendCall) -> bytes:
        raw = await call.receive()
        assert raw is not None
        decode_opening(raw)
        if self.status != pb.OK:
            return pb.AppendResponse(status=self.status, header=self._header()).SerializeToString()
        pieces: list[bytes] = []
        while isinstance(event := decode_chunk(await call.receive()), Chunk):
            pieces.append(bytes(event.data))
        assert isinstance(event, Intent)
        assert isinstance(decode_chunk(await call.receive()), End)
        if self.loses_commits:
            if self.marks_failures:
                call.tell_at_end(*REFUSED_MARK)
            raise UnavailableError("a peer went away")
        begin, content = self.write_head, b"".join(pieces)
        self.fragments.append((begin, content))
        self.grown.set()
        commit = pb.Fragment(journal=NAME, begin=begin, end=begin + len(content), compression_codec=pb.NONE)
        return pb.AppendResponse(header=self._header(), commit=commit).SerializeToString()

    def gateway_of(self, member: ProcessId) -> str:
        return f"http://{member.suffix}:80"

    def content_type_of(self, journal: str) -> str:
        assert journal == NAME
        return self.content_type

    def _header(self) -> pb.Header:
        member = pb.ProcessSpec.ID(zone="zone-a", suffix="broker-1")
        return pb.Header(process_id=member, route=pb.Route(members=[member], endpoints=["http://broker-1:81"]))


@dataclass
class ServedGateway:
    gateway: HttpGateway
    port: int


@asynccontextmanager
async def served_gateway(
    journals: MemoryJournals,
    *,
    limits: GatewayLimits | None = None,
    keys: Keys | None = None,
    now_s: float = 0.0,
    is_private: bool = False,
) -> AsyncIterator[ServedGateway]:
    diagnostics = Diagnostics((CollectorRegistry(),), lambda: journals.is_serving)
    authorizer = Authorizer(keys, lambda: now_s)
    gateway = HttpGateway(
        journals, authorizer, diagnostics, cors=Cors(("*",)), is_private=is_private, limits=limits or GatewayLimits()
    )
    listening = listening_socket("127.0.0.1:0")
    port = listening.getsockname()[1]
    async with http_server(listening, gateway.handle, gateway.limits):
        yield ServedGateway(gateway, port)
