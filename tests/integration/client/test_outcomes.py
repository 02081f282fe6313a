"""What a client makes of brokers that answer oddly, late or not at all: a scripted server plays them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from broker.client.client import Client
from broker.client.outcome import REFUSED_MARK, FailedCallError, UnknownOutcomeError
from broker.client.retry import NEVER, AtLeastOnce, Retry
from broker.client.retrying_read import Jump
from broker.client.settings import ClientSettings
from protocol.codec import CompressionCodec
from protocol.errors import PermissionDeniedError, RefusedError, Status, UnavailableError, ValidationError
from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb
from protocol.journal import Flag, FragmentPolicy, JournalSpec
from protocol.label import LabelSet
from protocol.route import EtcdRevision, Header, ProcessId, Route
from tests.support.scripted_broker import Received, ScriptedBroker, Turn, scripted_broker

JOURNAL = "acme/orders"
NO_ROUTE = Route()
SOON = Retry(within_s=5.0)


def header(*endpoints: str, revision: int = 7) -> pb.Header:
    """Of a journal whose members are at these endpoints, the first of them as its primary."""
    members = tuple(ProcessId("zone", f"broker-{at}") for at in range(len(endpoints)))
    route = Route(members, 0, endpoints) if endpoints else NO_ROUTE
    return Header(ProcessId("zone", "broker-0"), route, EtcdRevision(1, 2, revision, 4)).to_proto()


def appended(begin: int, end: int, *endpoints: str) -> bytes:
    response = pb.AppendResponse(header=header(*endpoints), total_chunks=2)
    response.commit.CopyFrom(Fragment(JOURNAL, begin, end, bytes(20), CompressionCodec.NONE).to_proto())
    response.registers.CopyFrom(pb.LabelSet())
    return response.SerializeToString()


def refused(status: pb.Status.ValueType, *endpoints: str) -> bytes:
    response = pb.AppendResponse(status=status, header=header(*endpoints))
    if status == pb.REGISTER_MISMATCH:
        response.registers.CopyFrom(LabelSet.of(("author", "another")).to_proto())
    return response.SerializeToString()


@asynccontextmanager
async def client_of(*brokers: ScriptedBroker, **settings: float) -> AsyncIterator[Client]:
    base = ClientSettings.of(*(broker.endpoint for broker in brokers), retry=SOON)
    async with asyncio.timeout(30), Client(settings=replace(base, **settings)) as client:  # type: ignore[arg-type]
        yield client


@asynccontextmanager
async def brokers(count: int) -> AsyncIterator[list[ScriptedBroker]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(scripted_broker()) for _ in range(count)]


async def test_an_append_is_an_opening_content_a_request_to_commit_and_the_end() -> None:
    async with scripted_broker(Turn([appended(0, 5)])) as broker, client_of(broker) as client:
        done = await client.append(f"{JOURNAL};debug", b"hello")
    assert (done.begin, done.end) == (0, 5)
    (call,) = broker.received
    opening, content, commit = (pb.AppendRequest.FromString(message) for message in call.messages)
    assert opening == pb.AppendRequest(journal=JOURNAL, do_not_proxy=True)
    assert content == pb.AppendRequest(content=b"hello")
    assert commit == pb.AppendRequest()
    assert call.messages[-1] == b""
    assert call.is_half_closed


async def test_a_failure_before_the_request_to_commit_is_tried_again() -> None:
    early = Turn(code=grpc.StatusCode.UNAVAILABLE, after_messages=1)
    content = bytes(8 << 20)
    probe, done = Turn([appended(0, 0)]), Turn([appended(0, 8 << 20)])
    async with scripted_broker(early, probe, early, probe, done) as broker, client_of(broker) as client:
        assert (await client.append(JOURNAL, content)).end == 8 << 20
    assert len(broker.received) == 5


async def test_content_that_can_be_gone_through_but_once_is_sent_but_once() -> None:
    early = Turn(code=grpc.StatusCode.UNAVAILABLE, after_messages=1)
    async with scripted_broker(early) as broker, client_of(broker) as client:
        with pytest.raises(UnavailableError):
            await client.append(JOURNAL, iter([bytes(1 << 20)] * 8))
    assert len(broker.received) == 1


@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED],
)
async def test_without_an_answer_the_outcome_is_unknown_and_nothing_is_repeated(code: grpc.StatusCode) -> None:
    async with scripted_broker(Turn(code=code, details="gone")) as broker, client_of(broker) as client:
        with pytest.raises(UnknownOutcomeError, match=JOURNAL):
            await client.append(JOURNAL, b"hello")
    assert len(broker.received) == 1


async def test_a_failure_that_is_marked_as_one_before_the_commit_is_tried_again() -> None:
    """Though all of it was sent, and without asking first whether appends get through at all."""
    marked = Turn(code=grpc.StatusCode.UNAVAILABLE, details="no room", trailers=(REFUSED_MARK,))
    async with scripted_broker(marked, marked, Turn([appended(0, 5)])) as broker, client_of(broker) as client:
        assert (await client.append(JOURNAL, b"hello")).end == 5
    assert [contents(call) for call in broker.received] == [b"hello"] * 3


@pytest.mark.parametrize(
    ("code", "error"),
    [(grpc.StatusCode.UNAVAILABLE, UnavailableError), (grpc.StatusCode.FAILED_PRECONDITION, FailedCallError)],
)
async def test_a_failure_that_is_marked_is_a_refusal(code: grpc.StatusCode, error: type[Exception]) -> None:
    marked = Turn(code=code, details="no room", trailers=(REFUSED_MARK,))
    async with scripted_broker(marked) as broker, client_of(broker) as client:
        with pytest.raises(error, match="no room"):
            await client.append(JOURNAL, b"hello", retry=NEVER)


async def test_at_least_once_repeats_what_may_have_been_done() -> None:
    gone = Turn(code=grpc.StatusCode.UNAVAILABLE)
    probe, done = Turn([appended(5, 5)]), Turn([appended(5, 10)])
    async with scripted_broker(gone, probe, gone, probe, done) as broker, client_of(broker) as client:
        assert (await client.append(JOURNAL, b"hello", retry=AtLeastOnce())).begin == 5
    assert [contents(call) for call in broker.received] == [b"hello", b"", b"hello", b"", b"hello"]


@pytest.mark.parametrize(
    "later",
    [
        pytest.param([Turn(code=grpc.StatusCode.UNAVAILABLE)] * 100, id="nothing gets through any more"),
        pytest.param([Turn([appended(5, 5)]), Turn([refused(pb.WRONG_APPEND_OFFSET)])], id="the first one was done"),
    ],
)
async def test_what_was_unknown_once_is_not_said_to_be_undone_by_what_comes_later(later: list[Turn]) -> None:
    gone = Turn(code=grpc.StatusCode.UNAVAILABLE)
    async with scripted_broker(gone, *later) as broker, client_of(broker) as client:
        with pytest.raises(UnknownOutcomeError, match="tried again"):
            await client.append(JOURNAL, b"hello", offset=5, retry=AtLeastOnce(within_s=1.0))
    assert contents(broker.received[0]) == b"hello"


def contents(call: Received) -> bytes:
    return b"".join(pb.AppendRequest.FromString(message).content for message in call.messages)


async def test_after_one_unknown_outcome_nothing_is_sent_until_appends_get_through_again() -> None:
    gone = Turn(code=grpc.StatusCode.UNAVAILABLE)
    turns = (gone, gone, gone, Turn([appended(5, 5)]), Turn([appended(5, 8)]))
    async with scripted_broker(*turns) as broker, client_of(broker) as client:
        with pytest.raises(UnknownOutcomeError):
            await client.append(JOURNAL, b"hello")
        assert (await client.append(JOURNAL, b"bye")).begin == 5
    assert [contents(call) for call in broker.received] == [b"hello", b"", b"", b"", b"bye"]


async def test_a_broker_that_says_nothing_makes_the_outcome_unknown() -> None:
    async with scripted_broker(Turn(hangs=True)) as broker, client_of(broker, stall_s=0.2) as client:
        with pytest.raises(UnknownOutcomeError, match="no progress"):
            await client.append(JOURNAL, b"hello")


async def test_a_broker_that_takes_nothing_is_left_before_it_could_commit() -> None:
    """More than the buffers on the way hold."""
    stuck, content = Turn(hangs=True, after_messages=1), bytes(16 << 20)
    async with (
        scripted_broker(stuck, Turn([appended(0, 0)]), Turn([appended(0, len(content))])) as broker,
        client_of(broker, stall_s=1.0) as client,
    ):
        assert (await client.append(JOURNAL, content)).end == len(content)
    assert len(broker.received) == 3


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, ValidationError),
        (grpc.StatusCode.PERMISSION_DENIED, PermissionDeniedError),
    ],
)
async def test_what_is_turned_away_was_not_written(code: grpc.StatusCode, kind: type[Exception]) -> None:
    async with scripted_broker(Turn(code=code, details="not so")) as broker, client_of(broker) as client:
        with pytest.raises(kind, match="not so"):
            await client.append(JOURNAL, b"hello")
    assert len(broker.received) == 1


async def test_passing_refusals_are_waited_out() -> None:
    turns = [Turn([refused(status)]) for status in (pb.NO_JOURNAL_PRIMARY_BROKER, pb.INSUFFICIENT_JOURNAL_BROKERS)]
    async with scripted_broker(*turns, Turn([appended(0, 5)])) as broker, client_of(broker) as client:
        await client.append(JOURNAL, b"hello")
    assert len(broker.received) == 3


@pytest.mark.parametrize("status", [pb.JOURNAL_NOT_FOUND, pb.NOT_ALLOWED, pb.REGISTER_MISMATCH, pb.SUSPENDED])
async def test_refusals_that_will_not_pass_are_told_at_once(status: pb.Status.ValueType) -> None:
    async with scripted_broker(Turn([refused(status)])) as broker, client_of(broker) as client:
        with pytest.raises(RefusedError) as told:
            await client.append(JOURNAL, b"hello")
    assert int(told.value.status) == status
    assert len(broker.received) == 1


async def test_a_refusal_that_lasts_is_told_when_time_is_up() -> None:
    turns = [Turn([refused(pb.NO_JOURNAL_PRIMARY_BROKER)])] * 20
    async with scripted_broker(*turns) as broker, client_of(broker) as client:
        with pytest.raises(RefusedError) as told:
            await client.append(JOURNAL, b"hello", retry=Retry(within_s=0.3))
    assert told.value.status is Status.NO_JOURNAL_PRIMARY_BROKER
    assert "tried" in told.value.__notes__[0]


@pytest.mark.parametrize("round_", range(20))
async def test_an_answer_that_comes_before_all_was_sent_is_heard(round_: int) -> None:
    early = Turn([refused(pb.WRONG_ROUTE if round_ % 2 else pb.NOT_ALLOWED)], after_messages=1)
    async with scripted_broker(early) as broker, client_of(broker) as client:
        with pytest.raises(RefusedError):
            await client.append(JOURNAL, bytes(4 << 20), retry=NEVER)


async def test_an_append_follows_the_route_to_the_primary_and_stays_there() -> None:
    async with brokers(2) as (first, primary), client_of(first) as client:
        await first.add(Turn([refused(pb.NOT_JOURNAL_PRIMARY_BROKER, primary.endpoint, first.endpoint)]))
        await primary.add(*[Turn([appended(at, at + 5, primary.endpoint, first.endpoint)]) for at in (0, 5)])
        await client.append(JOURNAL, b"hello")
        await client.append(JOURNAL, b"hello")
    assert (len(first.received), len(primary.received)) == (1, 2)


async def test_members_that_cannot_be_reached_are_left_to_the_brokers_that_can() -> None:
    """As behind a load balancer, or through a tunnel."""
    async with scripted_broker() as broker, client_of(broker, connect_s=0.5) as client:
        await broker.add(
            Turn([refused(pb.NOT_JOURNAL_PRIMARY_BROKER, "http://127.0.0.1:1")]),
            Turn([appended(0, 5, "http://127.0.0.1:1")]),
            Turn([appended(5, 10, "http://127.0.0.1:1")]),
        )
        await client.append(JOURNAL, b"hello")
        await client.append(JOURNAL, b"hello")
    openings = [pb.AppendRequest.FromString(call.messages[0]) for call in broker.received]
    assert [opening.do_not_proxy for opening in openings] == [True, False, False]


async def test_an_answer_that_makes_no_sense_is_no_success() -> None:
    async with scripted_broker(Turn([pb.AppendResponse().SerializeToString()])) as broker, client_of(broker) as client:
        with pytest.raises(UnknownOutcomeError, match="makes no sense"):
            await client.append(JOURNAL, b"hello")


# Reading.


def found(begin: int, end: int, offset: int, write_head: int, *endpoints: str) -> bytes:
    fragment = Fragment(JOURNAL, begin, end, bytes(20), CompressionCodec.NONE)
    message = pb.ReadResponse(offset=offset, write_head=write_head, fragment=fragment.to_proto())
    message.header.CopyFrom(header(*endpoints))
    return message.SerializeToString()


def content(offset: int, data: bytes) -> bytes:
    return pb.ReadResponse(offset=offset, content=data).SerializeToString()


def at_head(offset: int) -> bytes:
    return pb.ReadResponse(
        status=pb.OFFSET_NOT_YET_AVAILABLE, header=header(), offset=offset, write_head=offset
    ).SerializeToString()


def requests(broker: ScriptedBroker) -> list[pb.ReadRequest]:
    return [pb.ReadRequest.FromString(call.messages[0]) for call in broker.received]


async def test_a_read_that_breaks_off_goes_on_with_the_next_byte() -> None:
    async with scripted_broker() as broker, client_of(broker) as client:
        await broker.add(
            Turn([found(0, 10, 0, 10), content(0, b"0123")], grpc.StatusCode.UNAVAILABLE),
            Turn([found(0, 10, 4, 10), content(4, b"45")]),
            Turn([], grpc.StatusCode.UNKNOWN, "a store did not answer"),
            Turn([found(0, 10, 6, 10), content(6, b"6789"), at_head(10)]),
        )
        assert await client.read(JOURNAL, block=False).read() == b"0123456789"
    assert [request.offset for request in requests(broker)] == [0, 4, 6, 6]


async def test_bytes_out_of_turn_are_not_believed() -> None:
    async with scripted_broker() as broker, client_of(broker) as client:
        await broker.add(
            Turn([found(0, 10, 0, 10), content(0, b"0123"), content(5, b"5")]),
            Turn([found(0, 10, 4, 10), content(4, b"456789"), at_head(10)]),
        )
        assert await client.read(JOURNAL, block=False).read() == b"0123456789"


async def test_a_jump_is_told_once_and_the_next_byte_is_where_it_leads() -> None:
    jumps: list[Jump] = []
    async with scripted_broker() as broker, client_of(broker) as client:
        await broker.add(
            Turn([found(100, 110, 100, 110), content(100, b"01")]),
            Turn([found(100, 110, 102, 110), content(102, b"23456789"), at_head(110)]),
        )
        async with client.read(JOURNAL, 40, block=False, on_jump=jumps.append) as reader:
            assert await reader.read() == b"0123456789"
            assert reader.offset == 110
    assert jumps == [Jump(JOURNAL, 40, 100)]


async def test_a_line_that_a_jump_has_cut_is_dropped() -> None:
    async with scripted_broker() as broker, client_of(broker) as client:
        await broker.add(
            Turn([found(0, 6, 0, 110), content(0, b"one\ntw")]),
            Turn([found(100, 110, 100, 110), content(100, b"six\nseven\n"), at_head(110)]),
        )
        async with client.read_lines(JOURNAL, block=False) as lines:
            assert [(line, lines.offset) async for line in lines] == [(b"one", 4), (b"six", 104), (b"seven", 110)]


async def test_a_reader_at_the_head_finds_it_first_so_that_nothing_is_missed() -> None:
    async with scripted_broker() as broker, client_of(broker) as client:
        await broker.add(
            Turn([at_head(10)]),
            Turn([], grpc.StatusCode.UNAVAILABLE),
            Turn([found(0, 12, 10, 12), content(10, b"ab")]),
        )
        async with client.read(JOURNAL, -1) as reader:
            assert await anext(reader) == b"ab"
    assert [request.offset for request in requests(broker)] == [-1, 10, 10]


async def test_a_silent_broker_is_asked_whether_it_is_there_and_left_if_not() -> None:
    async with scripted_broker() as broker, client_of(broker, stall_s=0.2) as client:
        await broker.add(
            Turn(hangs=True),
            # It is: there is nothing new.
            Turn([at_head(0)]),
            # It is not any more.
            Turn(hangs=True),
            Turn([found(0, 2, 0, 2), content(0, b"ab")], hangs=True),
        )
        async with client.read(JOURNAL) as reader:
            assert await anext(reader) == b"ab"
    asked = requests(broker)
    assert [(request.block, request.metadata_only) for request in asked] == [
        (True, False),
        (False, True),
        (False, True),
        (True, False),
    ]


async def test_a_broker_that_lacks_bytes_before_the_head_is_not_taken_at_its_word() -> None:
    """It has just joined, and another has them."""
    lacking = pb.ReadResponse.FromString(at_head(4))
    lacking.write_head = 10
    async with brokers(2) as (new, old), client_of(new, old) as client:
        lacking.header.CopyFrom(header(new.endpoint, old.endpoint))
        await new.add(Turn([lacking.SerializeToString()]))
        await old.add(Turn([found(0, 10, 4, 10), content(4, b"456789"), at_head(10)]))
        assert await client.read(JOURNAL, 4, block=False).read() == b"456789"
    assert (len(new.received), len(old.received)) == (1, 1)


async def test_a_reader_gives_up_when_its_time_is_up() -> None:
    async with scripted_broker(*[Turn(code=grpc.StatusCode.UNAVAILABLE)] * 30) as broker, client_of(broker) as client:
        with pytest.raises(UnavailableError):
            await client.read(JOURNAL, retry=Retry(within_s=0.3)).read()


# Listing.


def listed(revision: int, *names: str) -> bytes:
    response = pb.ListResponse(header=header(revision=revision))
    for name in names:
        fragment = FragmentPolicy(1 << 16, CompressionCodec.NONE, (), refresh_interval_ns=10**9)
        spec = JournalSpec(name, 1, LabelSet(), fragment, Flag.O_RDWR)
        response.journals.add(spec=spec.to_proto(), mod_revision=3, create_revision=3, route=NO_ROUTE.to_proto())
    return response.SerializeToString()


def more(*names: str) -> bytes:
    response = pb.ListResponse.FromString(listed(1, *names))
    response.ClearField("header")
    return response.SerializeToString()


async def test_a_watch_is_resumed_and_shows_only_whole_listings() -> None:
    async with scripted_broker() as broker, client_of(broker) as client:
        await broker.add(
            Turn([listed(5, "acme/a"), more("acme/b"), b"", listed(6, "acme/a")], grpc.StatusCode.UNAVAILABLE),
            Turn([listed(8, "acme/c"), b""], hangs=True),
        )
        async with aclosing(client.watch()) as listings:
            assert (await anext(listings)).names == ["acme/a", "acme/b"]
            last = await anext(listings)
            assert (last.names, last.revision) == (["acme/c"], 8)
    resumed = pb.ListRequest.FromString(broker.received[1].messages[0])
    assert resumed.watch_resume.etcd.revision == 5


async def test_an_apply_without_an_answer_is_not_repeated() -> None:
    async with scripted_broker(Turn(code=grpc.StatusCode.UNAVAILABLE)) as broker, client_of(broker) as client:
        with pytest.raises(UnknownOutcomeError):
            await client.apply(pb.ApplyRequest.Change(delete=JOURNAL, expect_mod_revision=-1))
    assert len(broker.received) == 1


async def test_a_listing_goes_to_another_broker_when_one_does_not_answer() -> None:
    async with scripted_broker(Turn([listed(5, "acme/a")])) as broker:
        settings = ClientSettings.of("127.0.0.1:1", broker.endpoint, retry=SOON)
        async with Client(settings=settings) as client:
            assert (await client.list()).names == ["acme/a"]
