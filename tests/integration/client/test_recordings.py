"""Answers of live Gazette brokers, played back to the client: it hears from them what they said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import pytest

from broker.client.append_request import AppendRequest
from broker.client.client import Client
from broker.client.outcome import FailedCallError, UnknownOutcomeError
from broker.client.retry import NEVER, Retry
from broker.client.settings import ClientSettings
from protocol import duration
from protocol.errors import GazetteError, RefusedError, UnavailableError, ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.journal import SuspendMode
from protocol.label import LabelSet
from protocol.selector import LabelSelector
from tests.support.recording import Conversation, conversations, title
from tests.support.scripted_broker import ScriptedBroker, Turn, scripted_broker


def played(method: str, *names: str) -> pytest.MarkDecorator:
    found = [
        conversation
        for name in names
        for conversation in conversations(name)
        if conversation.rows[0]["method"].endswith(f"/{method}")
    ]
    return pytest.mark.parametrize("conversation", found, ids=title)


def sent(conversation: Conversation) -> list[bytes]:
    return [bytes.fromhex(row["hex"]) for row in conversation.rows if row["dir"] == ">" and "hex" in row]


def turn(conversation: Conversation) -> Turn:
    """The recording, but that a call which its recorder has cancelled goes on."""
    code = conversation.code or "CANCELLED"
    details = next((row["message"] for row in conversation.rows if row.get("event") == "status"), "")
    is_open = code in ("CANCELLED", "DEADLINE_EXCEEDED")
    return Turn(
        conversation.answers,
        grpc.StatusCode.OK if is_open else grpc.StatusCode[code],
        details,
        hangs=is_open and bool(conversation.answers),
    )


@asynccontextmanager
async def playing(conversation: Conversation) -> AsyncIterator[tuple[ScriptedBroker, Client]]:
    async with scripted_broker(turn(conversation)) as broker:
        settings = ClientSettings.of(broker.endpoint, retry=NEVER)
        async with asyncio.timeout(30), Client(settings=settings) as client:
            yield broker, client


def is_odd(requests: list[pb.AppendRequest], raw: list[bytes]) -> bool:
    """Whether no caller of ours could have made this conversation."""
    opening, *chunks = requests
    return (
        opening.HasField("header")
        or bool(opening.content)
        or bool(opening.min_etcd_revision)
        or any(chunk.journal for chunk in chunks)
        or not chunks
        or [not message for message in raw].index(True) != len(raw) - 1
    )


@played("Append", "append", "append-special", "append-dead-member", "suspend")
async def test_appends(conversation: Conversation) -> None:
    raw = sent(conversation)
    requests = [pb.AppendRequest.FromString(message) for message in raw]
    if not raw or raw[-1] or not any(row.get("event") == "half-close" for row in conversation.rows):
        pytest.skip("the recorder has broken off, or left out the request to commit: there is nothing to hear")
    if is_odd(requests, raw):
        pytest.skip("a sequence of messages that this client never sends")
    opening = requests[0]
    content = [message.content for message in requests[1:] if message.content]
    options: dict[str, Any] = {
        "offset": opening.offset or None,
        "union_registers": LabelSet.from_proto(opening.union_registers),
        "subtract_registers": LabelSet.from_proto(opening.subtract_registers),
    }
    if opening.HasField("check_registers"):
        options["check_registers"] = LabelSelector.from_proto(opening.check_registers)
    async with playing(conversation) as (broker, client):
        try:
            options["suspend"] = SuspendMode(opening.suspend)
            AppendRequest(opening.journal, **options)
        except (ValidationError, ValueError):
            assert conversation.is_refused or not opening.journal, "refused before it was sent, as Gazette refuses it"
            return
        outcome = await _outcome(client.append(opening.journal, content, **options))
        (call,) = broker.received
    assert [pb.AppendRequest.FromString(message).content for message in call.messages[1:-1]] == (
        [b"".join(content)] if content else []
    )
    ours = pb.AppendRequest.FromString(call.messages[0])
    ours.do_not_proxy = opening.do_not_proxy
    assert ours.journal == opening.journal.partition(";")[0]
    ours.journal = opening.journal
    if "check_registers" in options:
        assert LabelSelector.from_proto(ours.check_registers) == options["check_registers"]
        ours.check_registers.CopyFrom(opening.check_registers)
    assert ours == opening
    if not conversation.answers:
        assert isinstance(outcome, UnknownOutcomeError | FailedCallError), outcome
        return
    answer = pb.AppendResponse.FromString(conversation.answers[0])
    if not answer.status:
        assert not isinstance(outcome, Exception), outcome
        assert (outcome.begin, outcome.end) == (answer.commit.begin, answer.commit.end)
        assert outcome.registers == LabelSet.from_proto(answer.registers)
    elif answer.status == pb.NOT_JOURNAL_PRIMARY_BROKER:
        # It went to the one it was sent to, which is no more.
        assert isinstance(outcome, UnavailableError)
    else:
        assert isinstance(outcome, RefusedError)
        assert int(outcome.status) == answer.status


async def _outcome(work: Any) -> Any:
    try:
        return await work
    except GazetteError as error:
        return error


@played("Read", "read", "read-persisted", "append-special", "suspend")
async def test_reads(conversation: Conversation) -> None:
    request = pb.ReadRequest.FromString(conversation.request)
    if request.offset == -1 or request.metadata_only:
        pytest.skip("our client looks up the head before it reads from there, and metadata by another way")
    answers = [pb.ReadResponse.FromString(answer) for answer in conversation.answers]
    content = b"".join(answer.content for answer in answers)
    status = next((answer.status for answer in answers if answer.status), pb.OK)
    got = b""
    error: Exception | None = None
    async with playing(conversation) as (_, client):
        try:
            reader = client.read(
                request.journal,
                request.offset,
                end=request.end_offset or None,
                block=request.block,
                begin_mod_time_s=request.begin_mod_time,
                reads_stores=False,
            )
            async with reader:
                while len(got) < len(content) or not conversation.code or conversation.code == "OK":
                    got += await anext(reader)
        except StopAsyncIteration:
            pass
        except GazetteError as raised:
            error = raised
    assert got == content
    if status == pb.NOT_JOURNAL_BROKER:
        assert isinstance(error, UnavailableError)
    elif status not in (pb.OK, pb.OFFSET_NOT_YET_AVAILABLE):
        assert isinstance(error, RefusedError)
        assert int(error.status) == status
    elif conversation.is_refused and not request.end_offset:
        assert isinstance(error, ValidationError)
    elif error is not None:
        # The stream ended, and what comes next was not recorded.
        assert isinstance(error, UnavailableError | RefusedError)


@played("Read", "read", "read-persisted")
async def test_metadata(conversation: Conversation) -> None:
    request = pb.ReadRequest.FromString(conversation.request)
    if not request.metadata_only and request.offset != -1:
        pytest.skip("a read of content")
    answer = pb.ReadResponse.FromString(conversation.answers[0])
    async with playing(conversation) as (_, client):
        found = await client.read_metadata(request.journal, request.offset)
    assert (int(found.status), found.offset, found.write_head) == (answer.status, answer.offset, answer.write_head)
    assert found.fragment_url == answer.fragment_url


@played("List", "list")
async def test_lists(conversation: Conversation) -> None:
    request = pb.ListRequest.FromString(conversation.request)
    selector = LabelSelector.from_proto(request.selector)
    async with playing(conversation) as (_, client):
        if conversation.is_refused:
            with pytest.raises(ValidationError):
                await client.list(selector)
            return
        answers = [pb.ListResponse.FromString(answer) for answer in conversation.answers]
        if not request.watch:
            listing = await client.list(selector)
            assert listing.names == [journal.spec.name for answer in answers for journal in answer.journals]
            assert listing.revision == answers[0].header.etcd.revision
            return
        snapshots: list[list[str]] = []
        names: list[str] = []
        for answer in answers:
            names += [journal.spec.name for journal in answer.journals]
            if not answer.journals and not answer.header.etcd.revision:
                snapshots.append(names)
                names = []
        async with aclosing(client.watch(selector)) as listings:
            assert [(await anext(listings)).names for _ in snapshots] == snapshots


@played("Apply", "apply", "suspend")
async def test_applies(conversation: Conversation) -> None:
    request = pb.ApplyRequest.FromString(conversation.request)
    if not request.changes:
        pytest.skip("our client does not ask for nothing")
    async with playing(conversation) as (_, client):
        outcome = await _outcome(client.apply(*request.changes))
    if conversation.is_refused:
        # What only etcd could find has been sent, and whether it was done cannot be told from Gazette's answer.
        assert isinstance(outcome, ValidationError | UnknownOutcomeError)
        return
    if isinstance(outcome, ValidationError):
        pytest.skip("our rules are stricter here")
    answer = pb.ApplyResponse.FromString(conversation.answers[0])
    if not answer.status:
        assert outcome == answer.header.etcd.revision
    else:
        assert isinstance(outcome, RefusedError)
        assert int(outcome.status) == answer.status


@played("ListFragments", "list-fragments", "suspend")
async def test_fragments(conversation: Conversation) -> None:
    request = pb.FragmentsRequest.FromString(conversation.request)
    if request.next_page_token:
        pytest.skip("a page in the middle is asked for by going through those before it")
    ttl_s = duration.from_proto(request.signatureTTL) / 1e9 if request.HasField("signatureTTL") else None
    async with playing(conversation) as (broker, client):
        listed = client.fragments(
            request.journal,
            begin_mod_time_s=request.begin_mod_time,
            end_mod_time_s=request.end_mod_time,
            signature_ttl_s=ttl_s,
            page_limit=request.page_limit,
            # The next page is asked of the recorded members first, of which there are none any more.
            retry=Retry(within_s=10) if request.page_limit else NEVER,
        )
        if conversation.is_refused:
            with pytest.raises(ValidationError):
                await anext(listed)
            return
        answer = pb.FragmentsResponse.FromString(conversation.answers[0])
        if answer.status:
            # Where it is sent elsewhere, it goes there, and finds nobody.
            is_sent_on = answer.status == pb.NOT_JOURNAL_BROKER
            with pytest.raises(UnavailableError if is_sent_on else RefusedError) as refused:
                await anext(listed)
            assert is_sent_on or getattr(refused.value, "status", None) == answer.status
            return
        if answer.next_page_token:
            last = pb.FragmentsResponse()
            last.CopyFrom(answer)
            last.next_page_token = 0
            await broker.add(Turn([last.SerializeToString()]))
        got = [(one.fragment.begin, one.signed_url) async for one in listed]
    wanted = [(one.spec.begin, one.signed_url) for one in answer.fragments]
    assert got == wanted * (2 if answer.next_page_token else 1)


@played("FragmentStoreHealth", "store-health")
async def test_store_healths(conversation: Conversation) -> None:
    request = pb.FragmentStoreHealthRequest.FromString(conversation.request)
    async with playing(conversation) as (_, client):
        outcome = await _outcome(
            client.store_health(
                request.fragment_store,
                check_delete=request.check_delete,
                check_delete_prefix=request.check_delete_prefix,
            )
        )
    if conversation.is_refused:
        assert isinstance(outcome, ValidationError)
        return
    answer = pb.FragmentStoreHealthResponse.FromString(conversation.answers[0])
    if not answer.status:
        assert outcome is None
    else:
        assert isinstance(outcome, RefusedError)
        assert (int(outcome.status), outcome.detail) == (answer.status, answer.store_health_error[:256])
