"""Whether a store can be used: probed now and then, often while it cannot, so that writers know before they wait.

The probe leaves an object ``.test/health-check`` under each store's prefix, as Gazette's does.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from random import Random

import aiohttp
from prometheus_client import Counter

from fragment.stores.blob_store import BlobStore, StoreClosedError
from protocol.errors import GazetteError, InvariantError, UnavailableError

log = logging.getLogger(__name__)

CHECKS = Counter("gazette_store_health_check_total", "Health checks of fragment stores.", ("store", "status"))

HEALTHY_S = 30 * 60
RETRY_S = (0, 0.1, 1, 1, 10, 10)
"""After the first failures in a row; after later ones it is `RETRY_S_MAX`."""
RETRY_S_MAX = 100
JITTER = 0.2
CHECK_S_MAX = 60
SIGNED_S = 60

PROBE = ".test/health-check"
PROBE_CONTENT = b"health-check\n"
DELETE_PROBE = ".gazette-delete-probe"
DELETE_PROBE_CONTENT = b"gazette-delete-probe\n"


def next_check_s(failures: int, chance: float) -> float:
    """How long to wait for the next check after so many failures in a row; `chance` is from [0, 1).

    The jitter keeps the brokers of a cluster, which all check the same stores, from doing it in step.

    >>> [next_check_s(failures, 0.5) for failures in range(9)]
    [1800.0, 0.0, 0.1, 1.0, 1.0, 10.0, 10.0, 100.0, 100.0]
    """
    if failures == 0:
        base: float = HEALTHY_S
    else:
        base = RETRY_S[failures - 1] if failures <= len(RETRY_S) else RETRY_S_MAX
    return base * (1 + JITTER * (2 * chance - 1))


@dataclass(frozen=True, slots=True)
class Health:
    """What the last check has found."""

    checks: int = 0
    """How many there were."""
    problem: str | None = None
    """Why the store cannot be used; None if it can, or if nothing is known yet."""
    is_final: bool = False
    """Nothing is gained by waiting for another check: the store cannot even be opened, or checks have ended."""

    @property
    def is_healthy(self) -> bool:
        return self.checks > 0 and self.problem is None


class StoreHealth:
    """Checks one store for as long as ``run`` runs.

    Writers look at ``current``, and if it does not suit them, wait for what ``wait_next`` brings.
    """

    def __init__(
        self,
        label: str,
        open_store: Callable[[], Awaitable[BlobStore]],
        random: Random,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        check: Callable[[BlobStore], Awaitable[None]] | None = None,
    ) -> None:
        self.current = Health()
        self._label = label
        self._open_store = open_store
        self._random = random
        self._sleep = sleep
        self._check = check or check_store
        self._checked = asyncio.Event()
        self._store: BlobStore | None = None

    async def run(self) -> None:
        """Until it is cancelled, or the store is closed because nothing uses it. A check is no use of it."""
        failures = 0
        try:
            while True:
                problem, is_final = await self._problem()
                failures = failures + 1 if problem else 0
                self._log(problem)
                self._tell(Health(self.current.checks + 1, problem, is_final))
                await self._sleep(next_check_s(failures, self._random.random()))
        except StoreClosedError:
            return
        finally:
            self._tell(Health(self.current.checks, "health checks have ended: ask for the store again", is_final=True))

    async def wait_next(self) -> Health:
        """What the next check finds, however long that takes; what is final, at once."""
        if not self.current.is_final:
            await self._checked.wait()
        return self.current

    async def wait_first(self) -> Health:
        return self.current if self.current.checks else await self.wait_next()

    def _log(self, problem: str | None) -> None:
        """When it changes, not every time."""
        if problem and problem != self.current.problem:
            log.warning(
                "fragment store is unhealthy (will check again)", extra={"store": self._label, "problem": problem}
            )
        elif self.current.problem and not problem:
            log.info("fragment store is healthy again", extra={"store": self._label})

    def _tell(self, health: Health) -> None:
        self.current = health
        # Whoever waits now has got what they waited for; whoever comes later waits for the next one.
        self._checked.set()
        self._checked = asyncio.Event()

    async def _problem(self) -> tuple[str | None, bool]:
        try:
            self._store = self._store or await self._open_store()
        except InvariantError:
            raise
        except Exception as error:
            # The libraries of stores raise all sorts of things about URLs that they do not like.
            CHECKS.labels(self._label, "not_opened").inc()
            return said(error), True
        try:
            async with asyncio.timeout(CHECK_S_MAX):
                await self._check(self._store)
        except TimeoutError:
            problem = f"a check took longer than {CHECK_S_MAX} s"
        except (StoreClosedError, InvariantError):
            raise
        except Exception as error:
            problem = said(error)
        else:
            CHECKS.labels(self._label, "ok").inc()
            return None, False
        CHECKS.labels(self._label, "error").inc()
        return problem, False


def said(error: Exception) -> str:
    """In words, if they are ours: others may show what is secret."""
    if isinstance(error, GazetteError):
        return str(error) or type(error).__name__
    return f"it cannot be used: {type(error).__name__}"


def shown(url: str) -> str:
    """Of a store, without its arguments, which may hold what is not for everybody's eyes."""
    return url.partition("?")[0]


async def check_store(store: BlobStore) -> None:
    """Write, read, list, sign and fetch. Raises what a writer or a reader of fragments would run into."""
    await _put(store, PROBE, PROBE_CONTENT)
    async with aclosing(store.get(PROBE)) as chunks:
        got = b"".join([chunk async for chunk in chunks])
    if got != PROBE_CONTENT:
        raise UnavailableError(f"{PROBE} was written, but reads differently: check what else writes there")
    folder, _, name = PROBE.rpartition("/")
    async with aclosing(store.list(f"{folder}/")) as batches:
        if not any([name in (listed.path for listed in batch) async for batch in batches]):
            raise UnavailableError(f"{PROBE} was written, but is not listed: the store must list what it has at once")
    url = await store.sign_get(PROBE, SIGNED_S)
    if url.startswith("http") and await fetch(url) != PROBE_CONTENT:
        raise UnavailableError(f"{PROBE} was written, but its signed URL gives something else")


async def check_delete(store: BlobStore, prefix: str) -> None:
    """Write an object under `prefix` and remove it, which not everyone may do who may write."""
    await _put(store, prefix + DELETE_PROBE, DELETE_PROBE_CONTENT)
    await store.remove(prefix + DELETE_PROBE)


async def fetch(url: str) -> bytes:
    """The beginning of what a URL gives, as readers of fragments fetch it."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            if response.status != 200:
                raise UnavailableError(f"a signed URL was answered with {response.status}: check the credentials")
            return await response.content.read(1024)
    except aiohttp.ClientError as error:
        # Not the error's text: it shows the URL, which is a secret for as long as it is valid.
        raise UnavailableError(f"a signed URL could not be fetched ({type(error).__name__})") from error


async def _put(store: BlobStore, path: str, content: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        await store.put(path, file.fileno(), size=len(content))
