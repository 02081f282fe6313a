"""``gs://``: Google Cloud Storage, through gcsfs.

gcsfs brings the session and the credentials. Requests are our own: its requests hold whole objects in memory, and its
errors do not tell a missing object from a missing bucket.
"""

# Methods of fsspec's file systems that are coroutines begin with an underscore by its convention.
# ruff: noqa: SLF001

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import aiohttp
from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]
from gcsfs.retry import HttpError, NonRetryableError  # type: ignore[import-untyped]
from google.auth.credentials import AnonymousCredentials, Signing
from google.auth.exceptions import GoogleAuthError, TransportError
from google.cloud import storage  # type: ignore[import-untyped]
from yarl import URL

from fragment.stores.blob_store import Batch, Fault, ListedObject, StoreDeniedError
from fragment.stores.bucket import CHUNK_BYTES, TransferSizes
from fragment.stores.file_range import FileRange
from protocol.fragment_store import FragmentStore

# Little files are read into memory and sent in one request; larger ones go in parts, streamed from the disk.
SIZES = TransferSizes(single_put_bytes_max=8 * 1024**2, part_bytes=64 * 1024**2)
_PART_UNIT = 256 * 1024
"""All parts but the last must be multiples of this."""
_TRANSIENT = {408, 429, 500, 502, 503, 504}
_ATTEMPTS = 3


class AnswerError(Exception):
    """An answer of 400 or above."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code


class GcsBucket:
    def __init__(self, file_system: GCSFileSystem, bucket: str, sizes: TransferSizes = SIZES) -> None:
        assert sizes.part_bytes % _PART_UNIT == 0
        self._file_system = file_system
        self._bucket = bucket
        self._sizes = sizes
        self._objects = f"{file_system.base}b/{quote(bucket, safe='')}/o"
        self._uploads = f"{file_system._location}/upload/storage/v1/b/{quote(bucket, safe='')}/o"
        self._signer = _signer(file_system, bucket)

    async def size(self, key: str) -> int | None:
        try:
            return int(json.loads(await self._answer("GET", self._object(key), params={"fields": "size"}))["size"])
        except AnswerError as error:
            if error.status == 404 and error.code != "NoSuchBucket":
                return None
            raise

    async def read(self, key: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        # Asked for as gzip, what was put with that encoding comes as it was put; else Google would decode it.
        headers = {"Accept-Encoding": "gzip"}
        if offset or length is not None:
            headers["Range"] = f"bytes={offset}-" + ("" if length is None else str(offset + length - 1))
        try:
            async with self._request("GET", self._object(key), {"alt": "media"}, headers) as response:
                while chunk := await response.content.read(CHUNK_BYTES):
                    yield chunk
        except AnswerError as error:
            if error.status != 416:
                raise

    async def write(self, key: str, source: FileRange, content_encoding: str | None) -> None:
        described = {"contentEncoding": content_encoding} if content_encoding else {}
        if 0 < source.size <= self._sizes.single_put_bytes_max:
            content = await asyncio.to_thread(source.read_all)
            params = {"uploadType": "media", "name": key, **described}
            await self._answer("POST", self._uploads, params=params, data=content)
            return
        params = {"uploadType": "resumable", "name": key}
        async with self._request("POST", self._uploads, params, json=described) as response:
            upload = response.headers["Location"]
        offset = 0
        while True:
            offset = await self._send_part(upload, source, offset)
            if offset >= source.size:
                return

    async def _send_part(self, upload: str, source: FileRange, offset: int) -> int:
        """Send the next part. Returns how far the store has got, which may be less than was sent."""
        part = source.window(offset, self._sizes.part_bytes)
        span = f"{offset}-{offset + part.size - 1}" if part.size else "*"
        headers = {"Content-Range": f"bytes {span}/{source.size}", "Content-Length": str(part.size)}
        try:
            async with self._request("PUT", upload, headers=headers, data=part if part.size else b"") as response:
                if response.status != 308:
                    return source.size
                return int(response.headers["Range"].rpartition("-")[2]) + 1 if "Range" in response.headers else 0
        finally:
            source.ended_at = part.ended_at

    async def pages(self, prefix: str) -> AsyncGenerator[Batch, None]:
        params = {
            "prefix": prefix,
            "maxResults": str(self._sizes.page_keys),
            "fields": "items(name,size,updated),nextPageToken",
        }
        while True:
            answer = await self._answer("GET", self._objects, params=params)
            page, token = await asyncio.to_thread(_parse_page, answer, len(prefix))
            yield page
            if not token:
                return
            params["pageToken"] = token

    async def remove(self, key: str) -> None:
        try:
            await self._answer("DELETE", self._object(key))
        except AnswerError as error:
            if error.status != 404 or error.code == "NoSuchBucket":
                raise

    async def sign(self, key: str, ttl_s: float) -> str:
        await self._refresh_token()
        return await asyncio.to_thread(self._signed, key, ttl_s)

    def _signed(self, key: str, ttl_s: float) -> str:
        credentials = self._file_system.credentials.credentials
        by_google = {}
        if not isinstance(credentials, Signing):
            # Without a private key (workload identity) Google's IAM service signs for the account, if it may.
            account = getattr(credentials, "service_account_email", None)
            if account is None:
                raise StoreDeniedError(
                    f"gs://{self._bucket} could not sign: these credentials are not of a service account; "
                    "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account's key"
                )
            by_google = {"service_account_email": account, "access_token": credentials.token}
        url: str = self._signer.blob(key).generate_signed_url(
            version="v4",
            expiration=timedelta(seconds=ttl_s),
            api_access_endpoint=self._file_system._location,
            **by_google,
        )
        return url

    async def close(self) -> None:
        if self._file_system._session is not None:
            await self._file_system._session.close()

    def fault(self, error: Exception) -> Fault | None:
        match error:
            case AnswerError():
                return Fault(error.status, error.code)
            # What gcsfs makes of a token that is not renewed, be it for a reason that lasts or not.
            case HttpError() | GoogleAuthError():
                cause = error.__cause__ or error
                passing = isinstance(cause, TransportError) or getattr(cause, "retryable", False)
                return Fault(None if passing else 401, type(cause).__name__)
            case NonRetryableError():
                return Fault(401, type(error).__name__)
            case aiohttp.ClientError() | OSError():
                return Fault(None, type(error).__name__)
            case _:
                return None

    def _object(self, key: str) -> str:
        return f"{self._objects}/{quote(key, safe='')}"

    async def _answer(self, method: str, url: str, **arguments: Any) -> bytes:
        """The whole answer to a small request, which is tried again if the store was busy."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with self._request(method, url, **arguments) as response:
                    return await response.read()
            except (AnswerError, aiohttp.ClientError) as error:
                busy = not isinstance(error, AnswerError) or error.status in _TRANSIENT
                if attempt == _ATTEMPTS or not busy:
                    raise
            await asyncio.sleep(0.2 * attempt)
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        url: str,
        params: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        **content: Any,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        session: aiohttp.ClientSession = await self._file_system._set_session()
        await self._refresh_token()
        async with session.request(
            method,
            # Already escaped: a slash within a key must stay %2F.
            URL(url, encoded=True).extend_query(params or {}),
            headers=self._file_system._get_headers({"Accept-Encoding": "identity", **(headers or {})}),
            allow_redirects=False,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
            **content,
        ) as response:
            if response.status >= 400:
                raise AnswerError(response.status, _code(await response.content.read(CHUNK_BYTES)))
            yield response

    async def _refresh_token(self) -> None:
        """Beforehand and in a thread, where it has run out: gcsfs would do it in the event loop."""
        credentials = self._file_system.credentials
        if credentials.credentials is not None and not credentials._credentials_valid(refresh_buffer=300):
            await asyncio.to_thread(credentials.maybe_refresh)


def open_gcs(store: FragmentStore, environ: Mapping[str, str], sizes: TransferSizes = SIZES) -> GcsBucket:
    """To be called in a thread: credentials may come from a file or from the machine's metadata server."""
    emulated = "STORAGE_EMULATOR_HOST" in environ and "GOOGLE_APPLICATION_CREDENTIALS" not in environ
    try:
        file_system = GCSFileSystem(
            asynchronous=True,
            use_listings_cache=False,
            skip_instance_cache=True,
            token="anon" if emulated else "google_default",
        )
    except GoogleAuthError as error:
        raise StoreDeniedError(
            f"gs://{store.host}{store.path} needs Google credentials: set GOOGLE_APPLICATION_CREDENTIALS to the "
            "file of a service account's key, or run where workload identity provides them"
        ) from error
    return GcsBucket(file_system, store.host, sizes)


def _signer(file_system: GCSFileSystem, bucket: str) -> Any:
    """Google's own client, for its signatures only."""
    credentials = file_system.credentials.credentials or AnonymousCredentials()  # type: ignore[no-untyped-call]
    return storage.Client(project=file_system.project or "none", credentials=credentials).bucket(bucket)


def _parse_page(body: bytes, prefix_length: int) -> tuple[Batch, str]:
    """The objects of a page, and the token that asks for the next one."""
    answer = json.loads(body)
    page = []
    for item in answer.get("items", ()):
        modified = datetime.fromisoformat(item["updated"])
        page.append(ListedObject(item["name"][prefix_length:], int(modified.timestamp()), int(item["size"])))
    return page, answer.get("nextPageToken", "")


def _code(body: bytes) -> str:
    """The reason in an error's JSON, with a word of ours for the one case in which it does not tell enough."""
    try:
        error = json.loads(body)["error"]
        if "bucket does not exist" in error["message"]:
            return "NoSuchBucket"
        return str(error["errors"][0]["reason"])[:64]
    except (ValueError, LookupError, TypeError):
        return ""
