"""Client: all that can be asked of the brokers of a cluster.

The two lines a newcomer needs::

    async with Client("localhost:8080") as client:
        await client.append("my/journal", b"hello\\n")
        async for line in client.read_lines("my/journal"):
            print(line)
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType

from broker.client import appender
from broker.client.answer import check_ok
from broker.client.append_queue import PENDING_BYTES_MAX
from broker.client.append_request import AppendRequest, Content
from broker.client.append_service import AppendService
from broker.client.brokers import Brokers
from broker.client.fragment_list import FragmentRange, ListedFragment, list_fragments
from broker.client.fragment_url import FragmentUrls
from broker.client.journal_change import CHANGES_MAX, Change, requests_of
from broker.client.journal_list import list_journals, watch_journals
from broker.client.listing import Listing
from broker.client.outcome import Appended
from broker.client.read_message import ReadMetadata
from broker.client.reader import LineReader, Reader
from broker.client.retry import RetryPolicy
from broker.client.retrying_read import OnJump, ReadRange, log_jump, read_metadata
from broker.client.settings import ClientSettings
from broker.client.tasks import ClientTasks
from protocol.errors import GazetteError
from protocol.gen import journal_pb2 as pb
from protocol.journal import SuspendMode
from protocol.label import LabelSet
from protocol.selector import LabelSelector
from protocol.validation import validate

__all__ = ["Client"]

_now_s = time.time  # noqa: TID251 -- the clock, unless a test brings one


class Client:
    """Use it with ``async with``. Any number of tasks of one event loop may share it, and should.

    Errors are those of ``protocol.errors``: a ``RefusedError`` has a status and a remedy, an ``UnavailableError`` says
    that no broker could be reached in time. Nothing was changed then. Of an ``UnknownOutcomeError`` that is not known.

    What fails is tried again where that makes sense and cannot do anything twice, for as long as ``retry`` says, which
    may be given with each call. To bound a call as a whole, use ``asyncio.timeout``.
    """

    def __init__(self, *addresses: str, settings: ClientSettings | None = None) -> None:
        """Addresses are a short form of settings that have nothing else."""
        self.settings = settings or ClientSettings.of(*addresses)
        self._now: Callable[[], float] = _now_s
        self._stack = AsyncExitStack()
        self._opened: tuple[Brokers, FragmentUrls] | None = None

    async def __aenter__(self) -> Client:
        settings = self.settings
        tasks = ClientTasks()
        brokers = Brokers(settings, tasks, self._now, random.Random())
        self._stack.push_async_callback(brokers.close)
        urls = FragmentUrls(settings.file_root, settings.connect_s, settings.stall_s)
        self._stack.push_async_callback(urls.close)
        # Entered last, so that nothing is running any more when the rest is closed.
        await self._stack.enter_async_context(tasks)
        self._opened = brokers, urls
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened = None
        await self._stack.aclose()

    @property
    def _brokers(self) -> Brokers:
        return self._parts[0]

    @property
    def _parts(self) -> tuple[Brokers, FragmentUrls]:
        if self._opened is None:
            raise RuntimeError("a Client is used within `async with Client(...) as client:`")
        return self._opened

    async def append(  # noqa: PLR0913 -- what an append may ask for
        self,
        journal: str,
        content: Content = b"",
        *,
        offset: int | None = None,
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet = LabelSet(),
        subtract_registers: LabelSet = LabelSet(),
        suspend: SuspendMode = SuspendMode.RESUME,
        retry: RetryPolicy | None = None,
    ) -> Appended:
        """Append bytes, or chunks of them that come from an iterable or an asynchronous one, all or nothing.

        Without content it is a barrier: what it returns is the journal's end, with all appends before it done. With
        `offset` the journal has to end there, with `check_registers` its registers have to match. What may have been
        done already is repeated with ``retry=AtLeastOnce()``; otherwise an ``UnknownOutcomeError`` says so::

            done = await client.append("my/journal", b"one\\n", retry=Retry(within_s=10))
            try:
                await client.append("my/journal", b"two\\n", offset=done.begin)
            except RefusedError as refused:
                print(refused.status.name, "and nothing was written")
        """
        request = AppendRequest(journal, offset, check_registers, union_registers, subtract_registers, suspend)
        return await appender.append(self._brokers, request, content, retry)

    def append_service(
        self, *, retry: RetryPolicy | None = None, pending_bytes_max: int = PENDING_BYTES_MAX
    ) -> AppendService:
        """Many small appends to many journals, in order and in few calls. It ends with the client.

        Whoever appends faster than brokers take it waits in ``append``::

            async with client.append_service() as service:
                orders = [await service.append("my/journal", b"%d\\n" % number) for number in range(100)]
                receipt = await service.append("my/other", b"100 orders\\n", after=orders)
                print("all done, up to", (await receipt).end)
        """
        return AppendService(self._brokers, retry, pending_bytes_max)

    def read(  # noqa: PLR0913 -- what a read may ask for
        self,
        journal: str,
        offset: int = 0,
        *,
        end: int | None = None,
        block: bool = True,
        begin_mod_time_s: int = 0,
        reads_stores: bool = True,
        on_jump: OnJump = log_jump,
        retry: RetryPolicy | None = None,
    ) -> Reader:
        """The bytes from `offset` on, which may be ``WRITE_HEAD``. With `block`, more is waited for at the end::

        async with client.read("my/journal", 0, block=False) as reader:
            print(await reader.read(6), reader.offset, reader.write_head)
            await reader.seek(0)
            print(await reader.read())
        """
        wanted = ReadRange(journal, offset, end, block, begin_mod_time_s, reads_stores)
        return Reader(*self._parts, wanted, retry, on_jump)

    def read_lines(  # noqa: PLR0913 -- what a read may ask for
        self,
        journal: str,
        offset: int = 0,
        *,
        end: int | None = None,
        block: bool = True,
        begin_mod_time_s: int = 0,
        reads_stores: bool = True,
        on_jump: OnJump = log_jump,
        retry: RetryPolicy | None = None,
    ) -> LineReader:
        """The lines from `offset` on, without their newlines::

        async with client.read_lines("my/journal", block=False) as lines:
            async for line in lines:
                print(line, lines.offset)
        """
        wanted = ReadRange(journal, offset, end, block, begin_mod_time_s, reads_stores)
        return LineReader(*self._parts, wanted, retry, on_jump)

    async def read_metadata(
        self, journal: str, offset: int = 0, *, begin_mod_time_s: int = 0, retry: RetryPolicy | None = None
    ) -> ReadMetadata:
        """What there is at an offset: the fragment that holds it, its URL, and the write head::

        print("it ends at", (await client.read_metadata("my/journal", WRITE_HEAD)).write_head)
        """
        attempts = self._brokers.attempts(retry)
        while True:
            try:
                return await read_metadata(self._brokers, journal, offset, begin_mod_time_s)
            except GazetteError as error:
                await self._brokers.pause(attempts, error)

    async def list(self, selector: LabelSelector | str = "", *, retry: RetryPolicy | None = None) -> Listing:
        """The journals that match, such as those of ``name:prefix=acme/, app=web``. All, without a selector::

        for journal in await client.list("name:prefix=my/"):
            print(journal.spec.name, journal.route.primary_id)
        """
        return await list_journals(self._brokers, _selector(selector), retry)

    def watch(
        self, selector: LabelSelector | str = "", *, retry: RetryPolicy | None = None
    ) -> AsyncGenerator[Listing, None]:
        """A listing, and another one whenever it has changed. Leave it by way of ``contextlib.aclosing``::

        async with aclosing(client.watch("name:prefix=my/")) as listings:
            async for listing in listings:
                print(listing.revision, [journal.spec.name for journal in listing])
                break
        """
        return watch_journals(self._brokers, _selector(selector), retry)

    async def apply(self, *changes: Change, changes_max: int = CHANGES_MAX, retry: RetryPolicy | None = None) -> int:
        """Create, change and delete journals. Returns the revision of etcd that has it all.

        All of a request's changes are made, or none. More of them than fit into one go into several, one after the
        other, so that an error may come after some were made::

            (journal,) = await client.list("name=my/journal")
            await client.apply(Upsert(replace(journal.spec, max_append_rate=1 << 20), journal.mod_revision))
        """
        return await self._apply(requests_of(changes, changes_max), retry)

    async def _apply(self, requests: Iterable[pb.ApplyRequest], retry: RetryPolicy | None) -> int:
        brokers = self._brokers
        revision = 0
        for request in requests:
            response = await brokers.apply(request, retry)
            check_ok(response.status, "a journal has another revision than was expected")
            revision = response.header.etcd.revision
            # Brokers that have not heard of it yet wait until they have, when they are asked for the journal.
            brokers.revision = max(brokers.revision, revision)
        return revision

    def fragments(
        self,
        journal: str,
        *,
        begin_mod_time_s: int = 0,
        end_mod_time_s: int = 0,
        signature_ttl_s: float | None = None,
        page_limit: int = 0,
        retry: RetryPolicy | None = None,
    ) -> AsyncGenerator[ListedFragment, None]:
        """The fragments of a journal in the order of their offsets, with signed URLs if a time to live is given::

        async for listed in client.fragments("my/journal", signature_ttl_s=60):
            print(listed.fragment.content_name, listed.signed_url or "not stored yet")
        """
        wanted = FragmentRange(journal, begin_mod_time_s, end_mod_time_s, signature_ttl_s, page_limit)
        return list_fragments(self._brokers, wanted, retry)

    async def store_health(
        self, store: str, *, check_delete: bool = False, check_delete_prefix: str = "", retry: RetryPolicy | None = None
    ) -> None:
        """Raises a RefusedError with the reason if brokers cannot use the store::

        await client.store_health("file:///")
        """
        request = pb.FragmentStoreHealthRequest(
            fragment_store=store, check_delete=check_delete, check_delete_prefix=check_delete_prefix
        )
        validate(request)
        brokers = self._brokers
        attempts = brokers.attempts(retry)
        while True:
            try:
                response = await brokers.store_health(brokers.dispatch.for_any(brokers.clock()), request)
                check_ok(response.status, response.store_health_error)
                return
            except GazetteError as error:
                await brokers.pause(attempts, error)


def _selector(selector: LabelSelector | str) -> LabelSelector:
    return LabelSelector.parse(selector) if isinstance(selector, str) else selector
