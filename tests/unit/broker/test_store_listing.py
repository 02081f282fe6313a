from __future__ import annotations

import random

import pytest

from allocator.keyspace_view import KeySpaceView
from broker.cluster_keys import BrokerEntity
from broker.store_listing import INTERVAL_S, StoreListing
from fragment.cover_set import CoverSet
from fragment.live_index import LiveIndex
from fragment.persist_destination import CurrentSpec
from fragment.spool_file import SpoolFile
from fragment.stores.blob_store import BlobStore
from protocol.errors import UnavailableError
from protocol.journal import FragmentPolicy, JournalSpec

JOURNAL = "acme/orders"
SPEC = JournalSpec(JOURNAL, 1, fragment=FragmentPolicy(stores=("s3://one/?profile=mine", "s3://two/")))


def view() -> KeySpaceView[BrokerEntity]:
    raise AssertionError("nothing is listed here")


async def opened(_: str) -> BlobStore:
    raise UnavailableError("no credentials")


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> StoreListing:
    monkeypatch.setattr("broker.store_listing.FIRST_REFRESH_S_MAX", 0.01)
    return StoreListing("/root", view, {JOURNAL: CurrentSpec(SPEC, 1)}.get, opened)


@pytest.fixture
def live() -> LiveIndex[SpoolFile]:
    return LiveIndex(JOURNAL, lambda: 0.0, random.Random(1))


async def test_a_first_listing_that_has_yet_to_end_is_not_waited_for_without_a_limit(
    listing: StoreListing, live: LiveIndex[SpoolFile]
) -> None:
    with pytest.raises(UnavailableError, match=r"the first listing of s3://one/, s3://two/ still goes on: try again"):
        await listing.first_problem(live)


async def test_a_first_listing_that_failed_says_why_and_one_that_came_says_nothing(
    listing: StoreListing, live: LiveIndex[SpoolFile]
) -> None:
    why = "fragment store s3://one/ cannot be listed: no credentials"
    with pytest.raises(UnavailableError, match=why):
        await live.refresh(lambda: listing.list(JOURNAL))
    assert await listing.first_problem(live) == why

    async def listed() -> CoverSet:
        return CoverSet()

    await live.refresh(listed)
    assert await listing.first_problem(live) is None


def test_stores_are_listed_again_in_the_journals_own_time(listing: StoreListing) -> None:
    assert listing.interval_s(JOURNAL) == INTERVAL_S
    assert (listing.interval_s("no/such"), listing.urls("no/such")) == (INTERVAL_S, ())
