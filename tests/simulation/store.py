"""Store: the object store that all brokers share. Its answers get lost, come late, or are errors.

Objects bear the names that fragments have, and hold the fragment's bytes as they are: codecs have tests of their own,
and here only the name says that there is one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fragment.remote_listing import RemoteListing
from fragment.stores.blob_store import BlobNotFoundError, ListedObject
from protocol.errors import UnavailableError
from protocol.fragment import NO_SUM, Fragment
from tests.simulation.network import Network
from tests.simulation.remote_call import Loss, call
from tests.simulation.world import UNIX_S, Node

T = TypeVar("T")

URL = "s3://simulated/"
REQUEST_TIMEOUT_S = 5.0


@dataclass(slots=True)
class StoreFaults:
    # Of each request, to be answered with an error and not be done.
    error_rate: float = 0.0
    # Of each request: that it never gets there, and that it is done but nobody hears of it.
    request_loss_rate: float = 0.0
    answer_loss_rate: float = 0.0
    # Of each request, to take up to `slow_s` longer: it may be done long after whoever asked has given up.
    slow_rate: float = 0.0
    slow_s: float = 0.0
    # A listing shows an object up to this long after its PUT. Zero is what S3 promises.
    list_lag_s: float = 0.0
    # Of each GET, to bring less than was asked for.
    truncate_rate: float = 0.0
    is_down: bool = False
    # Nothing can be put into it.
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class StoredObject:
    content: bytes
    mod_time: int
    # When listings begin to show it.
    listed_s: float


@dataclass(frozen=True, slots=True)
class StoredFragment:
    """For the final look at what a journal's store holds."""

    fragment: Fragment
    content: bytes

    @property
    def is_sound(self) -> bool:
        expected = hashlib.sha1(self.content).digest() if self.content else NO_SUM
        return len(self.content) == self.fragment.content_length and self.fragment.sum == expected


class Store:
    def __init__(self, network: Network, node: Node, faults: StoreFaults | None = None) -> None:
        self.node = node
        self.faults = faults or StoreFaults()
        self.puts = 0
        self._network = network
        self._chance = node.world.chance
        self._objects: dict[str, StoredObject] = {}

    # What a broker asks. Each question gets one answer.

    def put(self, src: Node, path: str, content: bytes, done: Callable[[UnavailableError | None], None]) -> None:
        """`done` gets None if the object is there for certain."""
        self._ask(src, "put", lambda: self._put(path, content), lambda answer: done(_error(answer)))

    def exists(self, src: Node, path: str, done: Callable[[bool | UnavailableError], None]) -> None:
        self._ask(src, "look for", lambda: path in self._objects, done)

    def get(
        self,
        src: Node,
        path: str,
        done: Callable[[bytes | BlobNotFoundError | UnavailableError], None],
        offset: int = 0,
        length: int | None = None,
    ) -> None:
        self._ask(src, "get", lambda: self._get(path, offset, length), done)

    def list_journal(self, src: Node, path: str, done: Callable[[list[ListedObject] | UnavailableError], None]) -> None:
        """All objects below the journal's folder, whosoever they are: the shipped RemoteListing sorts them out."""
        self._ask(src, "list", lambda: self._list(f"{path}/"), done)

    def remove(self, src: Node, path: str, done: Callable[[UnavailableError | None], None]) -> None:
        self._ask(src, "remove", lambda: self._objects.pop(path, None) is not None, lambda answer: done(_error(answer)))

    # From outside.

    def heal(self) -> None:
        self.faults = StoreFaults(list_lag_s=self.faults.list_lag_s)

    def fragments(self, journal: str, journals: tuple[str, ...] = (), url: str = URL) -> list[StoredFragment]:
        """Everything the store holds of a journal below `url`, shown in listings or not."""
        listing = RemoteListing(journal)
        prefix = f"{path_in_store(url, journal)}/"
        below = [path for path in sorted(self._objects) if path.startswith(prefix)]
        listing.take(url, [self._listed(path, prefix) for path in below], sorted(journals) if journals else [journal])
        return [
            StoredFragment(found, self._objects[path_in_store(url, found.content_path)].content)
            for found in listing.fragments
        ]

    def remove_journal(self, journal: str) -> None:
        """As an operator does who deletes a journal and does not want it back."""
        for path in [path for path in self._objects if path.startswith(f"{journal}/")]:
            del self._objects[path]

    def corrupt(self) -> str | None:
        """Flip a bit of some object. Its path, None if there is none with content."""
        paths = [path for path in sorted(self._objects) if self._objects[path].content]
        if not paths:
            return None
        path = self._chance.choice(paths)
        held = self._objects[path]
        spoilt = bytearray(held.content)
        spoilt[self._chance.randrange(len(spoilt))] ^= 1 << self._chance.randrange(8)
        self._objects[path] = StoredObject(bytes(spoilt), held.mod_time, held.listed_s)
        return path

    # At the store.

    def _put(self, path: str, content: bytes) -> bool:
        now_s = self.node.world.now_s
        self.puts += 1
        held = self._objects.get(path)
        listed_s = held.listed_s if held else now_s + self._chance.random() * self.faults.list_lag_s
        self._objects[path] = StoredObject(content, UNIX_S + int(now_s), listed_s)
        return True

    def _get(self, path: str, offset: int, length: int | None) -> bytes | BlobNotFoundError:
        held = self._objects.get(path)
        if held is None:
            return BlobNotFoundError(f"{URL}: there is no object {path[:200]!r}")
        found = held.content[offset:] if length is None else held.content[offset : offset + length]
        if found and self._chance.random() < self.faults.truncate_rate:
            return found[: self._chance.randrange(len(found))]
        return found

    def _list(self, prefix: str) -> list[ListedObject]:
        now_s = self.node.world.now_s
        return [
            self._listed(path, prefix)
            for path, held in self._objects.items()
            if path.startswith(prefix) and held.listed_s <= now_s
        ]

    def _listed(self, path: str, prefix: str) -> ListedObject:
        held = self._objects[path]
        return ListedObject(path[len(prefix) :], held.mod_time, len(held.content))

    def _ask(
        self, src: Node, operation: str, perform: Callable[[], T], done: Callable[[T | UnavailableError], None]
    ) -> None:
        faults, chance = self.faults, self._chance

        def performed() -> T | UnavailableError:
            is_refused = self.faults.is_down or (self.faults.is_full and operation == "put")
            if is_refused or chance.random() < self.faults.error_rate:
                return UnavailableError(f"{URL} could not {operation} (503 SlowDown)")
            return perform()

        def answered(answer: T | UnavailableError | None) -> None:
            done(UnavailableError(f"{URL} did not answer") if answer is None else answer)

        work_s = chance.random() * faults.slow_s if faults.slow_rate and chance.random() < faults.slow_rate else 0.0
        loss = Loss(faults.request_loss_rate, faults.answer_loss_rate, work_s)
        call(self._network, src, self.node, performed, answered, timeout_s=REQUEST_TIMEOUT_S, loss=loss)


def path_in_store(url: str, path: str) -> str:
    """All URLs are of the one store, and differ by the folder that they begin in.

    >>> path_in_store("s3://simulated/", "acme/orders"), path_in_store("s3://simulated/2/", "acme/orders")
    ('acme/orders', '2/acme/orders')
    """
    assert url.startswith(URL)
    return url[len(URL) :] + path


def _error(answer: bool | UnavailableError) -> UnavailableError | None:
    return answer if isinstance(answer, UnavailableError) else None
