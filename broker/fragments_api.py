"""ListFragments: which fragments of a journal there are, in its stores and on brokers, with URLs to read them by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker.answer_header import answer_header, forwarded_header
from broker.local_replica import LocalReplica
from broker.read_api import OpenStore, read_status
from broker.resolution import EVERYTHING, Resolution, Wanted
from broker.resolver import Resolver, StoppedError
from broker.resolving import resolve
from fragment.live_index import FIRST_REFRESH_S_MAX
from fragment.spool_file import SpoolFile
from protocol import duration
from protocol.errors import Status, UnavailableError
from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb
from protocol.identifier import strip_meta
from protocol.route import Header
from protocol.selector import LabelSelector

PAGE_LIMIT = 1000
ANSWER_BYTES_MAX = 2 << 20
"""Beyond it a page ends early: peers take 4 MiB, and URLs that are signed are long."""
SIGNED_S_MAX = 3600.0
TURN_FRAGMENTS = 200
"""So many are told of before others get their turn."""

ProxyFragments = Callable[[Resolution, pb.FragmentsRequest], Awaitable[pb.FragmentsResponse]]
"""Sends a request to a member of the resolution's Route, which is any of them."""


@dataclass(frozen=True, slots=True)
class FragmentsApi:
    resolver: Resolver[SpoolFile]
    open_store: OpenStore
    proxy: ProxyFragments
    first_refresh_s_max: float = FIRST_REFRESH_S_MAX

    async def list_fragments(
        self, request: pb.FragmentsRequest, selector: LabelSelector = EVERYTHING
    ) -> pb.FragmentsResponse:
        """The answer to a request that was found valid, of one who may see what `selector` matches."""
        resolution = await resolve(
            self.resolver,
            Wanted(
                strip_meta(request.journal),
                may_proxy=not request.do_not_proxy,
                header=Header.from_proto(request.header) if request.HasField("header") else None,
                selector=selector,
            ),
        )
        status = read_status(resolution)
        if status is not Status.OK:
            return pb.FragmentsResponse(status=pb.Status.ValueType(status), header=answer_header(resolution))
        if not resolution.is_local:
            forwarded = pb.FragmentsRequest()
            forwarded.CopyFrom(request)
            forwarded.header.CopyFrom(forwarded_header(resolution))
            return await self.proxy(resolution, forwarded)
        return await self._local(resolution, request)

    async def _local(self, resolution: Resolution, request: pb.FragmentsRequest) -> pb.FragmentsResponse:
        replica = resolution.replica
        assert isinstance(replica, LocalReplica)
        await self._wait_listed(replica)
        page = replica.index.page(
            request.next_page_token, request.page_limit or PAGE_LIMIT, request.begin_mod_time, request.end_mod_time
        )
        ttl_s = None
        if request.HasField("signatureTTL"):
            ttl_s = min(duration.from_proto(request.signatureTTL) / 1e9, SIGNED_S_MAX)
        response = pb.FragmentsResponse(header=answer_header(resolution), next_page_token=page.next_token)
        size = 0
        for fragment in page.fragments:
            if size >= ANSWER_BYTES_MAX:
                response.next_page_token = fragment.begin
                break
            listed = response.fragments.add(spec=fragment.to_proto())
            if ttl_s is not None and fragment.backing_store and fragment.mod_time:
                listed.signed_url = await self._signed(fragment, ttl_s)
            size += listed.ByteSize()
            if len(response.fragments) % TURN_FRAGMENTS == 0:
                await asyncio.sleep(0)
        return response

    async def _signed(self, fragment: Fragment, ttl_s: float) -> str:
        store = await self.open_store(fragment.backing_store)
        return await store.sign_get(fragment.content_path, ttl_s)

    async def _wait_listed(self, replica: LocalReplica) -> None:
        """Until the stores have been listed once: before, most fragments would be missing."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.first_refresh_s_max) as scope:
                forget = replica.stopped.listen(lambda: scope.reschedule(loop.time()))
                try:
                    await replica.live.wait_first_refresh()
                finally:
                    forget()
        except TimeoutError as error:
            if replica.is_stopped:
                raise StoppedError("this broker does not hold the journal any more: ask again") from error
            why = replica.live.problem or "this still goes on"
            raise UnavailableError(
                f"the stores of the journal could not be listed within {self.first_refresh_s_max:g} s of asking "
                f"({why}): try again; if it lasts, check the stores"
            ) from error
