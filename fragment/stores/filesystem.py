"""``file://``: a folder of the local file system, or of one that is mounted, as a bucket.

A name never leads out of the folder, though journals may be called ``../x``. Symbolic links inside it are
another matter: only someone who can write to the disk makes them, so they are followed, except that a listing does
not descend into a linked folder (it might lead in circles).
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from fragment.stores.blob_store import Batch, Fault, ListedObject
from fragment.stores.bucket import CHUNK_BYTES, PAGE_KEYS
from fragment.stores.file_range import FileRange
from protocol.errors import ValidationError

T = TypeVar("T")

PARTIAL = ".partial-"
"""Files that are being written begin with this, here as in Gazette."""
_COPY_BYTES = 1024 * 1024
_THREADS_MAX = 8
# Only an operator can change these.
_REFUSALS = {errno.EACCES, errno.EPERM, errno.EROFS}


class NoBaseFolderError(OSError):
    """The folder of the store itself is missing: a disk that is not mounted looks just like this."""


class Folder:
    """Keys begin with `base`, which begins and ends with a slash; files are at `root` + key."""

    def __init__(self, root: Path, base: str, page_keys: int = PAGE_KEYS) -> None:
        _check_inside(base)
        self._root = os.path.abspath(root)
        self._base = base
        self._page_keys = page_keys
        # Threads of its own: a mount that hangs must not hold up the rest of the process.
        self._threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="file-store")

    async def size(self, key: str) -> int | None:
        try:
            found = await self._run(os.stat, self._file(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    async def read(self, key: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        opening = self._threads.submit(self._open, self._file(key))
        try:
            descriptor = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise
        try:
            end = None if length is None else offset + length
            while end is None or offset < end:
                wanted = CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - offset)
                chunk = await self._run(os.pread, descriptor, wanted, offset)
                if not chunk:
                    return
                offset += len(chunk)
                yield chunk
        finally:
            os.close(descriptor)

    async def write(self, key: str, source: FileRange, content_encoding: str | None) -> None:
        given_up = threading.Event()
        try:
            await self._run(self._write, self._file(key), source, given_up)
        except asyncio.CancelledError:
            # The thread cannot be cancelled. It looks at this before each piece and before the name appears.
            given_up.set()
            raise

    async def pages(self, prefix: str) -> AsyncGenerator[Batch, None]:
        found = _find(self._file(self._base), self._file(prefix))

        def next_page() -> Batch:
            return list(islice(found, self._page_keys))

        while page := await self._run(next_page):
            yield page

    async def remove(self, key: str) -> None:
        with suppress(FileNotFoundError):
            await self._run(os.remove, self._file(key))

    async def sign(self, key: str, ttl_s: float) -> str:
        """As clients expect it: without escapes, and without the root: each client has its own."""
        self._file(key)
        return f"file://{key}"

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    def fault(self, error: Exception) -> Fault | None:
        match error:
            case NoBaseFolderError():
                return Fault(404, "NoBaseFolder")
            case FileNotFoundError():
                return Fault(404, "ENOENT")
            case OSError() if error.errno in _REFUSALS:
                return Fault(403, errno.errorcode[error.errno])
            case OSError():
                return Fault(None, errno.errorcode.get(error.errno or 0, type(error).__name__))
            case _:
                return None

    async def _run(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _file(self, key: str) -> str:
        _check_inside(key.removeprefix(self._base))
        return self._root + key

    def _open(self, file: str) -> int:
        try:
            return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._check_base()
            raise

    def _check_base(self) -> None:
        if not os.path.isdir(self._root + self._base):
            raise NoBaseFolderError(errno.ENOENT, "the folder of the store does not exist")

    def _write(self, file: str, source: FileRange, given_up: threading.Event) -> None:
        folder, name = os.path.split(file)
        partial = f"{folder}/{PARTIAL}{name}{uuid.uuid4().hex}"
        descriptor = self._create(folder, partial)
        try:
            try:
                if _linked(source, partial):
                    os.fsync(source.descriptor)
                else:
                    _copy(source, descriptor, given_up)
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if given_up.is_set():
                raise TimeoutError("given up")
            os.rename(partial, file)
        finally:
            # Left if anything failed, and if `file` is a link to the very same file already.
            with suppress(FileNotFoundError):
                os.unlink(partial)
        _sync_folder(folder)

    def _create(self, folder: str, partial: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(partial, flags, 0o640)
        except FileNotFoundError:
            self._check_base()
            self._make_folders(folder)
            return os.open(partial, flags, 0o640)

    def _make_folders(self, folder: str) -> None:
        """Down from the base, each synced into its parent: a file is no safer than the folders above it."""
        at = os.path.normpath(self._root + self._base)
        for part in os.path.relpath(folder, at).split("/"):
            parent, at = at, os.path.join(at, part)
            with suppress(FileExistsError):
                os.mkdir(at, 0o750)
                _sync_folder(parent)


def _check_inside(path: str) -> None:
    if ".." in path.split("/"):
        raise ValidationError(
            "a file store takes no path with a '..' in it: rename the journal, or use find and replace"
        )


def _close_opened(opening: Future[int]) -> None:
    """A file on a slow mount may be opened after nobody waits for it any more."""
    if not opening.cancelled() and not opening.exception():
        os.close(opening.result())


def _linked(source: FileRange, partial: str) -> bool:
    """Put a link to the whole source in place of `partial`, if both are on one file system: no byte is copied."""
    if source.begin or source.end != os.fstat(source.descriptor).st_size:
        return False
    link = f"{partial}.link"
    try:
        os.link(f"/proc/self/fd/{source.descriptor}", link, follow_symlinks=True)
    except OSError:
        # Another file system, one without links, or no /proc: whatever it is, copying finds out more.
        return False
    os.rename(link, partial)
    return True


def _copy(source: FileRange, descriptor: int, given_up: threading.Event) -> None:
    with open(descriptor, "wb", buffering=0, closefd=False) as file:
        while not given_up.is_set() and (piece := source.read(_COPY_BYTES)):
            written = 0
            while written < len(piece):
                written += file.write(memoryview(piece)[written:])


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _find(base: str, start: str) -> Iterator[ListedObject]:
    """The files whose path begins with `start`, by what comes after that."""
    if not os.path.isdir(base):
        raise NoBaseFolderError(errno.ENOENT, "the folder of the store does not exist")
    # A prefix may end within a name: rewriting can turn the slash at its end into something else.
    folder, _, stem = start.rpartition("/")
    pending = [(folder, "", stem)]
    while pending:
        folder, path, stem = pending.pop()
        # A folder may be gone by now, and a journal without fragments never had one.
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(stem) or entry.name.startswith(PARTIAL):
                    continue
                name = path + entry.name[len(stem) :]
                if entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, f"{name}/", ""))
                elif found := _listed(entry, name):
                    yield found


def _listed(entry: os.DirEntry[str], path: str) -> ListedObject | None:
    try:
        if not entry.is_file():
            return None
        found = entry.stat()
    except FileNotFoundError:
        return None
    return ListedObject(path, int(found.st_mtime), found.st_size)
