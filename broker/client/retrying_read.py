"""RetryingRead: the bytes of a journal from an offset on, each of them once and in order, whatever becomes of brokers.

Bytes come from a broker, or from the store where the broker says that they are there; and where the store fails, again
from a broker. What is read from a store is verified by ``fragment.fragment_reader``. Its last piece, which is all there
is of a small fragment, is not handed out before that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from broker.client.answer import check_ok
from broker.client.brokers import Brokers
from broker.client.dispatch import Target
from broker.client.fragment_url import FragmentUrls
from broker.client.metrics import ReadCounters
from broker.client.outcome import FailedCallError
from broker.client.read_message import ReadContent, ReadMetadata, decode
from broker.client.retry import Attempts, RetryPolicy
from broker.client.stall_watch import StallWatch
from fragment.fragment_reader import read as read_fragment
from fragment.stores.blob_store import BlobNotFoundError
from protocol.errors import CorruptError, GazetteError, RefusedError, Status, UnavailableError, ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.identifier import strip_meta
from protocol.validation import validate

_LOG = logging.getLogger(__name__)

WRITE_HEAD = -1
"""The offset at which a journal ends when a reader comes."""

ASKED_S_MAX = 10.0
STORE_FAILURES_MAX = 3
"""After so many of them in a row a reader leaves stores to the brokers."""


class Jump(NamedTuple):
    """The bytes [begin, end) of the journal are gone, and are passed over."""

    journal: str
    begin: int
    end: int


OnJump = Callable[[Jump], None]


def log_jump(jump: Jump) -> None:
    _LOG.warning(
        "bytes of a journal are gone, and are passed over by a reader",
        extra={"journal": jump.journal, "begin": jump.begin, "end": jump.end},
    )


@dataclass(frozen=True, slots=True)
class ReadRange:
    """What of a journal is read."""

    journal: str
    offset: int = 0
    # None goes on for ever, or to the write head if that is not to be waited at.
    end: int | None = None
    # Whether to wait at the write head for what is yet to be written.
    block: bool = True
    # Fragments that were stored earlier than this are passed over.
    begin_mod_time_s: int = 0
    reads_stores: bool = True

    def __post_init__(self) -> None:
        if self.end is not None and self.end < 0:
            raise ValidationError("expected an offset, or None for no end", "end")
        validate(self.message(self.offset))

    def message(self, offset: int) -> pb.ReadRequest:
        return pb.ReadRequest(
            journal=self.journal,
            offset=offset,
            block=self.block,
            end_offset=max(self.end, offset, 0) if self.end else 0,
            begin_mod_time=self.begin_mod_time_s,
        )


@dataclass(slots=True)
class _Opened:
    """A fragment that is being read from its store."""

    found: ReadMetadata
    begin: int
    fragment_end: int
    pieces: AsyncGenerator[bytes, None]
    # Those that were taken ahead of their time.
    taken: list[bytes] = field(default_factory=list)


class RetryingRead:
    """One reader's way through a journal."""

    def __init__(
        self, brokers: Brokers, urls: FragmentUrls, wanted: ReadRange, policy: RetryPolicy | None, on_jump: OnJump
    ) -> None:
        # Where the next byte is.
        self.offset = wanted.offset
        self.write_head: int | None = None
        self.found: ReadMetadata | None = None
        self._brokers = brokers
        self._urls = urls
        self._wanted = wanted
        self._name = strip_meta(wanted.journal)
        self._on_jump = on_jump
        self._attempts = Attempts(
            policy or brokers.settings.retry, brokers.clock(), (UnavailableError, FailedCallError)
        )
        self._counters = ReadCounters(self._name)
        self._is_at_head = False
        self._store_failures = 0 if wanted.reads_stores and brokers.settings.reads_stores else STORE_FAILURES_MAX
        # Up to here a store has failed us, and brokers read for us.
        self._brokered_until = 0
        self._goes_on_at_once = False
        self._ahead: asyncio.Task[_Opened | None] | None = None

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """All there is, in pieces of at most a few MiB. Leave it early only by way of ``contextlib.aclosing``."""
        end = self._wanted.end
        try:
            while not self._is_at_head and (end is None or self.offset < end):
                before = self.offset
                try:
                    if self.offset == WRITE_HEAD:
                        await self._find_head()
                        continue
                    async with aclosing(self._source()) as pieces:
                        async for piece in pieces:
                            self.offset += len(piece)
                            self._counters.read.inc(len(piece))
                            yield piece
                    self._check_progress(before)
                except GazetteError as error:
                    await self._brokers.pause(self._attempts, error)
        finally:
            await self._forget_ahead()

    def _check_progress(self, before: int) -> None:
        """A stream that ends is nothing special. But whoever gets nothing from any of them has to slow down."""
        if self.offset == before and not self._is_at_head and not self._goes_on_at_once:
            raise UnavailableError(
                "brokers end the read without any bytes and without an error: their logs may say why"
            )
        self._goes_on_at_once = False

    def _source(self) -> AsyncGenerator[bytes, None]:
        return self._taken_ahead() if self._ahead is not None else self._call()

    def _message(self, target: Target) -> tuple[pb.ReadRequest, bool]:
        """And whether the store is read by ourselves, where the bytes are there."""
        is_brokered = self.offset < self._brokered_until
        is_direct = self._store_failures < STORE_FAILURES_MAX and not is_brokered and not target.may_proxy
        request = self._wanted.message(self.offset)
        request.do_not_proxy = is_direct
        request.min_etcd_revision = self._brokers.revision
        if is_brokered and self._store_failures < STORE_FAILURES_MAX:
            end = self._wanted.end
            request.end_offset = self._brokered_until if end is None else min(end, self._brokered_until)
        return request, is_direct

    async def _call(self) -> AsyncGenerator[bytes, None]:
        brokers = self._brokers
        target = brokers.dispatch.for_read(self._name, brokers.clock())
        request, is_direct = self._message(target)
        call = await brokers.read(target, request)
        is_alive = partial(self._is_alive, target) if self._wanted.block else None
        last: ReadMetadata | None = None
        async with StallWatch(call, target.endpoint, brokers.settings.stall_s, brokers.tasks, is_alive) as watch:
            try:
                while (raw := await watch.next()) is not None:
                    message = decode(raw, target.endpoint)
                    if isinstance(message, ReadContent):
                        if message.offset != self.offset:
                            raise FailedCallError(f"{target.endpoint}: it sent other bytes than those that come next")
                        last = None
                        yield message.data
                    elif self._took(message, target):
                        last = message
                    else:
                        return
            except UnavailableError:
                if watch.is_stalled:
                    brokers.lost(target.endpoint, self._name)
                else:
                    brokers.dispatch.failed(target.endpoint, self._name, brokers.clock())
                raise
        if is_direct and last is not None and last.fragment_url:
            opened = self._opened(last)
            if opened is None:
                # From here there is no way to it, and there will be none.
                self._store_failures = STORE_FAILURES_MAX
                self._goes_on_at_once = True
                return
            async with aclosing(self._stored(opened)) as pieces:
                async for piece in pieces:
                    yield piece

    def _took(self, found: ReadMetadata, target: Target) -> bool:
        """Whether content follows."""
        if found.header is not None:
            self._brokers.learn(self._name, found.header)
        self.found = found
        if found.status is Status.OFFSET_NOT_YET_AVAILABLE and not self._wanted.block:
            self._check_head(found, target)
            self.write_head = found.write_head
            self._is_at_head = True
            return False
        check_ok(found.status)
        self.write_head = found.write_head
        if found.offset < self.offset:
            raise FailedCallError(f"{target.endpoint}: it went back from {self.offset} to {found.offset}")
        self._attempts.succeeded()
        if found.offset > self.offset:
            begin, self.offset = self.offset, found.offset
            self._on_jump(Jump(self._name, begin, found.offset))
        return True

    def _check_head(self, found: ReadMetadata, target: Target) -> None:
        """A broker that has just joined has the head, and has to wait for the store to have what is before it."""
        if found.offset < found.write_head:
            self._brokers.dispatch.avoid(target.endpoint, self._brokers.clock())
            raise RefusedError(
                Status.OFFSET_NOT_YET_AVAILABLE,
                f"{target.endpoint} has no bytes at {found.offset}, and yet the journal ends at {found.write_head}",
            )

    async def _find_head(self) -> None:
        """The head is looked up first: were a read of it to fail, another would begin at a later one."""
        self.offset = (await read_metadata(self._brokers, self._wanted.journal, WRITE_HEAD)).offset

    async def _is_alive(self, target: Target) -> bool:
        """Whether a broker that has sent nothing for long is there, and has nothing for us."""
        request = pb.ReadRequest(journal=self._wanted.journal, offset=self.offset, metadata_only=True)
        request.begin_mod_time = self._wanted.begin_mod_time_s
        found = await _first(self._brokers, target, request)
        is_well = found.status is Status.OFFSET_NOT_YET_AVAILABLE and found.offset >= found.write_head
        if is_well:
            self._attempts.succeeded()
        return is_well

    # Reading from stores.

    def _opened(self, found: ReadMetadata) -> _Opened | None:
        fragment = found.fragment
        assert fragment is not None
        source = self._urls.source(found.fragment_url, fragment.codec, self._counters.sized(fragment.codec))
        if source is None:
            return None
        end = fragment.end if self._wanted.end is None else min(fragment.end, self._wanted.end)
        pieces = _held_back(read_fragment(fragment, source, found.offset, end))
        return _Opened(found, found.offset, fragment.end, pieces)

    async def _stored(self, opened: _Opened) -> AsyncGenerator[bytes, None]:
        fragment = opened.found.fragment
        assert fragment is not None
        self._look_ahead(opened)
        counter = self._counters.opened(fragment.codec, fragment.content_length, opened.begin - fragment.begin)
        try:
            async with aclosing(opened.pieces) as pieces:
                for piece in opened.taken:
                    counter.inc(len(piece))
                    yield piece
                async for piece in pieces:
                    counter.inc(len(piece))
                    yield piece
            self._store_failures = 0
        except (CorruptError, UnavailableError, BlobNotFoundError) as error:
            if isinstance(error, CorruptError) and self.offset != opened.begin:
                # What was handed out already may be wrong, and cannot be taken back.
                raise
            self._store_failures += 1
            self._brokered_until = fragment.end
            self._goes_on_at_once = True
            await self._forget_ahead()
            _LOG.warning(
                "a fragment could not be read from its store (it is read through a broker)",
                extra={"journal": self._name, "fragment": fragment.content_name, "error": str(error)},
            )

    def _look_ahead(self, opened: _Opened) -> None:
        """While one fragment is read, the next is opened."""
        next_begin, end = opened.fragment_end, self._wanted.end
        if (end is None or next_begin < end) and next_begin < opened.found.write_head:
            self._ahead = self._brokers.tasks.create_task(self._open_ahead(next_begin))

    async def _open_ahead(self, offset: int) -> _Opened | None:
        brokers = self._brokers
        try:
            target = brokers.dispatch.for_read(self._name, brokers.clock())
            request = self._wanted.message(offset)
            request.block, request.metadata_only = False, True
            found = await _first(brokers, target, request)
            # What is still on a broker's disk, or is gone, is for a call to tell.
            if found.status is not Status.OK or found.offset != offset or not found.fragment_url:
                return None
            opened = self._opened(found)
            if opened is not None:
                first = await anext(opened.pieces, None)
                opened.taken = [] if first is None else [first]
            return opened
        except (GazetteError, OSError):
            # It will be met again, by whoever needs the bytes.
            return None

    async def _taken_ahead(self) -> AsyncGenerator[bytes, None]:
        assert self._ahead is not None
        ahead, self._ahead = self._ahead, None
        opened = await ahead
        source = self._call()
        if opened is not None and opened.begin == self.offset:
            self.found = opened.found
            self.write_head = opened.found.write_head
            self._attempts.succeeded()
            source = self._stored(opened)
        elif opened is not None:
            await opened.pieces.aclose()
        async with aclosing(source) as pieces:
            async for piece in pieces:
                yield piece

    async def _forget_ahead(self) -> None:
        if self._ahead is None:
            return
        ahead, self._ahead = self._ahead, None
        ahead.cancel()
        await asyncio.wait([ahead])
        if not ahead.cancelled() and (opened := ahead.result()) is not None:
            await opened.pieces.aclose()


async def read_metadata(brokers: Brokers, journal: str, offset: int, begin_mod_time_s: int = 0) -> ReadMetadata:
    """What there is at an offset: its fragment, or where the journal ends if there is none. Of one attempt."""
    name = strip_meta(journal)
    target = brokers.dispatch.for_read(name, brokers.clock())
    request = pb.ReadRequest(journal=journal, offset=offset, metadata_only=True, begin_mod_time=begin_mod_time_s)
    request.min_etcd_revision = brokers.revision
    validate(request)
    found = await _first(brokers, target, request)
    if found.header is not None:
        brokers.learn(name, found.header)
    if found.status is not Status.OFFSET_NOT_YET_AVAILABLE:
        check_ok(found.status)
    return found


async def _first(brokers: Brokers, target: Target, request: pb.ReadRequest) -> ReadMetadata:
    """The first message of a read that has but one."""
    timeout_s = min(brokers.settings.stall_s, ASKED_S_MAX)
    call = await brokers.read(target, request, timeout_s)
    async with StallWatch(call, target.endpoint, timeout_s + 1, brokers.tasks) as watch:
        try:
            raw = await watch.next()
        except UnavailableError:
            brokers.dispatch.failed(target.endpoint, strip_meta(request.journal), brokers.clock())
            raise
    message = None if raw is None else decode(raw, target.endpoint)
    if not isinstance(message, ReadMetadata):
        raise FailedCallError(f"{target.endpoint}: it does not say what it has")
    return message


async def _held_back(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Each piece when the next one is there, and the last when it is certain that it is the last."""
    held: bytes | None = None
    async with aclosing(pieces):
        async for piece in pieces:
            if held is not None:
                yield held
            held = piece
    if held is not None:
        yield held
