"""GrpcPeerStream, with a real pipeline on one side and a real server of gRPC on the other that does as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import pytest

from broker.peer_stream import ACKED_ALONE_S, QUEUED_BYTES_MAX, GrpcPeerStream
from broker.peers import PeerChannels, ReplicateCall
from broker.pipeline import Ask, Pipeline
from broker.replication_message import Acked, Answer, Content, Message, Propose
from broker.replication_wire import MessageEncoder, decode, encode_answer
from protocol.errors import Status
from protocol.gen import journal_pb2 as pb
from protocol.label import LabelSet
from tests.support.broker_cores import JOURNAL, NOW_NS, OK, A, B, built, fragment, route_of
from tests.support.eventually import eventually
from tests.support.rpc_service import UNSIGNED, peer_at, same
from tests.support.turned_loop import TurnedLoop, run_turned

TIMEOUT_S = 20.0
MIB = 1 << 20

Context = grpc.aio.ServicerContext[bytes, bytes]
Handler = Callable[["Peer", Context], Awaitable[None]]


@dataclass
class Peer:
    """The other side: what it was sent, and a Replicate that runs `handler`."""

    handler: Handler
    received: list[Message] = field(default_factory=list)
    is_half_closed: bool = False
    # Set when the handler is over, however it ended.
    over: asyncio.Event = field(default_factory=asyncio.Event)
    # What a handler may wait for.
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def replicate(self, _requests: object, context: Context) -> None:
        try:
            await self.handler(self, context)
        finally:
            self.over.set()

    async def receive(self, context: Context) -> Message | None:
        """The next message; None when it is told that there are no more."""
        raw: object = await context.read()
        if not isinstance(raw, bytes):
            self.is_half_closed = True
            return None
        message = decode(raw)
        self.received.append(message)
        return message

    async def serve(self, context: Context) -> None:
        """As a peer does that agrees to everything."""
        while (message := await self.receive(context)) is not None:
            if isinstance(message, Propose) and message.acknowledge:
                await context.write(encode_answer(OK))


class Told:
    """A proposal to all members of a pipeline, and when it was settled."""

    def __init__(self) -> None:
        self._settled: asyncio.Future[Ask] = asyncio.get_running_loop().create_future()

    def __call__(self, ask: Ask) -> None:
        self._settled.set_result(ask)

    async def ask(self) -> Ask:
        async with asyncio.timeout(TIMEOUT_S):
            return await self._settled


@dataclass
class Connected:
    peer: Peer
    pipeline: Pipeline
    stream: GrpcPeerStream
    running: asyncio.Task[None]
    server: grpc.aio.Server

    def synchronise(self) -> Told:
        told = Told()
        self.pipeline.synchronise(fragment(0), LabelSet(), NOW_NS, told)
        return told

    async def ended(self) -> None:
        """The stream is over, and raised nothing."""
        async with asyncio.timeout(TIMEOUT_S):
            await self.running

    async def failure(self) -> str:
        await self.ended()
        return str(self.pipeline.failures[B])


@asynccontextmanager
async def connected(handler: Handler, *, answer_s: float = TIMEOUT_S) -> AsyncIterator[Connected]:
    peer = Peer(handler)
    method: grpc.RpcMethodHandler[bytes, bytes]
    method = grpc.stream_stream_rpc_method_handler(peer.replicate, same, same)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("protocol.Journal", {"Replicate": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channels = PeerChannels(UNSIGNED)
    pipeline = built(route_of(A, B), kin=frozenset((B,))).pipeline
    call = channels.replicate(peer_at(port), JOURNAL)
    stream = GrpcPeerStream(call, B, pipeline, MessageEncoder(), answer_s)
    pipeline.connect({B: stream})
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(stream.run())
            try:
                yield Connected(peer, pipeline, stream, running, server)
            finally:
                running.cancel()
    finally:
        await channels.close()
        await server.stop(0)


class StoppedLoop(TurnedLoop):
    """Its clock goes on only when it is put forward."""

    def time(self) -> float:
        return self._ahead_s

    async def sent(self) -> None:
        """What can be sent without time passing."""
        for _ in range(20):
            await asyncio.sleep(0)


def run_stopped(test: Callable[[StoppedLoop], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=StoppedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, StoppedLoop)
        runner.run(test(loop))


async def never(peer: Peer, _context: Context) -> None:
    await peer.go.wait()


async def within(waited: Awaitable[object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await waited


async def test_what_the_pipeline_says_comes_in_its_order() -> None:
    async with connected(Peer.serve) as it:
        assert (await it.synchronise().ask()).failure is None
        told = Told()
        for at in range(200):
            it.pipeline.content(b"%03d" % at, 3 * at)
        content = b"".join(b"%03d" % at for at in range(200))
        it.pipeline.ask(fragment(0, content), LabelSet(), NOW_NS, told)
        ask = await told.ask()
        assert ask.failure is None
        assert ask.answers[B] == OK
        opening, *contents, commit = it.peer.received
        assert isinstance(opening, Propose)
        assert opening.header is not None
        assert opening.header.process_id == B
        assert [(bytes(each.data), each.delta) for each in contents if isinstance(each, Content)] == [
            (b"%03d" % at, 3 * at) for at in range(200)
        ]
        assert isinstance(commit, Propose)
        assert commit.fragment == fragment(0, content)


async def test_many_proposals_are_under_way_at_once_and_answered_in_turn() -> None:
    async def late(peer: Peer, context: Context) -> None:
        for _ in range(10):
            await peer.receive(context)
        for _ in range(10):
            await context.write(encode_answer(OK))
        await peer.serve(context)

    async with connected(late) as it:
        asked = [it.synchronise()]
        for _ in range(9):
            asked.append(told := Told())
            it.pipeline.ask(fragment(0), LabelSet(), NOW_NS, told)
        assert [(await told.ask()).failure for told in asked] == [None] * 10


async def test_after_a_half_close_what_was_sent_is_still_answered() -> None:
    async with connected(Peer.serve) as it:
        told = it.synchronise()
        it.pipeline.close()
        assert (await told.ask()).failure is None
        await it.ended()
        assert it.peer.is_half_closed
        assert len(it.peer.received) == 1
        assert not it.pipeline.failures


async def test_a_half_close_comes_after_all_that_waits_to_be_sent() -> None:
    async def hesitant(peer: Peer, context: Context) -> None:
        await peer.go.wait()
        await peer.serve(context)

    async with connected(hesitant) as it:
        told = it.synchronise()
        for at in range(8):
            it.pipeline.content(bytes(MIB), at * MIB)
        it.pipeline.close()
        it.peer.go.set()
        assert (await told.ask()).failure is None
        await it.ended()
        assert len(it.peer.received) == 9
        assert not it.pipeline.failures


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.PERMISSION_DENIED]
)
async def test_a_peer_that_ends_with_an_error_fails_what_it_was_asked(code: grpc.StatusCode) -> None:
    async def refuse(peer: Peer, context: Context) -> None:
        await peer.receive(context)
        await context.abort(code, "not today")

    async with connected(refuse) as it:
        ask = await it.synchronise().ask()
        assert ask.failure is not None
        assert f"{code.name}: not today" in str(ask.failure)
        assert f"{code.name}: not today" in await it.failure()
        assert it.pipeline.is_broken


async def test_a_peer_that_ends_in_good_order_before_it_was_told_to_has_failed() -> None:
    async def leave(peer: Peer, context: Context) -> None:
        await peer.receive(context)

    async with connected(leave) as it:
        ask = await it.synchronise().ask()
        assert "it ended the stream" in str(ask.failure)
        assert "it ended the stream" in await it.failure()


async def test_a_peer_that_ends_after_a_half_close_but_owes_an_answer_has_failed() -> None:
    async def read_only(peer: Peer, context: Context) -> None:
        while await peer.receive(context) is not None:
            pass

    async with connected(read_only) as it:
        told = it.synchronise()
        it.pipeline.close()
        assert "it ended the stream" in str((await told.ask()).failure)


async def test_a_peer_that_cannot_be_reached_has_failed() -> None:
    async with connected(never) as it:
        await it.server.stop(0)
        ask = await it.synchronise().ask()
        assert "UNAVAILABLE" in str(ask.failure) or "CANCELLED" in str(ask.failure)
        await it.ended()


async def test_a_peer_that_goes_away_later_has_failed_though_nothing_was_asked() -> None:
    async with connected(Peer.serve) as it:
        await it.synchronise().ask()
        assert not it.pipeline.is_broken
        await it.server.stop(0)
        await it.failure()
        assert it.pipeline.is_broken


UNKNOWN_STATUS = pb.ReplicateResponse(status=999).SerializeToString()  # type: ignore[arg-type]
BAD_HEADER = pb.ReplicateResponse(header=pb.Header(process_id=pb.ProcessSpec.ID(zone="a"))).SerializeToString()


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\xff\xff\xff garbage", id="no message at all"),
        pytest.param(UNKNOWN_STATUS, id="a status that nobody knows"),
        pytest.param(BAD_HEADER, id="a header that breaks the rules"),
    ],
)
async def test_a_peer_that_answers_what_makes_no_sense_has_failed_and_is_left(raw: bytes) -> None:
    async def babble(peer: Peer, context: Context) -> None:
        await peer.receive(context)
        await context.write(raw)
        await peer.serve(context)

    async with connected(babble) as it:
        ask = await it.synchronise().ask()
        assert ask.failure is not None
        assert await it.failure()
        await within(it.peer.over.wait())


async def test_a_peer_that_answers_what_nobody_asked_has_failed() -> None:
    async def eager(peer: Peer, context: Context) -> None:
        await context.write(encode_answer(Answer(Status.OK)))
        await peer.go.wait()

    async with connected(eager) as it:
        async with asyncio.timeout(TIMEOUT_S):
            while not it.pipeline.is_broken:  # noqa: ASYNC110, nobody tells
                await asyncio.sleep(0.001)
        assert "what nobody asked" in str(it.pipeline.failures[B])
        it.peer.go.set()
        await it.ended()


async def test_a_stream_that_is_cancelled_ends_its_call() -> None:
    async with connected(Peer.serve) as it:
        await it.synchronise().ask()
        it.running.cancel()
        await asyncio.wait({it.running}, timeout=TIMEOUT_S)
        assert it.running.cancelled()
        await within(it.peer.over.wait())
        assert it.stream.has_room


async def test_a_stream_that_is_cancelled_fails_what_was_asked() -> None:
    async with connected(never) as it:
        told = it.synchronise()
        await asyncio.sleep(0)
        it.running.cancel()
        await asyncio.wait({it.running}, timeout=TIMEOUT_S)
        assert it.pipeline.is_broken
        assert (await told.ask()).failure is not None


# A peer that is alive, but does not answer.


async def test_a_peer_that_owes_an_answer_for_too_long_has_failed_and_is_left() -> None:
    async def mute(peer: Peer, context: Context) -> None:
        while await peer.receive(context) is not None:
            pass

    async with connected(mute, answer_s=0.05) as it:
        ask = await it.synchronise().ask()
        assert "it has not answered within 0.05 s" in str(ask.failure)
        await asyncio.wait({it.running}, timeout=TIMEOUT_S)
        await within(it.peer.over.wait())
        assert "it has not answered" in str(it.pipeline.failures[B])


def test_a_peer_that_is_not_asked_owes_nothing() -> None:
    async def asked_late(loop: TurnedLoop) -> None:
        pipeline = built(route_of(A, B), kin=frozenset((B,))).pipeline
        call = SlowCall(0)
        stream = GrpcPeerStream(cast(ReplicateCall, call), B, pipeline, MessageEncoder(), 20.0)
        pipeline.connect({B: stream})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stream.run())
            pipeline.content(b"content", 0)
            await eventually(lambda: call.taken == 1, "the peer to take it")
            await loop.pass_timers(40.0)
            assert not pipeline.failures
            pipeline.synchronise(fragment(0), LabelSet(), NOW_NS, Told())
            await eventually(lambda: call.taken == 2, "the peer to take it")
            await loop.pass_timers(40.0)
            assert "it has not answered" in str(pipeline.failures[B]), "but when it is, it does"
            call.over.set()

    run_turned(asked_late)


async def test_a_peer_that_takes_no_more_content_has_failed_and_keeps_nobody() -> None:
    """It owes no answer: nothing was asked. But an append waits for room, and all others wait for the append."""
    async with connected(never, answer_s=0.3) as it:
        for _ in range(4):
            fill(it)
        assert not it.stream.has_room
        await within(it.stream.wait_room())
        assert "it has not taken what was sent to it within 0.3 s" in str(it.pipeline.failures[B])
        await asyncio.wait({it.running}, timeout=TIMEOUT_S)
        await within(it.peer.over.wait())


class SlowCall:
    """One that takes each message, but only after a while."""

    def __init__(self, each_s: float) -> None:
        self._each_s = each_s
        self.messages: list[Message] = []
        self.over = asyncio.Event()

    @property
    def taken(self) -> int:
        return len(self.messages)

    async def write(self, message: bytes) -> None:
        await asyncio.sleep(self._each_s)
        self.messages.append(decode(message))

    async def read(self) -> object:
        await self.over.wait()
        return grpc.aio.EOF

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    async def details(self) -> str:
        return ""

    async def done_writing(self) -> None:
        self.over.set()

    def cancel(self) -> bool:
        return True


def test_a_peer_that_is_slow_but_goes_on_taking_has_not_failed() -> None:
    """However long it takes for all of it."""

    async def slow(loop: StoppedLoop) -> None:
        pipeline = built(route_of(A, B), kin=frozenset((B,))).pipeline
        call = SlowCall(0.2)
        stream = GrpcPeerStream(cast(ReplicateCall, call), B, pipeline, MessageEncoder(), 0.9)
        pipeline.connect({B: stream})
        for at in range(6):
            stream.send(Content(b"x", at))
        pipeline.close()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stream.run())
            for taken in range(1, 7):
                await loop.sent()
                await loop.pass_timers(0.2)
                await loop.sent()
                assert call.taken == taken
        assert not pipeline.failures

    run_stopped(slow)


# What is acknowledged.


def said_to(call: SlowCall) -> list[int | None]:
    return [each.through if isinstance(each, Acked) else None for each in call.messages]


def test_what_is_acknowledged_is_said_at_once_but_again_only_after_a_while() -> None:
    async def acknowledged(loop: StoppedLoop) -> None:
        pipeline = built(route_of(A, B), kin=frozenset((B,))).pipeline
        call = SlowCall(0)
        stream = GrpcPeerStream(cast(ReplicateCall, call), B, pipeline, MessageEncoder(), 20.0)

        async def said() -> list[int | None]:
            await loop.sent()
            return [each.through if isinstance(each, Acked) else None for each in call.messages]

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stream.run())
            for through in (1, 2, 3):
                stream.send(Acked(through))
            assert await said() == [1]
            await loop.pass_timers(ACKED_ALONE_S)
            assert await said() == [1, 3], "the last word says it all"
            stream.send(Acked(4))
            loop.forward(ACKED_ALONE_S / 2)
            stream.send(Content(b"x", 0, 4))
            await loop.pass_timers(ACKED_ALONE_S / 2)
            assert await said() == [1, 3, None], "content has said it"
            stream.send(Acked(5))
            assert await said() == [1, 3, None], "and not long ago"
            stream.half_close()
            assert await said() == [1, 3, None, 5], "but before the end nothing is left unsaid"

    run_stopped(acknowledged)


# Room for more.


def fill(it: Connected) -> None:
    """Until there is no more room. Each chunk is as large as a client's may be."""
    chunk = bytes(MIB)
    for at in range(2 * QUEUED_BYTES_MAX // MIB):
        it.stream.send(Content(chunk, at * MIB))


async def test_there_is_room_until_too_much_waits_to_be_sent() -> None:
    async with connected(never) as it:
        assert it.stream.has_room
        await within(it.stream.wait_room())
        for at in range(QUEUED_BYTES_MAX // MIB - 1):
            it.stream.send(Content(bytes(MIB), at * MIB))
        assert it.stream.has_room
        fill(it)
        assert not it.stream.has_room


async def test_there_is_room_again_once_the_peer_reads_on() -> None:
    async def hesitant(peer: Peer, context: Context) -> None:
        await peer.go.wait()
        await peer.serve(context)

    async with connected(hesitant) as it, asyncio.TaskGroup() as tasks:
        for _ in range(4):
            fill(it)
        waiting = tasks.create_task(it.stream.wait_room())
        await asyncio.sleep(0)
        assert not waiting.done()
        it.peer.go.set()
        await within(waiting)
        assert it.stream.has_room


async def test_whoever_waits_for_room_is_let_go_when_the_stream_breaks() -> None:
    async def break_off(peer: Peer, context: Context) -> None:
        await peer.go.wait()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "full")

    async with connected(break_off) as it, asyncio.TaskGroup() as tasks:
        for _ in range(4):
            fill(it)
        waiting = tasks.create_task(it.stream.wait_room())
        await asyncio.sleep(0)
        assert not waiting.done()
        it.peer.go.set()
        await within(waiting)
        await it.ended()


async def test_what_is_sent_after_the_end_is_dropped() -> None:
    async def leave(peer: Peer, context: Context) -> None:
        await peer.receive(context)

    async with connected(leave) as it:
        await it.synchronise().ask()
        await it.ended()
        for _ in range(4):
            fill(it)
        assert it.stream.has_room
        it.stream.half_close()
