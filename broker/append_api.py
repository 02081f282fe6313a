"""The Append RPC: a client's stream, driven through an AppendRun or passed on to the primary."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

import grpc

from broker.answer_header import forwarded_header
from broker.append_event import AppendOpening, AppendOutcome, Chunk, End, Failed, Intent
from broker.append_run import AppendHost, AppendRun
from broker.append_wire import decode_chunk, decode_opening, response_of
from broker.client.failure import is_marked
from broker.client.outcome import REFUSED_MARK
from broker.counted_call import CountedCall
from broker.flow_control import effective_max_rate
from broker.local_replica import LocalReplica
from broker.metrics import HELD_BACK, STAGES
from broker.notice import Notice
from broker.patience import Patience
from broker.peer_stream import GrpcPeerStream, UnreachablePeerStream
from broker.resolution import Resolution
from protocol.auth import Claims
from protocol.errors import GazetteError, PreconditionError, Status, ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.identifier import strip_meta
from protocol.rpc.method import REQUEST_WAIT_S
from protocol.selector import LabelSelector

UNDERFLOW = "append stream: client stream didn't sustain the minimum append data rate"

_TURN, _STREAM, _COMMIT = (STAGES.labels(stage) for stage in ("turn", "stream", "commit"))


class AppendBroker(AppendHost, Protocol):
    """What the RPC needs of the broker it runs in."""

    @property
    def rates(self) -> AppendRates: ...

    def clock_s(self) -> float: ...

    def proxy_append(self, resolution: Resolution, journal: str) -> grpc.aio.StreamUnaryCall[bytes, bytes]: ...


class AppendCall(Protocol):
    """A client's stream of messages: a call of gRPC, or what the gateway makes of a request."""

    @property
    def claims(self) -> Claims: ...

    async def receive(self) -> bytes | None:
        """The next message; None when there are no more."""
        ...

    def tell_at_end(self, name: str, value: str) -> None:
        """Something beside the answer, or the failure."""
        ...


@dataclass(frozen=True, slots=True)
class AppendRates:
    """Bytes a second; zero is none."""

    max_rate: int = 0
    min_rate: int = 1 << 16


class _Append:
    """An AppendCaller. What the run asks of its client it finds set here, after each of its steps."""

    def __init__(self, broker: AppendBroker, opening: AppendOpening, selector: LabelSelector) -> None:
        self.run = AppendRun(opening, broker, self, selector)
        self.wants_chunk = False
        self.is_over = False
        self.outcome: AppendOutcome | GazetteError | None = None
        self.proxied: Resolution | None = None
        # Set when the run has gone on by itself.
        self._turn = asyncio.Event()

    @property
    def replica(self) -> LocalReplica:
        replica = self.run.replica
        assert isinstance(replica, LocalReplica)
        return replica

    def next_chunk(self) -> None:
        self.wants_chunk = True
        self._turn.set()

    def proxy(self, resolution: Resolution) -> None:
        self.proxied = resolution
        self._turn.set()

    def finish(self, outcome: AppendOutcome | GazetteError | None) -> None:
        self.is_over, self.outcome = True, outcome
        self._turn.set()

    async def wait_turn(self) -> None:
        while not (self.wants_chunk or self.is_over or self.proxied):
            self._turn.clear()
            await self._turn.wait()


async def append(broker: AppendBroker, call: AppendCall) -> bytes:
    """Serve one append; the response as bytes, since that of a primary elsewhere is passed on as it came."""
    with CountedCall("Append") as counted, Patience() as patience:
        return await _appended(broker, call, patience, counted)


async def _appended(broker: AppendBroker, call: AppendCall, patience: Patience, counted: CountedCall) -> bytes:
    first = await first_message(call, patience)
    served = _Append(broker, decode_opening(first), call.claims.selector)
    total = delayed = 0
    clock_s = broker.clock_s
    begun_s = streamed_s = clock_s()
    try:
        served.run.start()
        while True:
            await served.wait_turn()
            if served.proxied is not None:
                answer = await _proxied(broker, served.proxied, first, call)
                counted.status = pb.AppendResponse.FromString(answer).status
                return answer
            if served.is_over:
                break
            served.wants_chunk = False
            if total == 0:
                streamed_s = clock_s()
                _TURN.observe(streamed_s - begun_s)
                _begin_flow(broker, served)
            event, is_delayed = await _next(broker, served, call, patience)
            total += not isinstance(event, End | Failed)
            delayed += is_delayed
            if isinstance(event, End):
                ended_s = clock_s()
                _STREAM.observe(ended_s - streamed_s)
                streamed_s = ended_s
            served.run.feed(event)
    except BaseException:
        served.run.cancel()
        raise
    if isinstance(served.outcome, GazetteError):
        if not served.run.may_be_done:
            # A client whose append is small has sent all of it by now, and could not tell.
            call.tell_at_end(*REFUSED_MARK)
        raise served.outcome
    assert served.outcome is not None
    if served.outcome.status is Status.OK:
        _COMMIT.observe(clock_s() - streamed_s)
    counted.status = served.outcome.status
    return response_of(served.outcome, total, delayed).SerializeToString()


async def first_message(call: AppendCall, patience: Patience) -> bytes:
    """A client that opens a call and then says nothing is sent away."""
    try:
        raw = await patience.wait(call.receive(), REQUEST_WAIT_S)
    except TimeoutError as error:
        raise PreconditionError(
            f"no request came within {REQUEST_WAIT_S:g} s: send the first message when the call is opened"
        ) from error
    if raw is None:
        raise ValidationError("the call ended without a request")
    return raw


def _begin_flow(broker: AppendBroker, served: _Append) -> None:
    resolution = served.run.fsm.resolution
    assert resolution is not None
    max_rate = effective_max_rate(resolution.spec.max_append_rate, broker.rates.max_rate)
    served.replica.flow.begin(max_rate, broker.rates.min_rate, broker.clock_s())


async def _next(
    broker: AppendBroker, served: _Append, call: AppendCall, patience: Patience
) -> tuple[Chunk | Intent | End | Failed, bool]:
    """The client's next message, at the rates the journal allows, and whether it was held back."""
    replica, pipeline = served.replica, served.run.fsm.pipeline
    assert pipeline is not None
    flow = replica.flow
    if not replica.worker.has_room:
        await replica.worker.wait_room()
        flow.passed(broker.clock_s())
    for stream in pipeline.streams:
        assert isinstance(stream, GrpcPeerStream | UnreachablePeerStream)
        if not stream.has_room:
            await stream.wait_room()
            flow.passed(broker.clock_s())
    try:
        raw = await patience.wait(call.receive(), flow.patience_s(broker.clock_s()))
    except TimeoutError:
        return Failed(PreconditionError(UNDERFLOW)), False
    event = decode_chunk(raw)
    if not isinstance(event, Chunk):
        return event, False
    pause_s = flow.arrived(len(event.data), broker.clock_s())
    if pause_s <= 0:
        return event, False
    await _held_back(replica, served.run.invalidation, pause_s)
    HELD_BACK.inc(pause_s)
    flow.passed(broker.clock_s())
    return event, True


async def _held_back(replica: LocalReplica, invalidation: Notice, pause_s: float) -> None:
    """Until the journal's rate allows it, or until the journal is to change hands, which waits for this append."""
    hurry = asyncio.Event()
    withdraw = invalidation.listen(hurry.set)
    try:
        async with asyncio.timeout(pause_s):
            await hurry.wait()
        replica.flow.unlimited()
    except TimeoutError:
        return
    finally:
        withdraw()


async def _proxied(broker: AppendBroker, resolution: Resolution, first: bytes, call: AppendCall) -> bytes:
    """Pass everything on as it comes. The primary's answer is the client's, and so is its failure."""
    request = pb.AppendRequest.FromString(first)
    request.header.CopyFrom(forwarded_header(resolution))
    # A Go broker that is not the primary after all would exit at a name with more to it.
    request.journal = strip_meta(request.journal)
    try:
        upstream = broker.proxy_append(resolution, request.journal)
    except GazetteError:
        call.tell_at_end(*REFUSED_MARK)
        raise
    relay = _Relay(call, upstream)
    try:
        async with asyncio.TaskGroup() as tasks:
            relaying = tasks.create_task(relay.run(request.SerializeToString()))
            answer = await upstream
            relaying.cancel()
        return answer
    except* grpc.aio.AioRpcError as failures:
        if not relay.asks_commit or any(
            isinstance(error, grpc.aio.AioRpcError) and is_marked(error) for error in failures.exceptions
        ):
            call.tell_at_end(*REFUSED_MARK)
        raise
    finally:
        upstream.cancel()


class _Relay:
    """A client's messages on their way to the primary."""

    def __init__(self, call: AppendCall, upstream: grpc.aio.StreamUnaryCall[bytes, bytes]) -> None:
        self._call = call
        self._upstream = upstream
        # Whether the primary may have been told to commit. A stream that breaks after that looks to it like one that
        # ends in good order.
        self.asks_commit = False

    async def run(self, opening: bytes) -> None:
        upstream = self._upstream
        try:
            await upstream.write(opening)
            while (raw := await self._call.receive()) is not None:
                self.asks_commit = self.asks_commit or not isinstance(decode_chunk(raw), Chunk)
                await upstream.write(raw)
            self.asks_commit = True
            await upstream.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            # It has answered, or failed, before it had all: the answer says which.
            return
