from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import ServerDisconnectedError
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError
from botocore.exceptions import (  # type: ignore[import-untyped]
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
)
from gcsfs.retry import HttpError  # type: ignore[import-untyped]
from google.auth.exceptions import RefreshError, TransportError
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from s3fs.errors import translate_boto_error  # type: ignore[import-untyped]

from fragment.stores.azure import AzureContainer, DelegationKey
from fragment.stores.blob_store import (
    BlobNotFoundError,
    BlobStore,
    Fault,
    ListedObject,
    StoreDeniedError,
    error_of,
)
from fragment.stores.bucket import Bucket
from fragment.stores.bucket_store import BucketStore, Deadlines
from fragment.stores.file_range import FileRange, ShortFileError
from fragment.stores.filesystem import Folder
from fragment.stores.gcs import AnswerError, GcsBucket, open_gcs
from fragment.stores.listing_page import BrokenPageError, Fields, parse_page
from fragment.stores.open_stores import OpenStores, StoreSettings, open_bucket_of
from fragment.stores.s3 import S3Bucket
from protocol.errors import GazetteError, UnavailableError, ValidationError
from protocol.fragment_store import FragmentStore
from tests.support.golden import Case, case_id, cases
from tests.support.memory_bucket import MemoryBucket


async def put(store: BlobStore, path: str, content: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        await store.put(path, file.fileno(), size=len(content))


async def paths(store: BlobStore, prefix: str) -> list[str]:
    async with aclosing(store.list(prefix)) as batches:
        return sorted([found.path async for batch in batches for found in batch])


# Errors.


@pytest.mark.parametrize(
    ("operation", "fault", "expected"),
    [
        ("get", Fault(404, "NoSuchKey"), BlobNotFoundError),
        ("get", Fault(404, "BlobNotFound"), BlobNotFoundError),
        ("size", Fault(404, ""), BlobNotFoundError),
        ("get", Fault(404, "NoSuchBucket"), StoreDeniedError),
        ("get", Fault(404, "ContainerNotFound"), StoreDeniedError),
        ("get", Fault(404, "NoBaseFolder"), StoreDeniedError),
        ("put", Fault(404, ""), StoreDeniedError),
        ("list", Fault(404, ""), StoreDeniedError),
        ("put", Fault(403, "AccessDenied"), StoreDeniedError),
        ("put", Fault(401, "NoCredentialsError"), StoreDeniedError),
        ("put", Fault(409, "ContainerBeingDeleted"), StoreDeniedError),
        ("put", Fault(403, "AllAccessDisabled"), StoreDeniedError),
        ("put", Fault(503, "SlowDown"), UnavailableError),
        ("put", Fault(500, "InternalError"), UnavailableError),
        ("get", Fault(None, "EndpointConnectionError"), UnavailableError),
        ("put", Fault(None, "ENOSPC"), UnavailableError),
    ],
    ids=lambda value: getattr(value, "code", None) or getattr(value, "__name__", str(value)),
)
def test_a_failure_is_of_the_kind_that_callers_act_on(operation: str, fault: Fault, expected: type[Exception]) -> None:
    error = error_of("s3://bucket/prefix/", operation, "acme/x", fault)
    assert type(error) is expected
    assert "s3://bucket/prefix/" in str(error)


def test_errors_do_not_echo_without_bound() -> None:
    assert len(str(error_of("s3://bucket/", "get", "x" * 10_000, Fault(404, "NoSuchKey")))) < 300


async def test_errors_do_not_show_the_query_of_a_url() -> None:
    store = BucketStore(FragmentStore.parse("s3://bucket/p/?endpoint=http://key:secret@host"), MemoryBucket())
    with pytest.raises(BlobNotFoundError) as caught:
        await store.size("acme/x")
    assert "secret" not in str(caught.value)
    assert "s3://bucket/p/" in str(caught.value)


async def test_a_bug_of_ours_is_not_mistaken_for_a_failure_of_the_store() -> None:
    class Broken(MemoryBucket):
        async def size(self, key: str) -> int | None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await BucketStore(FragmentStore.parse("s3://bucket/"), Broken()).exists("x")


def test_a_large_upload_has_the_time_that_it_takes() -> None:
    deadlines = Deadlines(put_s=300, put_bytes_per_s=4 << 20)
    assert deadlines.of_put(0) == 300
    assert deadlines.of_put(16 << 30) == 4096


async def test_operations_are_counted_by_bucket_and_outcome() -> None:
    store = BucketStore(FragmentStore.parse("s3://counted/some/prefix/"), MemoryBucket())
    await put(store, "acme/x", b"hello")
    await paths(store, "acme/")
    with pytest.raises(BlobNotFoundError):
        async with aclosing(store.get("acme/y")) as chunks:
            await anext(chunks)
    async with aclosing(store.get("acme/x")) as chunks:
        await anext(chunks)

    def counted(operation: str, status: str) -> float | None:
        labels = {"store": "s3://counted", "operation": operation, "status": status}
        assert REGISTRY.get_sample_value("gazette_store_operation_duration_seconds_count", labels) is not None
        return REGISTRY.get_sample_value("gazette_store_operation_total", labels)

    assert counted("put", "ok") == 1
    assert counted("get", "ok") == 1
    assert counted("get", "not_found") == 1
    assert counted("list", "ok") == 1
    written = {"store": "s3://counted", "encoding": ""}
    assert REGISTRY.get_sample_value("gazette_store_put_bytes_total", written) == 5
    assert REGISTRY.get_sample_value("gazette_store_list_items_count_sum", {"store": "s3://counted"}) == 1


# FileRange.


@given(
    content=st.binary(max_size=100),
    begin=st.integers(0, 100),
    size=st.integers(0, 100),
    reads=st.lists(st.integers(1, 40), max_size=10),
)
def test_a_file_range_reads_as_the_bytes_it_stands_for(content: bytes, begin: int, size: int, reads: list[int]) -> None:
    begin = min(begin, len(content))
    end = min(begin + size, len(content))
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        whole = FileRange(file.fileno(), 0, len(content))
        piece = whole.window(begin, size)
        assert piece.size == end - begin
        assert piece.read_all() == content[begin:end]
        piece.seek(0)
        at = begin
        for length in reads:
            assert piece.read(length) == content[at : min(at + length, end)]
            at = min(at + length, end)
            assert piece.tell() == at - begin
        assert piece.seek(0, os.SEEK_END) == piece.size
        assert piece.read(10) == b""


def test_a_file_that_ends_too_early_raises_and_says_where() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"12345")
        file.flush()
        piece = FileRange(file.fileno(), 2, 8)
        assert piece.read(10) == b"345"
        with pytest.raises(ShortFileError, match="ends at 5, before 8"):
            piece.read(10)
        assert piece.ended_at == 5


# Files.


def folder_store(root: Path, url: str = "file:///") -> BucketStore:
    store = FragmentStore.parse(url)
    return BucketStore(store, Folder(root, store.prefix))


ESCAPES = [
    ("file:///", "../outside"),
    ("file:///", "../../outside"),
    ("file:///", "a/../../outside"),
    ("file:///", ".."),
    ("file:///?find=a&replace=../..", "a/outside"),
    ("file:///?find=a&replace=..", "a"),
]


@pytest.mark.parametrize(("url", "path"), ESCAPES)
async def test_no_name_leads_out_of_the_root(tmp_path: Path, url: str, path: str) -> None:
    root = tmp_path / "deep" / "root"
    root.mkdir(parents=True)
    for outside in (tmp_path / "outside", tmp_path / "deep" / "outside"):
        outside.write_bytes(b"secret")
    store = folder_store(root, url)
    for attempt in (
        lambda: put(store, path, b"overwritten"),
        lambda: store.exists(path),
        lambda: store.size(path),
        lambda: store.remove(path),
        lambda: store.sign_get(path, 60),
        lambda: paths(store, path),
        lambda: paths(store, f"{path}/"),
        lambda: anext(store.get(path)),
    ):
        with pytest.raises(ValidationError, match=r"'\.\.'"):
            await attempt()
    assert (tmp_path / "outside").read_bytes() == b"secret"
    assert (tmp_path / "deep" / "outside").read_bytes() == b"secret"
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("url", ["file:///../", "file:///a/../../b/", "file:///%2e%2e/"])
async def test_no_prefix_leads_out_of_the_root(tmp_path: Path, url: str) -> None:
    stores = OpenStores(StoreSettings(tmp_path))
    with pytest.raises(ValidationError, match=r"'\.\.'"):
        await stores.open(url)


async def test_names_that_only_look_like_escapes_are_names(tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    for name in ("..a/x", "a../x", "a/%2e%2e/x", "a/...", "a/.b"):
        await put(store, name, b"x")
    assert await paths(store, "") == sorted(("..a/x", "a../x", "a/%2e%2e/x", "a/...", "a/.b"))


async def test_folders_are_made_for_the_group_to_read_and_the_base_is_not_made(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = folder_store(root, "file:///base/")
    for _ in range(2):
        with pytest.raises(StoreDeniedError, match="NoBaseFolder"):
            await put(store, "acme/orders/x", b"hello")
        with pytest.raises(StoreDeniedError):
            await paths(store, "acme/")
        with pytest.raises(StoreDeniedError):
            await anext(store.get("acme/orders/x"))
        root.mkdir(exist_ok=True)
    (root / "base").mkdir()
    before = os.umask(0)
    try:
        await put(store, "acme/orders/x", b"hello")
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / "base/acme").stat().st_mode) == 0o750
    assert stat.S_IMODE((root / "base/acme/orders").stat().st_mode) == 0o750
    assert stat.S_IMODE((root / "base/acme/orders/x").stat().st_mode) == 0o640


async def test_files_that_are_being_written_are_not_listed(tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    await put(store, "acme/x", b"hello")
    (tmp_path / "acme/.partial-y123").write_bytes(b"he")
    assert await paths(store, "acme/") == ["x"]


async def test_a_file_gets_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    """Seen from outside while half of it is written."""
    store = folder_store(tmp_path)
    seen: list[list[str]] = []

    class HalfFile(FileRange):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                seen.append(sorted(path.name for path in (tmp_path / "acme").iterdir()))
                return b""
            self.seek(4)
            return b"half"

    await Folder(tmp_path, "/").write("/acme/x", HalfFile(0, 0, 8), None)
    assert len(seen[0]) == 1
    assert seen[0][0].startswith(".partial-x")
    assert await paths(store, "acme/") == ["x"]


async def test_links_are_followed_except_into_folders_while_listing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "acme").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"hello")
    (root / "acme" / "linked").symlink_to(tmp_path / "elsewhere" / "file")
    (root / "acme" / "round").symlink_to(root)
    (root / "acme" / "dangling").symlink_to(tmp_path / "nowhere")
    store = folder_store(root)
    assert await paths(store, "") == ["acme/linked"]
    assert await store.size("acme/linked") == 5


async def test_a_file_that_opens_after_nobody_waits_for_it_is_closed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hangs")
    store = BucketStore(FragmentStore.parse("file:///"), Folder(tmp_path, "/"), Deadlines(request_s=0.01))
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(UnavailableError, match="did not get"):
        await anext(store.get("hangs"))
    os.close(await asyncio.to_thread(os.open, tmp_path / "hangs", os.O_WRONLY))
    async with asyncio.timeout(10):
        while set(os.listdir("/proc/self/fd")) != before:  # noqa: ASYNC110 -- nothing tells
            await asyncio.sleep(0.001)
    await store.close()


async def test_google_without_an_account_cannot_sign() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
        bucket = await asyncio.to_thread(
            open_gcs, FragmentStore.parse("gs://bucket/"), {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"}
        )
        with pytest.raises(StoreDeniedError, match="GOOGLE_APPLICATION_CREDENTIALS"):
            await BucketStore(FragmentStore.parse("gs://bucket/"), bucket).sign_get("x", 60)
        await bucket.close()


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (PermissionError(errno.EACCES, "no"), Fault(403, "EACCES")),
        (PermissionError(errno.EPERM, "no"), Fault(403, "EPERM")),
        (OSError(errno.EROFS, "read-only"), Fault(403, "EROFS")),
        (OSError(errno.ENOSPC, "full"), Fault(None, "ENOSPC")),
        (OSError(errno.EIO, "broken"), Fault(None, "EIO")),
        (FileNotFoundError(errno.ENOENT, "none"), Fault(404, "ENOENT")),
        (ShortFileError("ends"), Fault(None, "ShortFileError")),
        (ZeroDivisionError(), None),
    ],
    ids=str,
)
def test_what_the_file_system_says_is_understood(tmp_path: Path, error: Exception, fault: Fault | None) -> None:
    assert Folder(tmp_path, "/").fault(error) == fault


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_folder_that_may_not_be_written_denies(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o550)
    with pytest.raises(StoreDeniedError):
        await put(folder_store(tmp_path), "x", b"hello")
    os.chmod(tmp_path, 0o750)


SIGNED_FILES = [case for case in cases("stores", "file-signed-url") if case["ok"]]


@pytest.mark.parametrize("case", SIGNED_FILES, ids=case_id)
async def test_files_are_signed_as_gazette_signs_them(tmp_path: Path, case: Case) -> None:
    store = folder_store(tmp_path, case["url"])
    if ".." in case["signed"].split("/"):
        with pytest.raises(ValidationError):
            await store.sign_get(case["path"], 60)
    else:
        assert await store.sign_get(case["path"], 60) == case["signed"]


async def test_a_listing_of_many_files_is_no_work_for_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others look into the folders, and the loop has a turn between any two batches."""
    for at in range(5_000):
        (tmp_path / f"{at:016x}").touch()
    scandir, looked = os.scandir, set[threading.Thread]()

    def seen(folder: str) -> object:
        looked.add(threading.current_thread())
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", seen)
    turns = [0]

    async def tick() -> None:
        while True:
            await asyncio.sleep(0)
            turns.append(0)

    async with asyncio.TaskGroup() as tasks:
        ticking = tasks.create_task(tick())
        async with aclosing(folder_store(tmp_path).list("")) as batches:
            found, had_turns = [], []
            async for batch in batches:
                found.append(len(batch))
                had_turns.append(len(turns))
        ticking.cancel()
    assert (sum(found), len(found) > 1) == (5_000, True)
    assert looked
    assert threading.current_thread() not in looked
    assert all(later > earlier for earlier, later in pairwise(had_turns))


# Object stores, without their servers.


def s3_answer(status: int, code: str) -> Exception:
    """As s3fs raises it: an error of the operating system because of an answer."""
    response = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code, "Message": "https://secret"}}
    return translate_boto_error(ClientError(response, "GetObject"))  # type: ignore[no-any-return]


def azure_answer(status: int, code: str) -> Exception:
    error = HttpResponseError("https://secret")
    error.status_code = status
    error.reason = code
    return error


def refreshed(retryable: bool) -> Exception:
    error = HttpError({"code": 401, "message": "Invalid Credentials"})
    error.__cause__ = RefreshError("secret", retryable=retryable)  # type: ignore[no-untyped-call]
    return error  # type: ignore[no-any-return]


FAULTS: list[tuple[type[Bucket], Exception, Fault | None]] = [
    (S3Bucket, s3_answer(404, "NoSuchKey"), Fault(404, "NoSuchKey")),
    (S3Bucket, s3_answer(404, "NoSuchBucket"), Fault(404, "NoSuchBucket")),
    (S3Bucket, s3_answer(403, "AccessDenied"), Fault(403, "AccessDenied")),
    (S3Bucket, s3_answer(503, "SlowDown"), Fault(503, "SlowDown")),
    (S3Bucket, NoCredentialsError(), Fault(401, "NoCredentialsError")),
    (S3Bucket, EndpointConnectionError(endpoint_url="https://secret"), Fault(None, "EndpointConnectionError")),
    (S3Bucket, BrokenPageError("cut"), Fault(None, "BrokenPageError")),
    (S3Bucket, ZeroDivisionError(), None),
    (GcsBucket, AnswerError(403, "forbidden"), Fault(403, "forbidden")),
    (GcsBucket, AnswerError(404, "NoSuchBucket"), Fault(404, "NoSuchBucket")),
    (GcsBucket, refreshed(retryable=False), Fault(401, "RefreshError")),
    (GcsBucket, refreshed(retryable=True), Fault(None, "RefreshError")),
    (GcsBucket, TransportError("secret"), Fault(None, "TransportError")),  # type: ignore[no-untyped-call]
    (GcsBucket, ServerDisconnectedError("secret"), Fault(None, "ServerDisconnectedError")),
    (GcsBucket, ZeroDivisionError(), None),
    (AzureContainer, azure_answer(404, "ContainerNotFound"), Fault(404, "ContainerNotFound")),
    (AzureContainer, azure_answer(500, "InternalError"), Fault(500, "InternalError")),
    (AzureContainer, ClientAuthenticationError("secret"), Fault(401, "ClientAuthenticationError")),
    (AzureContainer, ServiceRequestError("secret"), Fault(None, "ServiceRequestError")),
    (AzureContainer, ZeroDivisionError(), None),
]


@pytest.mark.parametrize(("kind", "error", "fault"), FAULTS, ids=lambda value: getattr(value, "code", None))
def test_what_the_libraries_raise_is_understood(kind: type[Bucket], error: Exception, fault: Fault | None) -> None:
    # What is known of an error is known without a connection.
    assert kind.fault(object.__new__(kind), error) == fault


PAGE = b"""<?xml version="1.0"?><Result xmlns="urn:x"><Prefix>p</Prefix>
<Item><Key Encoded="true">a &amp; b</Key><Deep><Size>3</Size></Deep></Item>
<Item><Key>c</Key><Deep><Size>4</Size></Deep></Item><Next>token</Next></Result>"""


def listed(fields: Fields) -> ListedObject:
    return ListedObject(fields["Key"] + fields.get("Key@Encoded", ""), 1, int(fields["Size"]))


def test_a_page_is_read_record_by_record() -> None:
    page, beside = parse_page(PAGE, "Result", "Item", listed)
    assert page == [("a & btrue", 1, 3), ("c", 1, 4)]
    assert (beside["Prefix"], beside["Next"]) == ("p", "token")


@pytest.mark.parametrize("body", [PAGE[:-20], PAGE[:100], b"", b"<Error><Code>SlowDown</Code></Error>"])
def test_a_page_that_is_cut_off_or_an_error_is_not_taken_for_a_short_one(body: bytes) -> None:
    with pytest.raises(BrokenPageError):
        parse_page(body, "Result", "Item", listed)


# OpenStores.


def counting(opened: list[str]) -> OpenStores:
    def open_bucket(store: FragmentStore, settings: StoreSettings) -> Bucket:
        opened.append(store.url)
        if "broken" in store.url:
            raise UnavailableError("broken")
        return MemoryBucket()

    return OpenStores(StoreSettings(), open_bucket=open_bucket, stores_max=3)


async def test_a_url_is_opened_once_even_by_many_at_once() -> None:
    opened: list[str] = []
    stores = counting(opened)
    found = await asyncio.gather(*(stores.open("s3://bucket/") for _ in range(5)))
    found.append(await stores.open("s3://bucket/"))
    assert len(set(map(id, found))) == 1
    other = await stores.open("s3://bucket/?find=a")
    assert other is not found[0]
    assert opened == ["s3://bucket/", "s3://bucket/?find=a"]


async def test_a_store_that_cannot_be_opened_is_tried_anew() -> None:
    opened: list[str] = []
    stores = counting(opened)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="broken"):
            await stores.open("s3://broken/")
    assert len(opened) == 2


async def test_one_slow_opening_does_not_hold_up_another() -> None:
    released = threading.Event()

    def open_bucket(store: FragmentStore, settings: StoreSettings) -> Bucket:
        if store.host == "slow":
            released.wait()
        return MemoryBucket()

    stores = OpenStores(StoreSettings(), open_bucket=open_bucket)
    async with asyncio.TaskGroup() as group:
        slow = group.create_task(stores.open("s3://slow/"))
        await stores.open("s3://fast/")
        assert not slow.done()
        released.set()


async def test_only_so_many_stores_are_open_and_the_least_used_goes_first() -> None:
    opened: list[str] = []
    stores = counting(opened)
    first = await stores.open("s3://a/")
    for host in ("b", "c", "a", "d"):
        await stores.open(f"s3://{host}/")
    assert not first.closed
    assert await stores.open("s3://a/") is first
    await stores.open("s3://b/")
    assert opened == ["s3://a/", "s3://b/", "s3://c/", "s3://d/", "s3://b/"]


async def test_what_nobody_uses_is_swept_after_two_sweeps() -> None:
    stores = counting([])
    used, unused = await stores.open("s3://used/"), await stores.open("s3://unused/")
    active = REGISTRY.get_sample_value("gazette_store_active")
    await stores.sweep()
    await stores.open("s3://used/")
    assert [store.closed for store in (used, unused)] == [False, False]
    await stores.sweep()
    assert [store.closed for store in (used, unused)] == [False, True]
    assert active is not None
    assert REGISTRY.get_sample_value("gazette_store_active") == active - 1
    assert not (await stores.open("s3://unused/")).closed
    await stores.close()
    assert used.closed


async def test_what_is_in_use_is_not_swept() -> None:
    class Slow(MemoryBucket):
        async def read(self, key: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
            yield b"one"
            yield b"two"

    stores = OpenStores(StoreSettings(), open_bucket=lambda *_: Slow())
    store = await stores.open("s3://bucket/")
    async with aclosing(store.get("x")) as chunks:
        await anext(chunks)
        for _ in range(5):
            await stores.sweep()
        assert await stores.open("s3://bucket/") is store
        assert await anext(chunks) == b"two"
    for _ in range(2):
        await stores.sweep()
    assert store.closed


async def test_what_is_wrong_with_a_url_shows_when_it_is_opened(tmp_path: Path) -> None:
    stores = OpenStores(StoreSettings(tmp_path))
    for url, rule in (
        ("s3://bucket/?unknown=1", "query arguments"),
        ("file:///?region=x", "query arguments"),
        ("memory://bucket/", "URL of a store"),
        ("s3://bucket", "ends in a slash"),
    ):
        with pytest.raises(ValidationError, match=rule):
            await stores.open(url)


async def test_files_need_a_root() -> None:
    with pytest.raises(ValidationError, match=r"--broker\.file-root"):
        await OpenStores(StoreSettings()).open("file:///")


async def test_files_only_serves_every_url_from_the_root(tmp_path: Path) -> None:
    stores = OpenStores(StoreSettings(tmp_path, file_only=True))
    for url in ("s3://bucket/prefix/?find=a&replace=b&profile=p", "gs://bucket/", "file:///deep/"):
        store = await stores.open(url)
        await put(store, "acme/x", url.encode())
        assert (tmp_path / "acme/x").read_bytes() == url.encode()
        assert await store.sign_get("acme/x", 60) == "file:///acme/x"
    with pytest.raises(ValidationError):
        await stores.open("memory://bucket/")
    await stores.close()


def denied(url: str, environ: dict[str, str]) -> str:
    with pytest.raises(GazetteError) as caught:
        open_bucket_of(FragmentStore.parse(url), StoreSettings(environ=environ))
    assert isinstance(caught.value, UnavailableError)
    return str(caught.value)


def test_a_store_without_credentials_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "AZURE_ACCOUNT_NAME" in denied("azure://container/", {})
    assert "AZURE_ACCOUNT_KEY" in denied("azure://container/", {"AZURE_ACCOUNT_NAME": "a", "AZURE_ACCOUNT_KEY": "!"})
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    assert "profile" in denied("s3://bucket/?profile=nobody", {})
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    assert "GOOGLE_APPLICATION_CREDENTIALS" in denied("gs://bucket/", {})


def test_azure_without_its_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fragment.stores.azure", None)
    assert "install pygazette with its extra `azure`" in denied("azure://container/", {})


# Azure's lent keys.


class KeyLender:
    """Stands for Azure: tells what was asked of it."""

    def __init__(self) -> None:
        self.valid: list[timedelta] = []

    async def get_user_delegation_key(self, start: datetime, expiry: datetime) -> str:
        self.valid.append(expiry - start - timedelta(minutes=15))
        return f"key {len(self.valid)}"


async def test_a_lent_key_is_used_for_an_hour_and_outlives_what_it_signs() -> None:
    now = [datetime(2024, 1, 1, tzinfo=UTC)]
    lender = KeyLender()
    keys = DelegationKey(lender, lambda: now[0])  # type: ignore[arg-type]

    async def signing(ttl: timedelta) -> str:
        found: str = (await keys.signing_key(now[0] + ttl))["user_delegation_key"]
        return found

    minute = timedelta(minutes=1)
    assert await signing(minute) == "key 1"
    now[0] += 59 * minute
    assert await signing(minute) == "key 1"
    now[0] += minute
    assert await signing(minute) == "key 2"
    assert lender.valid == [timedelta(hours=2)] * 2
    assert await signing(timedelta(days=1)) == "key 3"
    assert lender.valid[-1] == timedelta(days=2)
    assert await signing(timedelta(days=1)) == "key 3"
    assert await signing(timedelta(days=6)) == "key 4"
    assert lender.valid[-1] == timedelta(days=7)
