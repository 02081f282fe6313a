"""What Gazette answered to Read, ListFragments and FragmentStoreHealth, and what we do in the same state."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.store_health_api import StoreHealthApi
from protocol.errors import ValidationError
from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb
from protocol.identifier import strip_meta
from protocol.route import ProcessId
from protocol.validation import validate
from tests.support.eventually import eventually
from tests.support.journal_cluster import ROOT, JournalCluster, settled
from tests.support.recorded_state import (
    JournalContents,
    asked_broker,
    cluster_for,
    contents_of_reads,
    etcd_header,
    member_keys,
)
from tests.support.recording import Conversation, conversations, title

LOCAL, PERSISTED = conversations("read"), conversations("read-persisted")
FRAGMENTS = conversations("list-fragments")
HEALTHS = conversations("store-health")


def contents_of_listings() -> JournalContents:
    contents = JournalContents()
    for conversation in FRAGMENTS:
        for answer in map(pb.FragmentsResponse.FromString, conversation.answers):
            for listed in answer.fragments:
                contents.learn(Fragment.from_proto(listed.spec))
    return contents


CONTENTS = {
    # Both were recorded from the same journals, the second after all was persisted.
    **dict.fromkeys(map(title, LOCAL), contents_of_reads(LOCAL, JournalContents())),
    **dict.fromkeys(map(title, PERSISTED), contents_of_reads(PERSISTED, contents_of_listings())),
}


def merged(messages: list[pb.ReadResponse]) -> list[pb.ReadResponse]:
    """With content that follows on content taken for one message: where it is cut is up to the broker."""
    whole: list[pb.ReadResponse] = []
    for message in messages:
        last = whole[-1] if whole else None
        if message.content and last is not None and last.content:
            last.content += message.content
        else:
            whole.append(message)
    return whole


@pytest.mark.parametrize("conversation", [*LOCAL, *PERSISTED], ids=title)
async def test_reads_are_answered_as_gazette_answers_them(conversation: Conversation, tmp_path: Path) -> None:
    request = pb.ReadRequest.FromString(conversation.request)
    if conversation.is_refused:
        with pytest.raises(ValidationError):
            validate(request)
        return
    validate(request)
    expected = [pb.ReadResponse.FromString(answer) for answer in conversation.answers]
    header = expected[0].header if expected else None
    status = expected[0].status if expected else pb.OK
    journal = strip_meta(request.journal)
    cluster = cluster_for(tmp_path, journal, header, status)
    try:
        await replay(conversation, cluster, request, expected, header)
    finally:
        await cluster.close()


async def replay(
    conversation: Conversation,
    cluster: JournalCluster,
    request: pb.ReadRequest,
    expected: list[pb.ReadResponse],
    header: pb.Header | None,
) -> None:
    journal, contents = strip_meta(request.journal), CONTENTS[conversation.title]
    # A reader that blocks was there before what it was sent.
    began = 0 if not expected else expected[0].offset if request.block else expected[0].write_head
    for broker in cluster.brokers.values():
        await contents.put(cluster, broker.held, journal, began)
    got: list[pb.ReadResponse] = []

    async def read() -> None:
        async for message in cluster.brokers[asked_broker(conversation, header)].reading(request):
            got.append(message)

    reading = asyncio.get_running_loop().create_task(read())
    await settled()
    if request.block:
        for message in expected:
            if message.HasField("fragment"):
                await committed(cluster, contents, message, got)
    if conversation.code == "OK" and expected:
        await reading
    else:
        # Gazette went on waiting as well, until the client had enough of it.
        await settled()
        assert not reading.done()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert merged(got) == merged(expected)


async def committed(
    cluster: JournalCluster, contents: JournalContents, message: pb.ReadResponse, got: list[pb.ReadResponse]
) -> None:
    """Append what the message tells of, and see that the reader gets it."""
    fragment = Fragment.from_proto(message.fragment)
    for broker in cluster.brokers.values():
        if held := broker.held.get(fragment.journal):
            held.commit(fragment, contents.content(fragment))
    await eventually(lambda: bool(got) and got[-1].offset + len(got[-1].content) == fragment.end, "all of the fragment")


@pytest.mark.parametrize("conversation", FRAGMENTS, ids=title)
async def test_fragments_are_listed_as_gazette_lists_them(conversation: Conversation, tmp_path: Path) -> None:
    request = pb.FragmentsRequest.FromString(conversation.request)
    if conversation.is_refused:
        with pytest.raises(ValidationError):
            validate(request)
        return
    validate(request)
    (expected,) = [pb.FragmentsResponse.FromString(answer) for answer in conversation.answers]
    contents = contents_of_listings()
    journal = strip_meta(request.journal)
    cluster = cluster_for(tmp_path, journal, expected.header, expected.status)
    try:
        for broker in cluster.brokers.values():
            await contents.put(cluster, broker.held, journal, 1 << 62)
        asked = cluster.brokers[asked_broker(conversation, expected.header)]
        assert await asked.fragments.list_fragments(request) == expected
    finally:
        await cluster.close()


@pytest.mark.parametrize("conversation", HEALTHS, ids=title)
async def test_stores_are_judged_as_gazette_judges_them(conversation: Conversation, tmp_path: Path) -> None:
    request = pb.FragmentStoreHealthRequest.FromString(conversation.request)
    if conversation.is_refused:
        with pytest.raises(ValidationError):
            validate(request)
        return
    validate(request)
    (expected,) = [pb.FragmentStoreHealthResponse.FromString(answer) for answer in conversation.answers]
    own_id = ProcessId.from_proto(expected.header.process_id)
    cluster = JournalCluster(tmp_path, header=etcd_header(expected.header), keys=sorted(member_keys([])))
    api = StoreHealthApi(ROOT, own_id, lambda: cluster.view, cluster.stores.open, lambda _: None)
    try:
        response = await api.store_health(request)
    finally:
        await cluster.close()
    # The words are each implementation's own.
    assert bool(response.store_health_error) == bool(expected.store_health_error)
    response.store_health_error = expected.store_health_error
    assert response == expected
