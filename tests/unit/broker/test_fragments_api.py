from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from google.protobuf.duration_pb2 import Duration

from broker import fragments_api
from broker.fragments_api import SIGNED_S_MAX
from broker.resolver import StoppedError
from fragment.stores.blob_store import BlobStore
from protocol.errors import UnavailableError
from protocol.gen import journal_pb2 as pb
from protocol.journal import Flag
from protocol.route import ProcessId
from protocol.validation import validate
from tests.support.journal_cluster import A, C, HeldJournal, JournalCluster, fragment_of, journal_spec, settled

JOURNAL = "acme/orders"


async def three_fragments(cluster: JournalCluster) -> HeldJournal:
    """Two in the store, and one that is local."""
    cluster.put_journal(journal_spec(JOURNAL), A)
    held = cluster.brokers[A].held[JOURNAL]
    stored = [fragment_of(JOURNAL, 0, b"01234", mod_time=10), fragment_of(JOURNAL, 5, b"56789", mod_time=20)]
    held.commit(replace(fragment_of(JOURNAL, 10, b"abc"), backing_store="", mod_time=0), b"abc")
    await held.refresh(*stored)
    return held


async def listed(cluster: JournalCluster, at: ProcessId = A, **fields: object) -> pb.FragmentsResponse:
    request = pb.FragmentsRequest(journal=JOURNAL, **fields)  # type: ignore[arg-type]
    validate(request)
    response = await cluster.brokers[at].fragments.list_fragments(request)
    validate(response)
    return response


def begins(response: pb.FragmentsResponse) -> list[int]:
    return [fragment.spec.begin for fragment in response.fragments]


async def test_all_fragments_are_listed_without_urls_unless_asked_for(cluster: JournalCluster) -> None:
    await three_fragments(cluster)
    response = await listed(cluster)
    assert begins(response) == [0, 5, 10]
    assert not any(fragment.signed_url for fragment in response.fragments)
    assert response.next_page_token == 0
    signed = await listed(cluster, signatureTTL=Duration(seconds=60))
    assert [bool(fragment.signed_url) for fragment in signed.fragments] == [True, True, False]


async def test_pages_follow_each_other(cluster: JournalCluster) -> None:
    await three_fragments(cluster)
    token, pages = 0, []
    while True:
        page = await listed(cluster, next_page_token=token, page_limit=1)
        pages += begins(page)
        if not (token := page.next_page_token):
            break
    assert pages == [0, 5, 10]


async def test_a_page_too_large_to_send_ends_early(cluster: JournalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await three_fragments(cluster)
    monkeypatch.setattr(fragments_api, "ANSWER_BYTES_MAX", 1)
    page = await listed(cluster)
    assert (begins(page), page.next_page_token) == ([0], 5)


@pytest.mark.parametrize(
    ("begin", "end", "wanted"), [(20, 0, [5, 10]), (21, 0, [10]), (0, 20, [0, 5]), (0, 19, [0]), (15, 25, [5])]
)
async def test_fragments_are_listed_by_time(cluster: JournalCluster, begin: int, end: int, wanted: list[int]) -> None:
    await three_fragments(cluster)
    assert begins(await listed(cluster, begin_mod_time=begin, end_mod_time=end)) == wanted


async def test_a_signature_lasts_an_hour_at_most(cluster: JournalCluster) -> None:
    await three_fragments(cluster)
    asked_s: list[float] = []
    really = cluster.stores.open

    class Recording:
        async def sign_get(self, path: str, ttl_s: float) -> str:
            asked_s.append(ttl_s)
            return await (await really("file:///store/")).sign_get(path, ttl_s)

    async def recording(_: str) -> BlobStore:
        return Recording()  # type: ignore[return-value]

    api = replace(cluster.brokers[A].fragments, open_store=recording)
    for ttl in (Duration(seconds=90), Duration(seconds=10 * 365 * 86_400)):
        await api.list_fragments(pb.FragmentsRequest(journal=JOURNAL, signatureTTL=ttl))
    assert asked_s == [90, 90, SIGNED_S_MAX, SIGNED_S_MAX]


async def test_who_does_not_hold_the_journal_asks_who_does(cluster: JournalCluster) -> None:
    await three_fragments(cluster)
    response = await listed(cluster, at=C)
    assert begins(response) == [0, 5, 10]
    assert response.header.process_id.suffix == A.suffix
    assert (await listed(cluster, at=C, do_not_proxy=True)).status == pb.NOT_JOURNAL_BROKER


async def test_what_may_not_be_read_is_not_listed(cluster: JournalCluster) -> None:
    assert (await listed(cluster)).status == pb.JOURNAL_NOT_FOUND
    cluster.put_journal(journal_spec(JOURNAL, flags=Flag.O_WRONLY), A)
    assert (await listed(cluster)).status == pb.NOT_ALLOWED


async def test_nothing_is_listed_before_the_stores_are(cluster: JournalCluster) -> None:
    cluster.put_journal(journal_spec(JOURNAL), A)
    held = cluster.brokers[A].held[JOURNAL]
    async with asyncio.TaskGroup() as tasks:
        listing = tasks.create_task(listed(cluster))
        await settled()
        assert not listing.done()
        await held.refresh(fragment_of(JOURNAL, 0, b"hello"))
    assert begins(listing.result()) == [0]


async def test_stores_that_cannot_be_listed_are_not_waited_for_for_ever(cluster: JournalCluster) -> None:
    cluster.put_journal(journal_spec(JOURNAL), A)
    api = replace(cluster.brokers[A].fragments, first_refresh_s_max=0.01)
    with pytest.raises(UnavailableError, match="could not be listed"):
        await api.list_fragments(pb.FragmentsRequest(journal=JOURNAL))


async def test_who_waits_for_a_listing_is_told_when_the_journal_moves_away(cluster: JournalCluster) -> None:
    cluster.put_journal(journal_spec(JOURNAL), A)
    waiting = asyncio.get_running_loop().create_task(listed(cluster))
    await settled()
    cluster.unassign(JOURNAL, A, 0)
    with pytest.raises(StoppedError):
        await waiting
