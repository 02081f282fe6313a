"""BlobStore: a FragmentStore opened, and what can go wrong with one.

Whoever keeps or reads fragments speaks to this port. Paths are content paths (``Fragment.content_path``);
where the store puts them, and under which name, is its own affair. What the client libraries of the stores
raise becomes one of three errors here, by one table, so that callers need to know no library:
``BlobNotFoundError``, ``StoreDeniedError``, and ``UnavailableError`` for the rest.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from protocol.errors import GazetteError, UnavailableError


class ListedObject(NamedTuple):
    path: str
    """Below the prefix that was listed."""
    mod_time: int
    """Unix seconds, as the store tells."""
    size: int
    """As stored, that is compressed."""


Batch = list[ListedObject]


class BlobStore(Protocol):
    """Objects named by content paths. Every request to the store behind it has a deadline of its own."""

    async def exists(self, path: str) -> bool: ...

    async def size(self, path: str) -> int:
        """Of the object as stored."""
        ...

    def get(self, path: str, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes as stored, never decoded on the way, whatever ``Content-Encoding`` they were put with.

        A range that begins past the end is empty. Leave it early only by way of ``contextlib.aclosing``:
        the connection is held until then.
        """
        ...

    async def put(self, path: str, source: Path | int, *, size: int, content_encoding: str | None = None) -> None:
        """Store the first `size` bytes of a file, given by its path or by a descriptor open for reading.

        The object appears whole or not at all, and replaces one of the same name: names are made from content,
        so two writers of one name write the same. The file must not change any more, but may be unlinked once this
        returns: a store on the same file system keeps the very file. One that cannot be opened raises an
        ``OSError``; one that is too short, a ``CorruptError``.
        """
        ...

    def list(self, prefix: str) -> AsyncGenerator[Batch, None]:
        """All objects whose path begins with `prefix`, however deep, in no particular order."""
        ...

    async def remove(self, path: str) -> None:
        """Remove an object. That it is not there is no error."""
        ...

    async def sign_get(self, path: str, ttl_s: float) -> str:
        """A URL by which anyone may read the object for `ttl_s` seconds."""
        ...

    async def close(self) -> None: ...


class BlobNotFoundError(GazetteError):
    """The store has no object of that name."""


class StoreDeniedError(UnavailableError):
    """The store turns us away, or is not there at all, and will until somebody changes that.

    A broker that is exiting takes its fragments to the next store of the journal on this error, and on no other.
    """


class StoreClosedError(UnavailableError):
    """This opening of the store has ended, for want of use. The store itself may be well."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is known of a failed request. `code` is one word of the store or of its library.

    Their messages are not shown: they may be pages long, and may hold URLs with secrets in them.
    """

    status: int | None
    """As of HTTP; None if the store did not answer."""
    code: str


# Answers that mean "no such bucket" or "bucket switched off", beside those told by their status alone.
NO_BUCKET = {
    *("NoSuchBucket", "AllAccessDisabled"),
    *("ContainerNotFound", "ContainerDisabled", "ContainerBeingDeleted", "AccountIsDisabled"),
    "NoBaseFolder",
}


def error_of(store: str, operation: str, path: str, fault: Fault) -> GazetteError:
    """The error that callers see.

    An answer of 404 speaks of the bucket unless an object was asked for: nothing else can be missing when one
    is written or when a prefix is listed.
    """
    shown = f"{fault.status} {fault.code}" if fault.status else fault.code
    asked_for_object = operation in ("get", "size", "remove")
    if fault.status == 404 and asked_for_object and fault.code not in NO_BUCKET:
        return BlobNotFoundError(f"{store}: there is no object {path[:200]!r}")
    if fault.status in (401, 403, 404) or fault.code in NO_BUCKET:
        return StoreDeniedError(
            f"{store} refused to {operation} ({shown}): "
            "check that it exists and that the credentials of this process may use it"
        )
    return UnavailableError(f"{store} could not {operation} ({shown}): try again; if it lasts, check the store")
