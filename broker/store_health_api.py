"""FragmentStoreHealth: whether a store could be used by journals, checked from where this broker is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from allocator.keyspace_view import KeySpaceView
from broker.answer_header import own_header
from broker.cluster_keys import BrokerEntity
from broker.read_api import OpenStore
from fragment.stores.health import CHECK_S_MAX, Health, check_delete, check_store, said
from protocol.errors import InvariantError
from protocol.gen import journal_pb2 as pb
from protocol.route import ProcessId

CHECKS_MAX = 4
_PROBLEM_MAX = 1000


@dataclass(frozen=True, slots=True)
class StoreHealthApi:
    root: str
    own_id: ProcessId
    view: Callable[[], KeySpaceView[BrokerEntity]]
    open_store: OpenStore
    # What is known of a store that this broker checks regularly; None if it is none of them.
    watched: Callable[[str], Awaitable[Health] | None]
    # Anyone may ask for any store: each is a few requests to wherever its URL says.
    checks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CHECKS_MAX))

    async def store_health(self, request: pb.FragmentStoreHealthRequest) -> pb.FragmentStoreHealthResponse:
        """The answer to a request that was found valid."""
        problem = await self._problem(request)
        return pb.FragmentStoreHealthResponse(
            status=pb.OK if problem is None else pb.FRAGMENT_STORE_UNHEALTHY,
            header=own_header(self.view(), self.root, self.own_id),
            store_health_error=(problem or "")[:_PROBLEM_MAX],
        )

    async def _problem(self, request: pb.FragmentStoreHealthRequest) -> str | None:
        try:
            async with asyncio.timeout(CHECK_S_MAX), self.checks:
                if (watched := self.watched(request.fragment_store)) is not None:
                    if problem := (await watched).problem:
                        return problem
                else:
                    await check_store(await self.open_store(request.fragment_store))
                if request.check_delete:
                    await check_delete(await self.open_store(request.fragment_store), request.check_delete_prefix)
        except TimeoutError:
            return f"the store could not be checked within {CHECK_S_MAX} s"
        except InvariantError:
            raise
        except Exception as error:
            # The libraries of stores, and the system, raise all sorts of things about URLs that they do not like.
            return said(error)
        return None
