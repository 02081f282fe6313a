"""What every store must do, whatever is behind it. Each test runs over each kind of store, on real servers."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import random
import ssl
import tempfile
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from azure.core.credentials import AccessToken, AzureNamedKeyCredential

from fragment.stores.azure import AccountKey, AzureContainer, DelegationKey, blob_service
from fragment.stores.blob_store import BlobNotFoundError, BlobStore, ListedObject, StoreDeniedError
from fragment.stores.bucket import Bucket, TransferSizes
from fragment.stores.bucket_store import BucketStore, Deadlines
from fragment.stores.filesystem import Folder
from fragment.stores.gcs import open_gcs
from fragment.stores.s3 import open_s3
from protocol.errors import CorruptError, UnavailableError, ValidationError
from protocol.fragment_store import FragmentStore
from tests.support.memory_bucket import MemoryBucket
from tests.support.object_servers import AZURE_ACCOUNT, AZURE_KEY, BUCKET, AzureServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

# So little that pages and parts happen with what a test can write. GCS takes parts of 256 KiB and their multiples.
SIZES = TransferSizes(single_put_bytes_max=100_000, part_bytes=256 * 1024, page_keys=20)
KINDS = ("file", "memory", "s3", "gs", "azure", "azure-ad")
SIGNED = ("s3", "gs", "azure", "azure-ad")
NAME = "0000000000000000-0000000000000006-8843d7f92416211de9ebb963ff4ce28125932878.sz"
PATH = f"acme/orders/{NAME}"
LARGE = random.Random(1).randbytes(3 * SIZES.part_bytes + 1234)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of store, opened once for all tests. Each test has a prefix of its own in it."""

    name: str
    url: str
    bucket: Bucket
    root: Path | None = None
    trust: ssl.SSLContext | None = None

    def store(self, query: str = "", prefix: str = "", deadlines: Deadlines | None = None) -> BucketStore:
        prefix = prefix or f"{uuid.uuid4().hex[:12]}/"
        if self.root:
            (self.root / prefix).mkdir(exist_ok=True)
        return BucketStore(FragmentStore.parse(f"{self.url}{prefix}{query}"), self.bucket, deadlines)


async def open_kind(name: str, request: pytest.FixtureRequest, bucket: str = BUCKET) -> Kind:
    match name:
        case "file":
            root: Path = request.getfixturevalue("file_root")
            return Kind(
                name, "file:///", Folder(root, "/" if bucket == BUCKET else f"/{bucket}/", SIZES.page_keys), root
            )
        case "memory":
            return Kind(name, f"s3://{bucket}/", MemoryBucket(page_keys=SIZES.page_keys))
        case "s3":
            store = FragmentStore.parse(f"s3://{bucket}/?endpoint={request.getfixturevalue('s3_endpoint')}")
            return Kind(name, f"s3://{bucket}/", await asyncio.to_thread(open_s3, store, SIZES))
        case "gs":
            request.getfixturevalue("gcs_endpoint")
            store = FragmentStore.parse(f"gs://{bucket}/")
            return Kind(name, store.url, await asyncio.to_thread(open_gcs, store, os.environ, SIZES))
        case _:
            return await open_azurite(name, request.getfixturevalue("azurite"), bucket)


async def open_azurite(name: str, server: AzureServer, bucket: str) -> Kind:
    by_key = name == "azure"
    credential = AzureNamedKeyCredential(AZURE_ACCOUNT, AZURE_KEY) if by_key else UserToken()
    service = blob_service(server.endpoint, credential, connection_verify=str(server.certificate))
    if bucket == BUCKET and not await service.get_container_client(bucket).exists():
        await service.create_container(bucket)
    container = AzureContainer(service, bucket, AccountKey(AZURE_KEY) if by_key else DelegationKey(service), SIZES)
    url = f"azure://{bucket}/" if by_key else f"azure-ad://tenant/{AZURE_ACCOUNT}/{bucket}/"
    return Kind(name, url, container, trust=ssl.create_default_context(cafile=server.certificate))


class UserToken:
    """A token as Azure's identity service makes it, but for its signature, which Azurite does not look at."""

    async def get_token(self, *_: str, **__: object) -> AccessToken:
        now = int(datetime.now(UTC).timestamp())
        claims = {
            "aud": "https://storage.azure.com",
            "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
            "oid": "23657296-5cd5-45b0-a809-d972a7f4dfe1",
            "tid": "ab1f708d-50f6-404c-a006-d71b2ac7a606",
            "iat": now - 60,
            "nbf": now - 60,
            "exp": now + 7200,
        }
        parts = ({"alg": "RS256", "typ": "JWT"}, claims, "signature")
        encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        return AccessToken(".".join(encoded), now + 7200)

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(scope="session")
def file_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("file-root")


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=KINDS)
async def kind(request: pytest.FixtureRequest) -> AsyncGenerator[Kind, None]:
    opened = await open_kind(request.param, request)
    yield opened
    await opened.bucket.close()


@pytest.fixture
def store(kind: Kind) -> BucketStore:
    return kind.store()


async def put(store: BlobStore, path: str, content: bytes, content_encoding: str | None = None) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        await store.put(path, file.fileno(), size=len(content), content_encoding=content_encoding)


async def read(store: BlobStore, path: str, offset: int = 0, length: int | None = None) -> bytes:
    async with aclosing(store.get(path, offset, length)) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def listed(store: BlobStore, prefix: str) -> list[ListedObject]:
    async with aclosing(store.list(prefix)) as batches:
        return sorted([found async for batch in batches for found in batch])


async def paths(store: BlobStore, prefix: str) -> list[str]:
    return [found.path for found in await listed(store, prefix)]


async def test_what_was_put_is_there(store: BucketStore) -> None:
    assert not await store.exists(PATH)
    await put(store, PATH, b"hello")
    assert await store.exists(PATH)
    assert await store.size(PATH) == 5
    assert await read(store, PATH) == b"hello"


async def test_of_a_file_no_more_is_put_than_was_asked_for(store: BucketStore, tmp_path: Path) -> None:
    """A spool goes on growing after the last byte that may be uploaded."""
    file = tmp_path / "spool"
    file.write_bytes(LARGE)
    for size in (7, len(LARGE) - 7):
        await store.put(f"acme/{size}", file, size=size)
        assert await read(store, f"acme/{size}") == LARGE[:size]


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, None), (2, 3), (4, None), (0, 1), (9, 1), (3, 0), (8, 100), (10, None), (99, None), (99, 5)],
)
async def test_a_range_is_read_as_far_as_there_is_something(
    store: BucketStore, offset: int, length: int | None
) -> None:
    content = b"0123456789"
    await put(store, PATH, content)
    end = None if length is None else offset + length
    assert await read(store, PATH, offset, length) == content[offset:end]


async def test_a_large_object_goes_up_in_parts_and_comes_down_in_chunks(store: BucketStore) -> None:
    await put(store, PATH, LARGE)
    assert await store.size(PATH) == len(LARGE)
    async with aclosing(store.get(PATH)) as chunks:
        got = [chunk async for chunk in chunks]
    assert b"".join(got) == LARGE
    assert all(got)
    assert len(got) > 1
    begin = SIZES.part_bytes - 5
    assert await read(store, PATH, begin, 10) == LARGE[begin : begin + 10]


async def test_a_reader_may_leave_early(store: BucketStore) -> None:
    await put(store, PATH, LARGE)
    for _ in range(3):
        async with aclosing(store.get(PATH)) as chunks:
            assert LARGE.startswith(await anext(chunks))
    assert store.operations == 0


async def test_an_object_may_be_empty(store: BucketStore) -> None:
    await put(store, PATH, b"")
    assert await read(store, PATH) == b""
    assert await store.size(PATH) == 0
    assert await read(store, PATH, 5) == b""
    assert [found.size for found in await listed(store, "acme/")] == [0]


async def test_what_is_not_there_is_not_found(store: BucketStore) -> None:
    assert not await store.exists(PATH)
    with pytest.raises(BlobNotFoundError, match=store.name):
        await read(store, PATH)
    with pytest.raises(BlobNotFoundError):
        await read(store, PATH, 3, 4)
    with pytest.raises(BlobNotFoundError):
        await store.size(PATH)


async def test_what_is_removed_is_gone_and_may_be_removed_again(store: BucketStore) -> None:
    await put(store, PATH, b"hello")
    await put(store, "acme/orders/other", b"hello")
    for _ in range(2):
        await store.remove(PATH)
        assert not await store.exists(PATH)
    assert await paths(store, "acme/") == ["orders/other"]


async def test_the_same_may_be_put_again_and_a_name_has_one_content(store: BucketStore) -> None:
    await put(store, PATH, b"first")
    await put(store, PATH, b"first")
    assert await read(store, PATH) == b"first"
    await put(store, PATH, b"replaced")
    assert await read(store, PATH) == b"replaced"
    assert [(found.path, found.size) for found in await listed(store, "acme/orders/")] == [(NAME, 8)]


async def test_a_listing_shows_what_lies_under_a_prefix_however_deep(store: BucketStore) -> None:
    for path in ("a/b/one", "a/b/two", "a/b/date=2024-01-01/hour=03/three", "a/bc/four", "a/five", "z"):
        await put(store, path, path.encode())
    assert await paths(store, "a/b/") == ["date=2024-01-01/hour=03/three", "one", "two"]
    assert await paths(store, "a/") == ["b/date=2024-01-01/hour=03/three", "b/one", "b/two", "bc/four", "five"]
    assert len(await paths(store, "")) == 6
    assert await paths(store, "nothing/") == []


async def test_a_listing_tells_sizes_and_times(store: BucketStore) -> None:
    before = int(datetime.now(UTC).timestamp())
    await put(store, PATH, b"hello")
    (found,) = await listed(store, "acme/orders/")
    assert found.size == 5
    assert before - 2 <= found.mod_time <= before + 60
    assert isinstance(found.mod_time, int)


async def test_a_long_listing_comes_in_pages(store: BucketStore) -> None:
    names = [f"{at:04d}" for at in range(SIZES.page_keys * 5 + 3)]
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(put(store, f"acme/orders/{name}", name.encode()))
    async with aclosing(store.list("acme/orders/")) as batches:
        pages = [batch async for batch in batches]
    assert sorted(found.path for page in pages for found in page) == names
    assert max(map(len, pages)) <= SIZES.page_keys
    assert len(pages) >= 6


async def test_a_listing_may_be_left_early(store: BucketStore) -> None:
    async with asyncio.TaskGroup() as group:
        for at in range(SIZES.page_keys + 1):
            group.create_task(put(store, f"acme/{at}", b"x"))
    async with aclosing(store.list("acme/")) as batches:
        assert len(await anext(batches)) == SIZES.page_keys
    assert store.operations == 0


NAMES = (
    "żółć/ü",
    "percent/100%25",
    "percent/%2e%2e",
    "plus/a+b",
    "space/a b",
    "equals/date=2024-01-01",
    "mixed/a%b+c d=é",
)


@pytest.mark.parametrize("path", NAMES)
async def test_names_are_taken_literally(kind: Kind, store: BucketStore, path: str) -> None:
    await put(store, path, path.encode())
    assert await store.exists(path)
    assert await read(store, path) == path.encode()
    folder, _, name = path.rpartition("/")
    assert await paths(store, f"{folder}/") == [name]
    if kind.name in SIGNED:
        assert await fetch(kind, await store.sign_get(path, 60)) == path.encode()
    await store.remove(path)
    assert not await store.exists(path)


async def test_the_store_url_may_rewrite_paths(kind: Kind) -> None:
    prefix = f"{uuid.uuid4().hex[:12]}/"
    plain = kind.store(prefix=prefix)
    rewriting = kind.store("?find=acme/&replace=v2/deep/", prefix)
    await put(rewriting, PATH, b"hello")
    assert await read(plain, f"v2/deep/orders/{NAME}") == b"hello"
    assert await read(rewriting, PATH) == b"hello"
    assert await paths(rewriting, "acme/orders/") == [NAME]
    assert await paths(plain, "acme/") == []
    assert f"{prefix}v2/deep/orders/{NAME}" in await rewriting.sign_get(PATH, 60)
    await rewriting.remove(PATH)
    assert await paths(plain, "") == []


async def test_rewriting_may_turn_the_slash_that_ends_a_prefix_into_something_else(kind: Kind) -> None:
    store = kind.store("?find=/&replace=_")
    for path in ("acme/one", "acme/deep/two", "acmes/three"):
        await put(store, path, b"x")
    assert await paths(store, "acme/") == ["deep/two", "one"]


@pytest.mark.parametrize("size", [1000, len(LARGE)], ids=["small", "parts"])
async def test_a_file_that_is_too_short_leaves_nothing(kind: Kind, tmp_path: Path, size: int) -> None:
    store = kind.store()
    file = tmp_path / "cut"
    file.write_bytes(LARGE[: size - 100])
    with pytest.raises(CorruptError, match=f"ends at {size - 100} of {size}"):
        await store.put(PATH, file, size=size)
    assert not await store.exists(PATH)
    assert await paths(store, "") == []
    await put(store, PATH, b"whole")
    assert await read(store, PATH) == b"whole"
    if kind.root:
        assert [path.name for path in kind.root.rglob("*.partial*")] == []


async def test_a_put_that_is_cancelled_stores_all_or_nothing(kind: Kind, store: BucketStore) -> None:
    for steps in range(0, 24, 3):
        path = f"acme/{steps}"
        task = asyncio.get_running_loop().create_task(put(store, path, LARGE))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert store.operations == 0
    for found in await listed(store, ""):
        assert found.size == len(LARGE)
    await put(store, PATH, LARGE)
    assert await read(store, PATH) == LARGE


async def test_bytes_come_back_as_they_were_put_whatever_their_encoding(store: BucketStore) -> None:
    content = gzip.compress(b"hello" * 1000)
    await put(store, PATH, content, "gzip")
    assert await read(store, PATH) == content
    assert await read(store, PATH, 3, 4) == content[3:7]
    assert await store.size(PATH) == len(content)


async def fetch(kind: Kind, url: str, headers: dict[str, str] | None = None) -> bytes:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=kind.trust or True) as answer:
        answer.raise_for_status()
        return await answer.read()


async def test_anyone_may_read_by_a_signed_url(kind: Kind, store: BucketStore) -> None:
    await put(store, PATH, b"0123456789")
    url = await store.sign_get(PATH, 60)
    if kind.name not in SIGNED:
        assert url.endswith(PATH)
        return
    marks = {"s3": "AWS4-HMAC-SHA256", "gs": "GOOG4-RSA-SHA256", "azure": "spr=https", "azure-ad": "skoid="}
    assert marks[kind.name] in url
    assert await fetch(kind, url) == b"0123456789"
    assert await fetch(kind, url, {"Range": "bytes=3-5"}) == b"345"


async def test_a_signature_is_good_for_a_week_at_most(store: BucketStore) -> None:
    for ttl_s in (0, -1, 8 * 24 * 3600):
        with pytest.raises(ValidationError, match="7 days"):
            await store.sign_get(PATH, ttl_s)


async def test_a_bucket_that_is_not_there_denies(kind: Kind, request: pytest.FixtureRequest) -> None:
    if kind.name == "memory":
        pytest.skip("a bucket in memory is always there")
    missing = await open_kind(kind.name, request, "missing")
    store = BucketStore(FragmentStore.parse(missing.url + ("missing/" if kind.name == "file" else "")), missing.bucket)
    with pytest.raises(StoreDeniedError, match="check that it exists"):
        await put(store, PATH, b"hello")
    with pytest.raises(StoreDeniedError, match=store.name):
        await listed(store, "acme/")
    await store.close()


async def test_what_another_process_wrote_shows_at_once(kind: Kind, request: pytest.FixtureRequest) -> None:
    if kind.name == "memory":
        pytest.skip("memory is of one process")
    other = await open_kind(kind.name, request)
    prefix = f"{uuid.uuid4().hex[:12]}/"
    ours, theirs = kind.store(prefix=prefix), other.store(prefix=prefix)
    for at in range(3):
        await put(theirs, PATH, b"x" * at)
        await put(theirs, f"acme/orders/{at}", b"x")
        assert await ours.size(PATH) == at
        assert [found.size for found in await listed(ours, "acme/orders/") if found.path == NAME] == [at]
        assert len(await listed(ours, "acme/orders/")) == at + 2
    await theirs.close()


async def test_many_may_be_under_way_at_once(store: BucketStore) -> None:
    async def round_trip(at: int) -> None:
        await put(store, f"acme/{at}", LARGE[: at * 10_000])
        assert await read(store, f"acme/{at}") == LARGE[: at * 10_000]

    async with asyncio.TaskGroup() as group:
        for at in range(1, 16):
            group.create_task(round_trip(at))
    assert store.operations == 0


async def test_a_request_that_is_not_answered_ends_at_its_deadline(
    kind: Kind, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind.name == "memory":
        pytest.skip("memory always answers")
    deadlines = Deadlines(request_s=0.1, put_s=0.1)
    if kind.root is not None:
        store = kind.store(deadlines=deadlines)
        # A pipe that nobody writes to is a file that hangs.
        pipe = Path(f"{kind.root}{FragmentStore.parse(store.name).prefix}hangs")
        os.mkfifo(pipe)
        with pytest.raises(UnavailableError, match=r"did not get within 0\.1 s"):
            await read(store, "hangs")
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return
    async with silent_server() as endpoint:
        bucket = await open_at(kind.name, endpoint, monkeypatch)
        store = BucketStore(FragmentStore.parse(kind.url), bucket, deadlines)
        with pytest.raises(UnavailableError, match=r"did not get within 0\.1 s"):
            await read(store, PATH)
        with pytest.raises(UnavailableError, match="did not put"):
            await put(store, PATH, LARGE)
        with pytest.raises(UnavailableError, match="did not list"):
            await listed(store, "acme/")
        await store.close()


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Takes connections and what is sent on them, and says nothing."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            pass
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1")
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def open_at(name: str, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    match name:
        case "s3":
            return await asyncio.to_thread(open_s3, FragmentStore.parse(f"s3://{BUCKET}/?endpoint={endpoint}"), SIZES)
        case "gs":
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
            return await asyncio.to_thread(open_gcs, FragmentStore.parse(f"gs://{BUCKET}/"), os.environ, SIZES)
        case _:
            service = blob_service(endpoint, AzureNamedKeyCredential(AZURE_ACCOUNT, AZURE_KEY))
            return AzureContainer(service, BUCKET, AccountKey(AZURE_KEY), SIZES)


async def test_a_closed_store_says_so(request: pytest.FixtureRequest, kind: Kind) -> None:
    opened = await open_kind(kind.name, request)
    store = opened.store()
    await store.close()
    await store.close()
    with pytest.raises(UnavailableError, match="open it again"):
        await store.exists(PATH)
