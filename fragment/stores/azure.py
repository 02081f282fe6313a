"""``azure://`` and ``azure-ad://``: Azure Blob Storage.

Through the client library that adlfs is made of, without adlfs itself: its file system in asynchronous mode is never
freed and fails noisily when the process exits, because of finalizers that hold the object they wait for.
"""

# What is streamed goes around the library's models, through the pipeline that they use.
# ruff: noqa: SLF001

from __future__ import annotations

import asyncio
import base64
import binascii
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import unquote

from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.core.rest import AsyncHttpResponse, HttpRequest
from azure.identity.aio import ClientSecretCredential, DefaultAzureCredential
from azure.storage.blob import BlobBlock, BlobSasPermissions, ContentSettings, UserDelegationKey, generate_blob_sas
from azure.storage.blob.aio import BlobServiceClient, LinearRetry

from fragment.stores.blob_store import Batch, Fault, ListedObject, StoreDeniedError
from fragment.stores.bucket import TransferSizes
from fragment.stores.file_range import FileRange
from fragment.stores.listing_page import Fields, parse_page
from protocol.fragment_store import FragmentStore

# A block is held in memory, one at a time for each upload. 50,000 of them make the largest blob: 390 GiB.
SIZES = TransferSizes(single_put_bytes_max=8 * 1024**2, part_bytes=8 * 1024**2)
_KEY_VALID = timedelta(hours=2)
_CLOCK_SKEW = timedelta(minutes=15)


class Signer(Protocol):
    """What makes the signature of a URL: the account's key, or one that is lent to a user."""

    async def signing_key(self, expiry: datetime) -> dict[str, Any]:
        """The argument of ``generate_blob_sas`` for a signature that is good until then."""
        ...


class AzureContainer:
    def __init__(
        self,
        service: BlobServiceClient,
        container: str,
        signer: Signer,
        sizes: TransferSizes = SIZES,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._service = service
        self._container = service.get_container_client(container)
        self._signer = signer
        self._sizes = sizes
        self._now = now

    async def size(self, key: str) -> int | None:
        try:
            return (await self._container.get_blob_client(key).get_blob_properties()).size
        except ResourceNotFoundError as error:
            if _error_code(error) != "BlobNotFound":
                raise
            return None

    async def read(self, key: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        headers = {}
        if offset or length is not None:
            headers["x-ms-range"] = f"bytes={offset}-" + ("" if length is None else str(offset + length - 1))
        try:
            async with self._streamed(self._container.get_blob_client(key).url, headers=headers) as response:
                async for chunk in response.iter_raw():
                    yield chunk
        except HttpResponseError as error:
            if error.status_code != 416:
                raise

    async def write(self, key: str, source: FileRange, content_encoding: str | None) -> None:
        blob = self._container.get_blob_client(key)
        settings = ContentSettings(content_type="application/octet-stream", content_encoding=content_encoding)
        if source.size <= self._sizes.single_put_bytes_max:
            content = await asyncio.to_thread(source.read_all)
            await blob.upload_blob(content, overwrite=True, content_settings=settings)
            return
        # Of one upload alone: a second writer of this name must not commit a mixture.
        upload = uuid.uuid4().hex
        blocks: list[BlobBlock] = []
        for offset in range(0, source.size, self._sizes.part_bytes):
            part = source.window(offset, self._sizes.part_bytes)
            try:
                content = await asyncio.to_thread(part.read_all)
            finally:
                source.ended_at = part.ended_at
            block = f"{upload}-{len(blocks):08d}"
            await blob.stage_block(block, content, len(content))
            blocks.append(BlobBlock(block))
        await blob.commit_block_list(blocks, content_settings=settings)

    async def pages(self, prefix: str) -> AsyncGenerator[Batch, None]:
        params = {
            "restype": "container",
            "comp": "list",
            "prefix": prefix,
            "maxresults": str(self._sizes.page_keys),
        }
        while True:
            async with self._streamed(self._container.url, params=params) as response:
                body = await response.read()
            page, marker = await asyncio.to_thread(_parse_page, body, len(prefix))
            yield page
            if not marker:
                return
            params["marker"] = marker

    @asynccontextmanager
    async def _streamed(
        self, url: str, headers: dict[str, str] | None = None, params: dict[str, str] | None = None
    ) -> AsyncIterator[AsyncHttpResponse]:
        """An answer as it comes.

        The library would read an object piece by piece, each after the other has arrived, and would take a third of a
        second to make objects of a thousand listed names.
        """
        version = {"x-ms-version": self._container.api_version, "Accept-Encoding": "identity"}
        request = HttpRequest("GET", url, headers={**version, **(headers or {})}, params=params)
        # The attribute is declared in a class that the synchronous client shares.
        pipeline: Any = self._container._pipeline
        response: AsyncHttpResponse = (await pipeline.run(request, stream=True)).http_response
        async with response:
            if response.status_code >= 400:
                await response.read()
                raise HttpResponseError(response=response)
            yield response

    async def remove(self, key: str) -> None:
        try:
            await self._container.get_blob_client(key).delete_blob()
        except ResourceNotFoundError as error:
            if _error_code(error) != "BlobNotFound":
                raise

    async def sign(self, key: str, ttl_s: float) -> str:
        expiry = self._now() + timedelta(seconds=ttl_s)
        signature = generate_blob_sas(
            str(self._service.account_name),
            self._container.container_name,
            key,
            permission=BlobSasPermissions(read=True),
            expiry=expiry,
            protocol="https",
            **await self._signer.signing_key(expiry),
        )
        return f"{self._container.get_blob_client(key).url}?{signature}"

    async def close(self) -> None:
        await self._service.close()

    def fault(self, error: Exception) -> Fault | None:
        match error:
            # Also of the identity service, and where there is no identity to ask for at all.
            case ClientAuthenticationError():
                return Fault(error.status_code or 401, _error_code(error))
            case HttpResponseError():
                return Fault(error.status_code, _error_code(error))
            case AzureError() | OSError():
                return Fault(None, type(error).__name__)
            case _:
                return None


class AccountKey:
    """Signs with the key of the storage account."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def signing_key(self, expiry: datetime) -> dict[str, Any]:
        return {"account_key": self._key}


class DelegationKey:
    """Signs with a key that Azure lends to a user; it is asked for once in a while, not for every URL."""

    def __init__(self, service: BlobServiceClient, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._service = service
        self._now = now
        self._key: UserDelegationKey | None = None
        self._good_until = now()
        self._renew_at = now()

    async def signing_key(self, expiry: datetime) -> dict[str, Any]:
        """A URL dies with the key it was signed with, so the key has to outlive it."""
        now = self._now()
        if self._key is None or now >= self._renew_at or expiry >= self._good_until:
            # At half of its life it is renewed. One asked for a URL of long life lives for two of those.
            valid = min(max(_KEY_VALID, 2 * (expiry - now)), timedelta(days=7))
            self._key = await self._service.get_user_delegation_key(now - _CLOCK_SKEW, now + valid)
            self._good_until = now + valid
            self._renew_at = now + valid / 2
        return {"user_delegation_key": self._key}


def open_azure(store: FragmentStore, environ: Mapping[str, str]) -> AzureContainer:
    """``azure://container/``, in the account and with the key that the environment names."""
    account = environ.get("AZURE_ACCOUNT_NAME", "")
    key = environ.get("AZURE_ACCOUNT_KEY", "")
    if not account or not _is_base64(key):
        raise StoreDeniedError(
            f"azure://{store.host}{store.path} needs the environment variables AZURE_ACCOUNT_NAME and "
            "AZURE_ACCOUNT_KEY (as the Azure portal shows it): set them and start again"
        )
    service = blob_service(_endpoint(account, environ), AzureNamedKeyCredential(account, key))
    return AzureContainer(service, store.host, AccountKey(key))


def open_azure_ad(store: FragmentStore, environ: Mapping[str, str]) -> AzureContainer:
    """``azure-ad://tenant/account/container/``, as the application that the environment names.

    Without a secret there, as whatever the machine is: workload identity, managed identity, a developer's login.
    """
    account, container = store.bucket.split("/")
    client, secret = environ.get("AZURE_CLIENT_ID", ""), environ.get("AZURE_CLIENT_SECRET", "")
    credential = ClientSecretCredential(store.host, client, secret) if client and secret else DefaultAzureCredential()
    service = blob_service(_endpoint(account, environ), credential)
    return AzureContainer(service, container, DelegationKey(service))


def blob_service(endpoint: str, credential: Any, **transport: Any) -> BlobServiceClient:
    return BlobServiceClient(
        endpoint,
        credential,
        retry_policy=LinearRetry(backoff=1, retry_total=2, random_jitter_range=1),
        **transport,
    )


def _endpoint(account: str, environ: Mapping[str, str]) -> str:
    """``AZURE_BLOB_ENDPOINT`` is for national clouds and for Azurite."""
    return environ.get("AZURE_BLOB_ENDPOINT") or f"https://{account}.blob.core.windows.net"


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except binascii.Error:
        return False


def _error_code(error: HttpResponseError) -> str:
    headers = getattr(error.response, "headers", {})
    return str(headers.get("x-ms-error-code") or error.reason or type(error).__name__)


def _parse_page(body: bytes, prefix_length: int) -> tuple[Batch, str]:
    """The blobs of a page, and the marker that asks for the next one."""

    def listed(fields: Fields) -> ListedObject:
        name = unquote(fields["Name"]) if fields.get("Name@Encoded") == "true" else fields["Name"]
        modified = parsedate_to_datetime(fields["Last-Modified"])
        return ListedObject(name[prefix_length:], int(modified.timestamp()), int(fields["Content-Length"]))

    page, beside = parse_page(body, "EnumerationResults", "Blob", listed)
    return page, beside.get("NextMarker", "")
