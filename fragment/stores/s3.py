"""``s3://``: Amazon S3 and its kin, through s3fs.

s3fs brings sessions, credentials and retries; requests are made by bucket and key rather than by its paths, in which
some keys cannot be said.
"""

# Methods of fsspec's file systems that are coroutines begin with an underscore by its convention.
# ruff: noqa: SLF001

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import unquote_plus

import aiohttp
from aiobotocore.session import AioSession  # type: ignore[import-untyped]
from botocore.exceptions import (  # type: ignore[import-untyped]
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.loaders import Loader, create_loader  # type: ignore[import-untyped]
from s3fs import S3FileSystem  # type: ignore[import-untyped]

from fragment.stores.blob_store import Batch, Fault, ListedObject, StoreDeniedError
from fragment.stores.bucket import CHUNK_BYTES, TransferSizes
from fragment.stores.file_range import FileRange
from fragment.stores.listing_page import Fields, parse_page
from protocol.fragment_store import FragmentStore, StoreArguments

# S3 takes 5 GiB in one request, and 10,000 parts.
SIZES = TransferSizes(single_put_bytes_max=5 * 1024**3, part_bytes=64 * 1024**2)
_PARTS_MAX = 10_000
_ABORT_S = 10


class S3Bucket:
    def __init__(
        self,
        file_system: S3FileSystem,
        bucket: str,
        arguments: StoreArguments,
        sizes: TransferSizes = SIZES,
    ) -> None:
        self._file_system = file_system
        self._bucket = bucket
        self._put_arguments = _put_arguments(arguments)
        self._sizes = sizes
        # Before the handlers of botocore, of which one parses the page as well.
        file_system.s3.meta.events.register_first("before-parse.s3.ListObjectsV2", _keep_page)

    async def size(self, key: str) -> int | None:
        try:
            return int((await self._call("head_object", Key=key))["ContentLength"])
        except FileNotFoundError:
            # A bucket that does not exist looks the same: answers to HEAD have no body that would tell.
            return None

    async def read(self, key: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        chosen = {}
        if offset or length is not None:
            chosen["Range"] = f"bytes={offset}-" + ("" if length is None else str(offset + length - 1))
        try:
            answer = await self._call("get_object", Key=key, **chosen)
        except OSError as error:
            if (fault := self.fault(error)) and fault.status == 416:
                return
            raise
        async with answer["Body"] as body:
            while chunk := await body.read(CHUNK_BYTES):
                yield chunk

    async def write(self, key: str, source: FileRange, content_encoding: str | None) -> None:
        arguments = dict(self._put_arguments, Key=key)
        if content_encoding:
            arguments["ContentEncoding"] = content_encoding
        if source.size > self._sizes.single_put_bytes_max:
            await self._write_parts(arguments, source)
        else:
            body = source if source.size else b""
            await self._call("put_object", Body=body, ContentLength=source.size, **arguments)

    async def _write_parts(self, arguments: dict[str, str], source: FileRange) -> None:
        part_bytes = max(self._sizes.part_bytes, -(-source.size // _PARTS_MAX))
        begun = await self._call("create_multipart_upload", **arguments)
        upload = {"Key": arguments["Key"], "UploadId": begun["UploadId"]}
        try:
            parts = []
            for number, offset in enumerate(range(0, source.size, part_bytes), start=1):
                part = source.window(offset, part_bytes)
                try:
                    sent = await self._call(
                        "upload_part", PartNumber=number, Body=part, ContentLength=part.size, **upload
                    )
                finally:
                    source.ended_at = part.ended_at
                parts.append({"PartNumber": number, "ETag": sent["ETag"]})
            await self._call("complete_multipart_upload", MultipartUpload={"Parts": parts}, **upload)
        except BaseException:
            # Parts of an upload that was not completed are invisible, but they are stored and paid for.
            with suppress(TimeoutError, OSError, BotoCoreError):
                async with asyncio.timeout(_ABORT_S):
                    await self._call("abort_multipart_upload", **upload)
            raise

    async def pages(self, prefix: str) -> AsyncGenerator[Batch, None]:
        following: dict[str, str] = {}
        while True:
            answer = await self._call("list_objects_v2", Prefix=prefix, MaxKeys=self._sizes.page_keys, **following)
            page, token = await asyncio.to_thread(_parse_page, answer["Page"], len(prefix))
            yield page
            if not token:
                return
            following = {"ContinuationToken": token}

    async def remove(self, key: str) -> None:
        await self._call("delete_object", Key=key)

    async def sign(self, key: str, ttl_s: float) -> str:
        params = {"Bucket": self._bucket, "Key": key}
        url: str = await self._file_system.s3.generate_presigned_url("get_object", params, ExpiresIn=int(ttl_s))
        return url

    async def close(self) -> None:
        await self._file_system._s3creator.__aexit__(None, None, None)

    def fault(self, error: Exception) -> Fault | None:
        # s3fs makes errors of the operating system from the answers of S3, and some of those say less.
        answered = error.__cause__ if isinstance(error.__cause__, ClientError) else error
        if isinstance(answered, ClientError):
            response = answered.response
            return Fault(response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"])
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return Fault(401, type(error).__name__)
        if isinstance(error, BotoCoreError | aiohttp.ClientError | OSError):
            return Fault(None, type(error).__name__)
        return None

    async def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self._file_system._call_s3(method, Bucket=self._bucket, **arguments)
        return answer


def open_s3(store: FragmentStore, sizes: TransferSizes = SIZES) -> S3Bucket:
    """To be called in a thread: botocore reads megabytes of models, which takes a tenth of a second."""
    arguments = store.arguments()
    session = AioSession(profile=arguments.profile or None)
    session.register_component("data_loader", _models())
    file_system = S3FileSystem(
        session=session,
        asynchronous=True,
        use_listings_cache=False,
        skip_instance_cache=True,
        endpoint_url=arguments.endpoint or None,
        client_kwargs={"region_name": arguments.region} if arguments.region else {},
        config_kwargs={
            "s3": {
                "addressing_style": "path" if arguments.endpoint else "auto",
                # Else the whole file is read for its sum before it is sent, in the event loop.
                "payload_signing_enabled": False,
            },
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            # Signed URLs of the older form are refused by the newer regions.
            "signature_version": "s3v4",
            # Once more, as a connection that was kept may be closed by now. Who needs more tries again with a pause.
            "retries": {"mode": "standard", "max_attempts": 2},
            "max_pool_connections": 64,
            "read_timeout": 60,
        },
    )
    # botocore tries again by itself; twice over would only outlast the deadline.
    file_system.retries = 1
    try:
        # The client is made here, in a loop of this thread, and used in the caller's: it opens connections
        # only with the first request.
        asyncio.run(file_system.set_session())
    except ProfileNotFound as error:
        raise StoreDeniedError(
            f"s3://{store.host}{store.path} names an AWS profile that this machine does not have: "
            "add it to the AWS configuration, or correct the store's profile argument"
        ) from error
    return S3Bucket(file_system, store.host, arguments, sizes)


@cache
def _models() -> Loader:
    """What botocore knows of S3, once for all stores: ten megabytes."""
    return create_loader()


def _put_arguments(arguments: StoreArguments) -> dict[str, str]:
    """Only what the store's URL asks for: else the bucket's own defaults apply."""
    asked = {
        "ACL": arguments.acl,
        "StorageClass": arguments.storage_class,
        "ServerSideEncryption": arguments.sse,
        "SSEKMSKeyId": arguments.sse_kms_key_id,
    }
    return {name: value for name, value in asked.items() if value}


def _keep_page(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Keep a page of a listing as it came: botocore would parse it in the event loop, a thousand keys in 70 ms."""
    if response_dict["status_code"] == 200:
        customized_response_dict["Page"] = response_dict["body"]
        response_dict["body"] = b""


def _parse_page(body: bytes, prefix_length: int) -> tuple[Batch, str]:
    """The objects of a page, and the token that asks for the next one."""
    # Asked for by botocore, for keys that XML cannot say; not every server does it.
    unescaped = unquote_plus if b"<EncodingType>url<" in body else str

    def listed(fields: Fields) -> ListedObject:
        modified = datetime.fromisoformat(fields["LastModified"])
        return ListedObject(unescaped(fields["Key"])[prefix_length:], int(modified.timestamp()), int(fields["Size"]))

    page, beside = parse_page(body, "ListBucketResult", "Contents", listed)
    return page, beside.get("NextContinuationToken", "")
