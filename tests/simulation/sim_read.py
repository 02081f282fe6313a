"""Read calls in the simulator, at the broker: out of the shipped Index, from the files of spools and from the store, or
from another broker. What comes next is for the shipped ReadCursor to say."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from broker.read_api import ACK_WAIT_S
from broker.read_cursor import AwaitAcks, AwaitChange, Over, ReadCursor
from broker.resolution import REVISION_WAIT_S, Resolution, Wanted
from fragment.index import Found, NotYetAvailable
from fragment.spool_file import SpoolFile
from fragment.stores.blob_store import BlobNotFoundError
from protocol.errors import CorruptError, GazetteError, Status, UnavailableError
from protocol.fragment import Fragment
from protocol.route import ProcessId
from tests.simulation.network import End, Ending, Stream
from tests.simulation.sim_replica import SimulatedReplica
from tests.simulation.sim_replication import Resolving
from tests.simulation.store import Store, path_in_store

READ = "read"


@dataclass(frozen=True, slots=True)
class ReadRequest:
    journal: str
    offset: int
    block: bool = True
    metadata_only: bool = False
    is_proxied: bool = False


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """Content, or what metadata alone says. `replica` names the life of the replica that it is from."""

    status: Status
    offset: int = 0
    write_head: int = 0
    content: bytes = b""
    is_jump: bool = False
    replica: str = ""
    create_revision: int = 0


class ReadBroker(Resolving, Protocol):
    @property
    def store(self) -> Store: ...

    def forward(
        self, peer: ProcessId, method: str, heard: Callable[[ReadAnswer], None], ended: Callable[[End], None]
    ) -> Stream: ...

    def nearest(self, resolution: Resolution) -> ProcessId: ...


class ServedRead:
    def __init__(self, broker: ReadBroker, stream: Stream) -> None:
        self._broker = broker
        self._stream = stream
        self._node = stream.node
        self._upstream: Stream | None = None
        self._forget: Callable[[], None] | None = None
        self._create_revision = 0
        self.is_over = False

    def heard(self, request: ReadRequest) -> None:
        self._request = request
        wanted = Wanted(request.journal, may_proxy=not request.is_proxied)
        self._broker.resolve_within(wanted, REVISION_WAIT_S, self._on_resolved)

    def ended(self, end: End) -> None:
        """A reader sends one message and its end, and is heard no more of unless it leaves."""
        if end.kind is not Ending.EOF:
            self.abort()

    def abort(self) -> None:
        if self._upstream is not None:
            self._upstream.cancel()
        if not self.is_over:
            self._end()
            self._stream.cancel()

    def _end(self) -> None:
        self.is_over = True
        if self._forget is not None:
            self._forget()

    def _finish(self, error: GazetteError | None = None) -> None:
        if not self.is_over:
            self._end()
            self._stream.half_close(error)

    def _on_resolved(self, resolution: Resolution | GazetteError) -> None:
        if self.is_over:
            return
        if isinstance(resolution, GazetteError):
            self._finish(resolution)
        elif resolution.status is not Status.OK:
            self._stream.send(ReadAnswer(resolution.status))
            self._finish()
        elif resolution.is_local:
            self._begin(resolution)
        else:
            nearest = self._broker.nearest(resolution)
            self._upstream = self._broker.forward(nearest, READ, self._relay, self._ended_upstream)
            self._upstream.send(replace(self._request, is_proxied=True))

    def _relay(self, answer: ReadAnswer) -> None:
        self._stream.send(answer)

    def _ended_upstream(self, end: End) -> None:
        self._upstream = None
        self._finish(None if end.kind is Ending.EOF else UnavailableError("the member is gone"))

    # Of a replica here.

    def _begin(self, resolution: Resolution) -> None:
        replica, request = resolution.replica, self._request
        assert isinstance(replica, SimulatedReplica)
        assert resolution.item is not None
        self._replica = replica
        self._create_revision = resolution.item.create_revision
        self._cursor = ReadCursor(replica, request.offset, block=request.block, metadata_only=request.metadata_only)
        self._serve()

    def _serve(self) -> None:
        """Until there is something to wait for."""
        while not self.is_over:
            match self._cursor.step():
                case AwaitChange():
                    self._forget = self._replica.wait_change(self._serve)
                    return
                case AwaitAcks(through):
                    self._await_acks(through)
                    return
                case Over():
                    self._finish()
                case NotYetAvailable(_, write_head):
                    self._send_head(write_head)
                case found if self._request.metadata_only:
                    self._send_head(found.write_head)
                case found if found.file is None:
                    self._fetch(found)
                    return
                case found:
                    at = found.offset - found.fragment.begin
                    self._send(found, found.file.read(at, found.fragment.end - found.offset))

    def _send_head(self, write_head: int) -> None:
        name = self._replica.name
        self._stream.send(
            ReadAnswer(Status.OK, self._cursor.offset, write_head, replica=name, create_revision=self._create_revision)
        )
        self._finish()

    def _send(self, found: Found[SpoolFile], content: bytes) -> None:
        is_jump = found.offset != self._cursor.offset
        self._stream.send(
            ReadAnswer(
                Status.OK,
                found.offset,
                found.write_head,
                content,
                is_jump,
                self._replica.name,
                self._create_revision,
            )
        )
        self._cursor.offset = found.offset + len(content)

    def _fetch(self, found: Found[SpoolFile]) -> None:
        fragment = found.fragment
        path = path_in_store(fragment.backing_store, fragment.content_path)

        def fetched(content: bytes | BlobNotFoundError | UnavailableError) -> None:
            if self.is_over:
                return
            if isinstance(content, GazetteError):
                self._finish(content)
            elif not _is_sound(fragment, content):
                self._finish(CorruptError(f"{path} is not what its name says"))
            else:
                self._send(found, content[found.offset - fragment.begin :])
                self._serve()

        self._broker.store.get(self._node, path, fetched)

    def _await_acks(self, through: int) -> None:
        until_s = self._node.world.now_s + ACK_WAIT_S

        def look() -> None:
            if self.is_over or self._forget is None:
                return
            self._forget()
            if self._node.world.now_s >= until_s or self._cursor.has_reached(through):
                self._forget = None
                self._serve()
            else:
                self._forget = self._replica.wait_change(look)

        self._forget = self._replica.wait_change(look)
        self._node.after(ACK_WAIT_S, look)


def _is_sound(fragment: Fragment, content: bytes) -> bool:
    return len(content) == fragment.content_length and hashlib.sha1(content).digest() == fragment.sum
