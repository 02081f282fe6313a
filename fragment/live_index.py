"""LiveIndex: an Index on an event loop, which can be waited for and refreshes itself."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Generic, NoReturn

from fragment.cover_set import CoverSet
from fragment.index import FileT, Found, Index, NotYetAvailable
from fragment.stores.health import said
from protocol.errors import InvariantError
from protocol.fragment import Fragment

log = logging.getLogger(__name__)

FIRST_REFRESH_S_MAX = 30.0
FIRST_RETRY_S, FIRST_RETRY_S_MAX = 1.0, 16.0
"""How soon a first listing that failed is tried again, at first and at last: nobody can append before it succeeds."""

ListRemote = Callable[[], Awaitable[CoverSet]]
"""Lists all stores of the journal; raises if one of them cannot be listed."""


class LiveIndex(Generic[FileT]):
    """Reads are served from the start, appends and ListFragments wait for the first refresh."""

    def __init__(self, journal: str, clock: Callable[[], float], chance: random.Random) -> None:
        self.journal = journal
        self.index: Index[FileT] = Index()
        self._clock = clock
        self._chance = chance
        self._is_refreshed = False
        # Set when that comes true; None if nobody waits for it, as nobody does for long.
        self._refreshed: asyncio.Event | None = None
        self._refreshing = asyncio.Lock()
        # Why the last listing failed; None if it did not, or none has ended yet.
        self.problem: str | None = None

    @property
    def is_refreshed(self) -> bool:
        return self._is_refreshed

    async def wait_first_refresh(self) -> None:
        """Until all stores have been listed once: before, the end of the journal is not known.

        There may be one that can never be listed. Whoever waits for no longer than FIRST_REFRESH_S_MAX has ``problem``
        to say why, if there is an answer yet.
        """
        if not self._is_refreshed:
            self._refreshed = self._refreshed or asyncio.Event()
            await self._refreshed.wait()

    def commit(self, fragment: Fragment, file: FileT) -> None:
        known = len(self.index.divergences)
        self.index.commit(fragment, file)
        if len(self.index.divergences) > known:
            self._warn_of_divergence()

    def look(self, offset: int, begin_mod_time: int = 0) -> Found[FileT] | NotYetAvailable:
        """As ``Index.query``, at this moment."""
        return self.index.query(offset, begin_mod_time, int(self._clock()))

    async def query(
        self, offset: int, begin_mod_time: int = 0, *, block: bool = False
    ) -> Found[FileT] | NotYetAvailable:
        """As ``Index.query``; one that blocks waits until something is found.

        There is no timer: a hole that grows old is noticed at the next commit or refresh.
        """
        while True:
            answer = self.look(offset, begin_mod_time)
            if not block or isinstance(answer, Found):
                return answer
            # The write head was meant as it stood when the reader came.
            offset = answer.offset
            await self._wait_change()

    async def _wait_change(self) -> None:
        """No await comes between the caller's query and the subscription, so no change slips through."""
        changed = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not changed.done():
                changed.set_result(None)

        self.index.subscribe(wake)
        try:
            await changed
        finally:
            self.index.unsubscribe(wake)

    async def refresh(self, list_remote: ListRemote) -> None:
        """One at a time: an older listing that came in last would take away what a newer one has shown."""
        try:
            async with self._refreshing:
                self.index.replace_remote(await list_remote())
        except Exception as error:
            self.problem = said(error)
            raise
        self.problem = None
        if self.index.divergences:
            self._warn_of_divergence()
        self._is_refreshed = True
        if self._refreshed is not None:
            self._refreshed.set()
            self._refreshed = None

    async def refresh_forever(self, list_remote: ListRemote, interval_s: Callable[[], float]) -> NoReturn:
        """At once, and then each time the interval has passed, which is asked for anew: specs change.

        A listing that fails is tried again after the interval like any other, but the first one sooner.
        """
        retry_s = FIRST_RETRY_S
        while True:
            try:
                await self.refresh(list_remote)
            except InvariantError:
                raise
            except Exception as error:
                log.warning(
                    "listing the fragments of a journal failed (will retry)",
                    extra={"journal": self.journal, "problem": self.problem, "error": repr(error.__cause__ or error)},
                )
            pause_s = interval_s()
            if not self._is_refreshed:
                pause_s, retry_s = min(pause_s, retry_s), min(2 * retry_s, FIRST_RETRY_S_MAX)
            await asyncio.sleep(jittered(pause_s, self._chance))

    def _warn_of_divergence(self) -> None:
        found = self.index.divergences
        log.error(
            "fragments of the same range differ in content",
            extra={"journal": self.journal, "divergences": len(found), "latest": repr(found[-1])},
        )


def jittered(interval_s: float, chance: random.Random) -> float:
    """`interval_s`, give or take a tenth: journals that started together soon list at different times."""
    return interval_s * chance.uniform(0.9, 1.1)
