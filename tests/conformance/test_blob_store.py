"""What every store must do, whatever is behind it. Each test runs over each kind of store, on real servers."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential

from fragment.stores.azure import AccountKey, AzureContainer, DelegationKey, blob_service
from fragment.stores.blob_store import BlobNotFoundError, BlobStore, ListedObject, StoreDeniedError
from fragment.stores.bucket import Bucket, TransferSizes
from fragment.stores.bucket_store import BucketStore, Deadlines
from fragment.stores.filesystem import Folder
from fragment.stores.gcs import open_gcs
from fragment.stores.memory import MemoryBucket
from fragment.stores.s3 import open_s3
from protocol.errors import CorruptError, UnavailableError
from protocol.fragment_store import FragmentStore
from tests.support.object_servers import AZURE_ACCOUNT, AZURE_KEY, BUCKET, AzureServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

# So little that pages and parts happen with what a test can write. GCS takes parts of 256 KiB and their multiples.
SIZES = TransferSizes(single_put_bytes_max=100_000, part_bytes=256 * 1024, page_keys=20)
KINDS = ("file", "memory", "s3", "gs", "azure", "azure-ad")
NAME = "0000000000000000-0000000000000006-8843d7f92416211de9ebb963ff4ce28125932878.sz"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of store, opened once for all tests. Each test has a prefix of its own in it."""

    name: str
    url: str
    bucket: Bucket
    trust: ssl.SSLContext | None = None

    def store(self, query: str = "", deadlines: Deadlines | None = None, prefix: str | None = None) -> BucketStore:
        prefix = prefix or f"{uuid.uuid4().hex[:12]}/"
        if isinstance(self.bucket, Folder):
            os.makedirs(f"{self.bucket._root}/{prefix}", exist_ok=True)  # noqa: SLF001 -- the base must exist
        return BucketStore(FragmentStore.parse(f"{self.url}{prefix}{query}"), self.bucket, deadlines)


@pytest.fixture(scope="session", params=KINDS)
def kind_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
async def kind(
    kind_name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Kind, None]:
    opened = await open_kind(kind_name, request, tmp_path_factory)
    yield opened
    await opened.bucket.close()


async def open_kind(name: str, request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Kind:
    match name:
        case "file":
            root = folders.mktemp("file-root")
            return Kind(name, "file:///", Folder(root, "/", SIZES.page_keys))
        case "memory":
            return Kind(name, f"s3://{BUCKET}/", MemoryBucket(page_keys=SIZES.page_keys))
        case "s3":
            url = f"s3://{BUCKET}/?endpoint={request.getfixturevalue('s3_endpoint')}&region=us-east-1"
            return Kind(name, f"s3://{BUCKET}/", await asyncio.to_thread(open_s3, FragmentStore.parse(url), SIZES))
        case "gs":
            request.getfixturevalue("gcs_endpoint")
            store = FragmentStore.parse(f"gs://{BUCKET}/")
            return Kind(name, store.url, await asyncio.to_thread(open_gcs, store, os.environ, SIZES))
        case "azure":
            return await open_azurite(name, request.getfixturevalue("azurite"), f"azure://{BUCKET}/")
        case _:
            return await open_azurite(
                name, request.getfixturevalue("azurite"), f"azure-ad://tenant/{AZURE_ACCOUNT}/{BUCKET}/"
            )


async def open_azurite(name: str, server: AzureServer, url: str) -> Kind:
    by_key = name == "azure"
    credential = AzureNamedKeyCredential(AZURE_ACCOUNT, AZURE_KEY) if by_key else UserToken()
    service = blob_service(server.endpoint, credential, connection_verify=str(server.certificate))
    container = service.get_container_client(BUCKET)
    if not await container.exists():
        await container.create_container()
    signer = AccountKey(AZURE_KEY) if by_key else DelegationKey(service)
    trust = ssl.create_default_context(cafile=server.certificate)
    return Kind(name, url, AzureContainer(service, BUCKET, signer, SIZES), trust)


class UserToken:
    """A token as Azure's identity service makes it, but for its signature, which Azurite does not look at."""

    async def get_token(self, *scopes: str, **_: object) -> AccessToken:
        now = int(time.perf_counter() * 0) + int(asyncio.get_running_loop().time() * 0)
        del now
        issued = int(os.stat("/proc/self").st_ctime)
        claims = {
            "aud": "https://storage.azure.com",
            "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
            "iat": issued - 60,
            "nbf": issued - 60,
            "exp": issued + 7200,
        }
        parts = [{"alg": "RS256", "typ": "JWT"}, claims]
        head, body = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        return AccessToken(f"{head}.{body}.c2lnbmF0dXJl", issued + 7200)

    async def close(self) -> None: ...


@pytest.fixture
def store(kind: Kind) -> BucketStore:
    return kind.store()


@pytest.fixture
def put(content_file: Path) -> Callable[..., object]:
    async def put_content(store: BlobStore, path: str, content: bytes, encoding: str | None = None) -> None:
        content_file.write_bytes(content)
        await store.put(path, content_file, size=len(content), content_encoding=encoding)

    return put_content


async def read(store: BlobStore, path: str, offset: int = 0, length: int | None = None) -> bytes:
    async with aclosing(store.get(path, offset, length)) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def listed(store: BlobStore, prefix: str) -> list[ListedObject]:
    async with aclosing(store.list(prefix)) as batches:
        return sorted([found async for batch in batches for found in batch])


async def paths(store: BlobStore, prefix: str) -> list[str]:
    return [found.path for found in await listed(store, prefix)]


async def test_what_was_put_is_there(store: BucketStore, put: Callable[..., object]) -> None:
    path = f"acme/orders/{NAME}"
    assert not await store.exists(path)
    await put(store, path, b"hello")
    assert await store.exists(path)
    assert await store.size(path) == 5
    assert await read(store, path) == b"hello"
