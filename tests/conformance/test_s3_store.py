"""What only S3 does, on a real server."""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio
from moto.s3.models import s3_backends

from fragment.stores.blob_store import BlobStore
from fragment.stores.bucket import TransferSizes
from fragment.stores.bucket_store import BucketStore
from fragment.stores.health import check_delete, check_store
from fragment.stores.open_stores import OpenStores, StoreSettings
from fragment.stores.s3 import open_s3
from protocol.errors import CorruptError
from protocol.fragment_store import FragmentStore
from tests.support.object_servers import BUCKET

pytestmark = pytest.mark.asyncio(loop_scope="module")

PART_BYTES = 64 * 1024


def server_side() -> Any:
    """The bucket as the server has it."""
    return s3_backends["123456789012"]["global"].buckets[BUCKET]


def uploads(path: str) -> list[Any]:
    """Those under way."""
    return [upload for upload in server_side().multiparts.values() if upload.key_name == f"s3-only/{path}"]


async def open_at(endpoint: str, query: str = "") -> BucketStore:
    store = FragmentStore.parse(f"s3://{BUCKET}/s3-only/?endpoint={endpoint}&{query}")
    sizes = TransferSizes(single_put_bytes_max=PART_BYTES, part_bytes=PART_BYTES)
    return BucketStore(store, await asyncio.to_thread(open_s3, store, sizes))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def store(s3_endpoint: str) -> AsyncGenerator[BucketStore, None]:
    opened = await open_at(s3_endpoint)
    yield opened
    await opened.close()


async def put(store: BlobStore, path: str, content: bytes, size: int | None = None) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        await store.put(path, file.fileno(), size=size or len(content))


@pytest.mark.parametrize(("size", "parts"), [(PART_BYTES, 0), (PART_BYTES + 1, 2), (3 * PART_BYTES, 3)])
async def test_only_what_is_too_large_for_one_request_goes_up_in_parts(
    store: BucketStore, size: int, parts: int
) -> None:
    await put(store, f"parts/{size}", b"x" * size)
    stored = server_side().keys[f"s3-only/parts/{size}"]
    assert stored.etag.strip('"').partition("-")[2] == (str(parts) if parts else "")
    assert stored.contentsize == size


async def test_an_upload_that_fails_leaves_no_parts_behind(store: BucketStore) -> None:
    with pytest.raises(CorruptError):
        await put(store, "parts/short", b"x" * 2 * PART_BYTES, 3 * PART_BYTES)
    assert uploads("parts/short") == []
    assert not await store.exists("parts/short")


async def test_an_upload_that_is_cancelled_leaves_no_parts_behind(store: BucketStore) -> None:
    content = b"x" * 64 * PART_BYTES
    task = asyncio.get_running_loop().create_task(put(store, "parts/cancelled", content))
    async with asyncio.timeout(30):
        # An upload that has no parts yet costs nobody anything, and may stay if its name was never learned.
        while not any(upload.parts for upload in uploads("parts/cancelled")):  # noqa: ASYNC110 -- nothing tells
            await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert uploads("parts/cancelled") == []
    assert not await store.exists("parts/cancelled")


@pytest.mark.parametrize("size", [5, 2 * PART_BYTES], ids=["single", "parts"])
async def test_the_arguments_of_the_url_are_sent_with_each_upload(s3_endpoint: str, size: int) -> None:
    store = await open_at(
        s3_endpoint, "acl=public-read&storageclass=STANDARD_IA&sse=aws:kms&ssekmskeyid=key-1&region=eu-west-1"
    )
    await put(store, f"arguments/{size}", b"x" * size)
    stored = server_side().keys[f"s3-only/arguments/{size}"]
    assert stored.storage_class == "STANDARD_IA"
    assert stored.encryption == "aws:kms"
    assert stored.kms_key_id == "key-1"
    assert any("AllUsers" in str(grantee.uri) for grant in stored.acl.grants for grantee in grant.grantees)
    assert "eu-west-1" in await store.sign_get("x", 60)
    await store.close()


async def test_nothing_is_sent_that_the_url_does_not_ask_for(store: BucketStore) -> None:
    await put(store, "plain", b"hello")
    stored = server_side().keys["s3-only/plain"]
    assert (stored.storage_class, stored.encryption, stored.kms_key_id) == ("STANDARD", None, None)


async def test_a_signature_is_of_the_kind_that_all_regions_take(store: BucketStore) -> None:
    url = await store.sign_get("plain", 60)
    assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in url
    assert "X-Amz-Expires=60" in url


async def test_another_service_than_aws_is_addressed_in_path_style() -> None:
    store = await open_at("http://store.example")
    assert (await store.sign_get("x", 60)).startswith(f"http://store.example/{BUCKET}/s3-only/x?")
    await store.close()


async def test_dots_in_a_name_are_part_of_it(store: BucketStore) -> None:
    """A journal may be called ``../x``. A file store refuses it; here it is a name like others."""
    await put(store, "../x/a", b"hello")
    assert "s3-only/../x/a" in server_side().keys
    assert await store.size("../x/a") == 5
    async with aclosing(store.list("../x/")) as batches:
        assert [found.path async for batch in batches for found in batch] == ["a"]


async def test_a_listing_of_many_objects_is_no_work_for_the_event_loop(store: BucketStore) -> None:
    """Of the loop's own thread the time counts that it was on the processor: the server shares this process."""
    backend = s3_backends["123456789012"]["global"]
    for at in range(2500):
        backend.put_object(BUCKET, f"s3-only/many/{at:016x}-{at:016x}-{'0' * 40}.gz", b"x")
    found = 0
    turns: list[float] = []
    # A collection of all that the tests before this one left behind is not the listing's doing.
    gc.collect()
    gc.disable()
    try:
        async with aclosing(store.list("many/")) as batches:
            begun = time.thread_time()
            async for batch in batches:
                turns.append(time.thread_time() - begun)
                found += len(batch)
                begun = time.thread_time()
    finally:
        gc.enable()
    assert found == 2500
    # The median: were pages parsed on the loop, each of them would take longer than this.
    assert statistics.median(turns) < 0.05


async def test_a_store_opened_by_its_url_is_healthy(s3_endpoint: str) -> None:
    stores = OpenStores(StoreSettings())
    opened = await stores.open(f"s3://{BUCKET}/healthy/?endpoint={s3_endpoint}")
    await check_store(opened)
    await check_delete(opened, "acme/")
    assert {key for key in server_side().keys if key.startswith("healthy/")} == {"healthy/.test/health-check"}
    await stores.close()
