"""FragmentAccess: the content of fragments from where it is kept, for driver and executors alike.

Local files are opened as they are; stores are read with this process's own credentials if the scan was given a
path; with a broker, by URLs that it signs, each when it is needed and again when it has run out. Persisted content
never comes through a broker. What is not stored yet comes from no one else.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path

from broker.client.blocking import BlockingClient
from broker.client.client import Client
from broker.client.fragment_url import FragmentUrls
from broker.client.retrying_read import Jump
from broker.client.settings import ClientSettings
from fragment.decoder import UNIT_BYTES_MAX
from fragment.fragment_reader import (
    BlockingSource,
    ByteSource,
    StoredObject,
    read,
    read_blocking,
    read_unsummed,
    seek_table,
    seek_table_blocking,
)
from fragment.stores.blob_store import BlobNotFoundError
from fragment.stores.open_stores import OpenStores, StoreSettings
from fragment.zstd_frames import SeekTable
from protocol.errors import CorruptError, GazetteError, InvariantError, UnavailableError, ValidationError
from protocol.fragment import Fragment
from protocol.fragment_store import FragmentStore
from protocol.url import parse_url
from spark_readers.broker_access import BrokerAccess
from spark_readers.broker_connection import advised, client_settings
from spark_readers.loop_thread import LoopThread, OpenedStream, loop_thread
from spark_readers.read_options import ReadOptions
from spark_readers.scan_plan import DataLossError

CHUNK_BYTES = 1 << 20
ATTEMPTS_MAX = 4
PAUSE_S = 0.2
ACCESSES_MAX = 8

EXPECTED_MAX = 2
"""Objects that were opened and not yet asked for: the one that is read next, and the one after it."""
_Expected = tuple[str, Fragment, int, int]


def object_name(of: Fragment) -> str:
    """For people: without arguments in the URL of the store, which are nobody's business."""
    try:
        store = parse_url(of.backing_store)
    except ValidationError:
        return of.content_path
    return f"{store.scheme}://{store.host}{store.path}{of.content_path}" if store.scheme else of.content_path


class FragmentAccess:
    """Of one process and one scan's options. Ask ``fragment_access`` for it."""

    def __init__(self, options: ReadOptions, settings: ClientSettings | None = None) -> None:
        """`settings` are for those who have asked the options for them already."""
        self._broker = options.broker
        self._settings = settings or _settings(options)
        self._loop: LoopThread = loop_thread()
        self._file_root = "/" if options.path else options.file_root
        root = Path(self._file_root) if self._file_root else None
        self._stores = OpenStores(StoreSettings(file_root=root, environ=os.environ))
        self._client: BlockingClient | None = None
        self._signer: Client | None = None
        self._urls: FragmentUrls | None = None
        # By the one thread that reads a task. Others find nothing here.
        self._expected: dict[_Expected, OpenedStream[bytes]] = {}

    def content(self, of: Fragment, begin: int, end: int, piece_bytes: int = UNIT_BYTES_MAX) -> Iterator[bytes]:
        """The content [begin, end), in pieces of at most 1 MiB, or of files so many bytes. Errors name the object."""
        path = self.local_path(of)
        if path is not None:
            return self._local(of, path, begin, end, piece_bytes)
        pieces = self._expected_or(("content", of, begin, end), lambda: self._remote(of, begin, end))
        return _summed(of, pieces) if (begin, end) == (of.begin, of.end) else pieces

    def expect(self, of: Fragment, begin: int, end: int) -> None:
        """This content will be asked for next: its object is opened, and a few MiB of it are read, meanwhile."""
        if self.local_path(of) is None:
            self._expect(("content", of, begin, end), lambda: self._remote(of, begin, end))

    def expect_packed(self, of: Fragment) -> None:
        if self.local_path(of) is None:
            self._expect(("packed", of, 0, 0), lambda: self._packed(of))

    def expect_nothing(self) -> None:
        """What was expected and has not been asked for is closed."""
        self._close_expected(0)

    def fresh(self, journal: str, begin: int, end: int) -> Iterator[bytes]:
        """What brokers have and stores have not, or had not when the scan was planned."""

        def refuse(jump: Jump) -> None:
            raise DataLossError(f"{journal}: [{jump.begin}, {jump.end}) is gone")

        broker, settings = self._asked()
        if self._client is None:
            self._client = BlockingClient(settings=settings)
        with (
            advised(broker),
            self._client.read(journal, begin, end=end, block=False, on_jump=refuse) as reader,
        ):
            yield from reader
            if reader.offset != end:
                raise DataLossError(f"{journal}: brokers have nothing at {reader.offset}, and had up to {end} before")

    def close(self) -> None:
        """What it has opened. The loop of the process goes on."""
        self.expect_nothing()

        async def closed() -> None:
            await self._stores.close()
            if self._urls is not None:
                await self._urls.close()
            if self._signer is not None:
                await self._signer.__aexit__(None, None, None)

        self._loop.run(closed())
        if self._client is not None:
            self._client.close()

    def local_path(self, of: Fragment) -> Path | None:
        """Where this process may open the object itself."""
        if not self._file_root or not of.backing_store.startswith("file:"):
            return None
        key = FragmentStore.parse(of.backing_store).object_key(of.content_path)
        root = os.path.abspath(self._file_root)
        path = os.path.normpath(root + "/" + key)
        if not path.startswith(root.rstrip("/") + "/"):
            raise ValidationError(f"{of.content_path} leads out of the folder of file stores")
        return Path(path)

    def packed(self, of: Fragment) -> Iterator[bytes]:
        """The object as it is stored, at the first attempt or not at all."""
        return self._expected_or(("packed", of, 0, 0), lambda: self._packed(of))

    def seek_table(self, of: Fragment) -> SeekTable | None:
        path = self.local_path(of)
        if path is not None:
            try:
                with _File(path) as source:
                    return seek_table_blocking(of, source)
            except FileNotFoundError as error:
                raise self._missing(of) from error
            except OSError as error:
                raise _unreadable(of, error) from error

        async def found() -> SeekTable | None:
            attempts = 0
            while True:
                try:
                    return await seek_table(of, await self._source(of))
                except BlobNotFoundError as error:
                    raise _vanished(of) from error
                except UnavailableError as error:
                    attempts += 1
                    await _pause(of, attempts, error)

        return self._loop.run(found())

    def _expect(self, what: _Expected, open_stream: Callable[[], AsyncGenerator[bytes, None]]) -> None:
        if what not in self._expected:
            self._close_expected(EXPECTED_MAX - 1)
            self._expected[what] = self._loop.opened(open_stream)

    def _close_expected(self, kept: int) -> None:
        while len(self._expected) > kept:
            self._expected.pop(next(iter(self._expected))).close()

    def _expected_or(self, what: _Expected, open_stream: Callable[[], AsyncGenerator[bytes, None]]) -> Iterator[bytes]:
        expected = self._expected.pop(what, None)
        with closing(expected or self._loop.opened(open_stream)) as opened:
            yield from opened

    async def _packed(self, of: Fragment) -> AsyncGenerator[bytes, None]:
        source = await self._source(of)
        async with aclosing(source.open(0, None)) as stream:
            async for chunk in stream:
                yield chunk

    def _local(self, of: Fragment, path: Path, begin: int, end: int, piece_bytes: int) -> Iterator[bytes]:
        try:
            with _File(path) as source:
                yield from read_blocking(of, source, begin, end, piece_bytes)
        except FileNotFoundError as error:
            raise self._missing(of) from error
        except OSError as error:
            raise _unreadable(of, error) from error

    def _missing(self, of: Fragment) -> GazetteError:
        """A file that is not there has vanished, unless its store is not there either: that is no loss of data."""
        store = os.path.normpath(f"{self._file_root}/{FragmentStore.parse(of.backing_store).prefix}")
        if os.path.isdir(store):
            return _vanished(of)
        return UnavailableError(f"{object_name(of)} could not be read: its store is no folder of this machine")

    async def _remote(self, of: Fragment, begin: int, end: int) -> AsyncGenerator[bytes, None]:
        """Goes on where it was when a store fails or a URL has run out, with a new one.

        Of a fragment that is read whole the caller takes the sum, as no single attempt may have seen all of it.
        """
        attempts = 0
        open_pieces = read_unsummed if (begin, end) == (of.begin, of.end) else read
        while begin < end:
            try:
                current, source = await self._signed(of, begin) if self._broker else (of, await self._stored(of))
                async with aclosing(open_pieces(current, source, begin, min(end, current.end))) as pieces:
                    async for piece in pieces:
                        yield piece
                        begin += len(piece)
                        attempts = 0
            except BlobNotFoundError as error:
                raise _vanished(of) from error
            except UnavailableError as error:
                attempts += 1
                await _pause(of, attempts, error)

    async def _source(self, of: Fragment) -> ByteSource:
        """Of this very fragment: one that has taken its place has other frames, and begins elsewhere."""
        if self._broker is None:
            return await self._stored(of)
        found, source = await self._signed(of, of.begin)
        if (found.begin, found.end, found.codec) != (of.begin, of.end, of.codec):
            raise DataLossError(f"{object_name(of)} was replaced by another fragment meanwhile: run the query again")
        return source

    async def _stored(self, of: Fragment) -> ByteSource:
        return StoredObject(await self._stores.open(of.backing_store), of.content_path)

    async def _signed(self, of: Fragment, offset: int) -> tuple[Fragment, ByteSource]:
        """A URL for the fragment that has `offset` now: the planned one may have been replaced by a longer one."""
        broker, settings = self._asked()
        if self._signer is None or self._urls is None:
            self._urls = FragmentUrls(settings.file_root, settings.connect_s, settings.stall_s)
            self._signer = await Client(settings=settings).__aenter__()
        with advised(broker):
            told = await self._signer.read_metadata(of.journal, offset)
        found = told.fragment
        if found is None or not found.backing_store or not found.begin <= offset < found.end:
            raise _vanished(of)
        if (found.begin, found.end) == (of.begin, of.end) and found.sum != of.sum:
            raise CorruptError(f"{object_name(of)}: brokers now have other bytes of the same range")
        source = self._urls.source(told.fragment_url, found.codec)
        if source is None:
            raise ValidationError(
                "executors cannot open file:// stores of brokers unless they are told where those are", "fileRoot"
            )
        return found, source

    def _asked(self) -> tuple[BrokerAccess, ClientSettings]:
        if self._broker is None or self._settings is None:
            raise InvariantError("a scan of a store's own listing has nothing to ask brokers for")
        return self._broker, self._settings


def _settings(options: ReadOptions) -> ClientSettings | None:
    return None if options.broker is None else client_settings(options.broker, os.environ, options.file_root)


class _File(BlockingSource):
    """A local file as a ``fragment_reader`` wants it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def open(self, offset: int, length: int | None) -> Iterator[bytes]:
        left = length
        while left is None or left > 0:
            chunk = os.pread(self._descriptor, CHUNK_BYTES if left is None else min(left, CHUNK_BYTES), offset)
            if not chunk:
                return
            yield chunk
            offset += len(chunk)
            left = None if left is None else left - len(chunk)


def _summed(of: Fragment, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """All of a fragment's content, if its SHA-1 is right. As always, that is known only at the end."""
    digest = hashlib.sha1(usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
        yield piece
    if digest.digest() != of.sum:
        raise CorruptError(
            f"fragment {object_name(of)} holds other content than its name says: its SHA-1 is {digest.hexdigest()}"
        )


async def _pause(of: Fragment, attempts: int, error: UnavailableError) -> None:
    """Before the next attempt, if there is to be one."""
    if attempts >= ATTEMPTS_MAX:
        raise UnavailableError(f"{object_name(of)}: {error}") from error
    await asyncio.sleep(PAUSE_S * 2**attempts)


def _unreadable(of: Fragment, error: OSError) -> UnavailableError:
    return UnavailableError(f"{object_name(of)} could not be read ({error.strerror})")


def _vanished(of: Fragment) -> DataLossError:
    return DataLossError(f"fragment {object_name(of)} has vanished since the scan was planned")


_OF_PROCESS: dict[tuple[int, BrokerAccess | None, ClientSettings | None, str, str], FragmentAccess] = {}


def fragment_access(options: ReadOptions) -> FragmentAccess:
    """Kept for the process, which Spark uses for many tasks: connections are worth keeping.

    One with keys or a token that were renewed since is not asked again.
    """
    settings = _settings(options)
    key = (os.getpid(), options.broker, settings, options.path, options.file_root)
    access = _OF_PROCESS.pop(key, None) or FragmentAccess(options, settings)
    # The one used last is the last to go.
    _OF_PROCESS[key] = access
    while len(_OF_PROCESS) > ACCESSES_MAX:
        oldest = next(iter(_OF_PROCESS))
        dropped = _OF_PROCESS.pop(oldest)
        # Of the process this one was forked from there is nothing to close here.
        if oldest[0] == os.getpid():
            dropped.close()
    return access
