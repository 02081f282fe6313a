"""KeySpaceWatch: keeps a KeySpace in step with etcd, and says when it changed.

``load`` it, then ``run`` it for as long as the process lives. Whatever ends a watch, it is resumed where the mirror
stands: a lost stream, a member without a leader, one that closes in silence or says nothing at all. Where etcd no
longer has what came in between, everything is listed afresh. Now and then the mirror is compared with a listing, since
a mirror that is wrong looks just like one that is right.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NoReturn

from prometheus_client import Counter, Gauge, Histogram

from allocator.etcd_client import EtcdClient
from allocator.etcd_errors import CompactedError, EtcdError, EtcdHistoryError
from allocator.etcd_watch import WatchStream
from allocator.key_event import EtcdHeader, WatchEvents, WatchProgress
from allocator.key_value import ValueT
from allocator.keyspace import Decoded, KeySpace
from allocator.keyspace_view import KeySpaceView, Update, keys_that_differ

log = logging.getLogger(__name__)

KEYS = Gauge("gazette_keyspace_keys", "Keys of etcd in the mirror.")
BYTES = Gauge("gazette_keyspace_bytes", "Bytes that the values in the mirror have in etcd.")
UNDECODABLE = Gauge("gazette_keyspace_undecodable_keys", "Keys whose latest value in etcd could not be decoded.")
REVISION = Gauge("gazette_keyspace_revision", "Revision of the mirror.")
SILENCE = Gauge("gazette_keyspace_silence_seconds", "For how long the watch of etcd has given no sign of life.")
APPLY_DELAY = Histogram(
    "gazette_keyspace_apply_delay_seconds",
    "Time from the arrival of events to their being visible, the batching included.",
    buckets=(0.001, 0.005, 0.02, 0.05, 0.1, 0.5, 2),
)
RESUMED = Counter("gazette_keyspace_watches_resumed", "Watches of etcd that ended and were resumed.")
RELOADED = Counter("gazette_keyspace_reloads", "Listings that replaced the mirror, since events were lost.")
OBSERVER_FAILED = Counter("gazette_keyspace_observer_failures", "Updates of the mirror that an observer failed on.")
VERIFIED = Counter("gazette_keyspace_verifications", "Comparisons of the mirror with a listing.", ("outcome",))

# From so many events on, applying them goes to a thread: a thousand specs of journals take 30 ms.
_OFF_LOOP_EVENTS = 500
_QUEUED_MAX = 256
_NOTES_MAX = 20
_PAUSE_S = 0.05
_PAUSE_S_MAX = 5.0
_LIVED_S = 1.0
_CONFIRMATIONS = 5

Observer = Callable[[Update[ValueT]], None]


@dataclass(frozen=True, slots=True)
class WatchTiming:
    # Events that arrive within this time of the first are one update: a journal deleted and created again is one
    # change, and a transaction of a thousand keys costs its observers one look.
    delay_s: float = 0.03
    # How often the member is asked for a sign of life, and after how long without any it is given up.
    probe_s: float = 5.0
    stall_s: float = 15.0
    verify_s: float = 600.0
    # Before etcd is believed to have gone back in time, it has to say so several times this far apart.
    confirm_s: float = 1.0


class MirrorError(EtcdError):
    """The mirror is not what etcd has."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(f"{len(keys)} keys differ from what etcd has, {keys[0]!r} for one")


class KeySpaceWatch(Generic[ValueT]):
    def __init__(
        self,
        etcd: EtcdClient,
        keyspace: KeySpace[ValueT],
        *,
        timing: WatchTiming | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._etcd = etcd
        self._keyspace = keyspace
        self._timing = timing or WatchTiming()
        self._chance = chance or random.Random()
        self._observers: list[Observer[ValueT]] = []
        # Set, and replaced by another, whenever there is a new view.
        self._renewed = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._heard_s = self._verified_s = self._clock()
        self._bytes = 0

    @property
    def prefix(self) -> str:
        return self._keyspace.prefix

    @property
    def view(self) -> KeySpaceView[ValueT]:
        return self._keyspace.view

    def observe(self, observer: Observer[ValueT]) -> None:
        """Call `observer` with every update from now on, after those that came before it. It must not wait.

        One that raises is logged and counted, and called again with the next update. That tells of other changes: what
        must not be missed is better read from the view, which has everything.
        """
        self._observers.append(observer)

    async def wait_revision(self, revision: int, timeout_s: float) -> KeySpaceView[ValueT]:
        """A view that has every event up to `revision`. Raises TimeoutError.

        Wait for revisions at which the prefix changed: others may be long in coming.
        """
        return await self.wait_until(lambda view: view.through >= revision, timeout_s)

    async def wait_change(self, after: KeySpaceView[ValueT], timeout_s: float | None) -> KeySpaceView[ValueT]:
        """A view that is not `after`. To wait for the revision above that of `after` would be something else: a mirror
        that was listed afresh may be through with it, and nothing has changed."""
        return await self.wait_until(
            lambda view: view.key_values is not after.key_values or view.header != after.header, timeout_s
        )

    async def wait_until(
        self, condition: Callable[[KeySpaceView[ValueT]], bool], timeout_s: float | None
    ) -> KeySpaceView[ValueT]:
        """The first view, this one included, of which `condition` holds. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not condition(self.view):
                await self._renewed.wait()
            return self.view

    async def load(self, revision: int | None = None) -> KeySpaceView[ValueT]:
        """List everything at one revision: that of the announcement, for a member. Without one, it is that of now.

        If etcd has compacted that one away, everything is listed as it is now, and the revision is still one that a
        key of the prefix had.
        """
        try:
            listing = await self._etcd.list_prefix(self._keyspace.prefix, revision)
            decoded = await asyncio.to_thread(self._keyspace.decoded, listing)
            update = self._keyspace.load(decoded)
        except CompactedError:
            if revision is None:
                raise
            update = self._keyspace.load(await self._listed_afresh(revision), revision)
        self._publish(update)
        self._heard_s = self._verified_s = self._clock()
        return self.view

    async def run(self) -> NoReturn:
        """Follow etcd until cancelled. Raises an EtcdHistoryError if it is not the etcd that it was."""
        SILENCE.set_function(lambda: self._clock() - self._heard_s)
        failures = 0
        while True:
            begun_s = self._clock()
            ended = await self._follow()
            if isinstance(ended, EtcdHistoryError):
                raise ended
            # A watch that works for a moment only must not be resumed in a tight loop.
            lived = self._heard_s > begun_s and self._clock() - begun_s > _LIVED_S
            failures = 0 if lived else failures + 1
            pause_s = self._pause_s(failures)
            RESUMED.inc()
            log.warning(
                "watch of etcd ended (will be resumed)",
                extra={"prefix": self._keyspace.prefix, "error": str(ended), "pause_s": round(pause_s, 3)},
            )
            await asyncio.sleep(pause_s)

    def _pause_s(self, failures: int) -> float:
        """None at first: until then an old view is all there is to serve from."""
        if failures <= 1:
            return 0.0
        longest_s: float = min(_PAUSE_S_MAX, _PAUSE_S * (1 << min(failures, 16)))
        return longest_s * self._chance.uniform(0.5, 1.0)

    async def _follow(self) -> EtcdError:
        """One watch, from where the mirror stands, and why it ended."""
        try:
            await self._check_history()
            async with self._etcd.watch(self._keyspace.prefix, self.view.through + 1) as stream:
                raise await self._apply_all(stream)
        except (CompactedError, MirrorError) as error:
            return await self._reload(error)
        except EtcdError as error:
            return error

    async def _check_history(self) -> None:
        """A watch on an etcd that was wiped would wait for a revision that is long in coming, and meanwhile the mirror
        would tell of a cluster that is no more. A majority is asked, and more than once: an etcd before 3.5.28 may
        answer from the past for a moment, after it was paused."""
        prefix = self._keyspace.prefix
        header, known = await self._etcd.header(prefix), self.view.header
        for _ in range(_CONFIRMATIONS):
            if header.cluster_id != known.cluster_id:
                raise EtcdHistoryError(f"this is etcd cluster {header.cluster_id:x}, and it was {known.cluster_id:x}")
            if header.revision >= self.view.through and header.raft_term >= known.raft_term:
                return
            await asyncio.sleep(self._timing.confirm_s)
            header = await self._etcd.header(prefix)
        raise EtcdHistoryError(
            f"etcd is at revision {header.revision} of term {header.raft_term}, and was at {self.view.through} of "
            f"term {known.raft_term}: was it wiped, or restored from a backup?"
        )

    async def _reload(self, why: EtcdError) -> EtcdError:
        try:
            update = self._keyspace.reload(await self._listed_afresh(self.view.through))
        except EtcdError as error:
            return error
        RELOADED.inc()
        self._publish(update)
        log.warning(
            "key space was listed afresh",
            extra={"prefix": self._keyspace.prefix, "error": str(why), "changed_keys": len(update.changes)},
        )
        return why

    async def _listed_afresh(self, at_least: int) -> Decoded[ValueT]:
        """Everything as it is now. If that is not `at_least` of that revision, it was not for several times."""
        listing = await self._etcd.list_prefix(self._keyspace.prefix)
        for _ in range(_CONFIRMATIONS):
            if listing.header.revision >= at_least:
                break
            await asyncio.sleep(self._timing.confirm_s)
            listing = await self._etcd.list_prefix(self._keyspace.prefix)
        return await asyncio.to_thread(self._keyspace.decoded, listing)

    async def _apply_all(self, stream: WatchStream) -> EtcdError:
        """Apply what the stream brings until it ends."""
        arrived: asyncio.Queue[WatchEvents | WatchProgress | EtcdError] = asyncio.Queue(_QUEUED_MAX)
        async with asyncio.TaskGroup() as tasks:
            # What goes wrong in them comes out of the queue, in its place among the events.
            children = [
                tasks.create_task(self._read_all(stream, arrived)),
                tasks.create_task(self._probe(stream)),
                tasks.create_task(self._verify_regularly(arrived)),
            ]
            ended = await self._apply_batches(arrived)
            for child in children:
                child.cancel()
        return ended

    async def _read_all(
        self, stream: WatchStream, arrived: asyncio.Queue[WatchEvents | WatchProgress | EtcdError]
    ) -> None:
        try:
            while True:
                answer = await stream.read(self._timing.stall_s)
                self._heard_s = self._clock()
                await arrived.put(answer)
        except EtcdError as error:
            await arrived.put(error)

    async def _probe(self, stream: WatchStream) -> NoReturn:
        """Not at once: an etcd of 3.5.8 to 3.5.12 forgets a request that comes before the watch has caught up."""
        while True:
            await asyncio.sleep(self._timing.probe_s)
            await stream.request_progress()

    async def _apply_batches(self, arrived: asyncio.Queue[WatchEvents | WatchProgress | EtcdError]) -> EtcdError:
        while True:
            batch = [await arrived.get()]
            first_s = self._clock()
            if isinstance(batch[0], WatchEvents):
                await asyncio.sleep(self._timing.delay_s)
            while not arrived.empty():
                batch.append(arrived.get_nowait())
            try:
                if answers := [answer for answer in batch if isinstance(answer, WatchEvents)]:
                    self._publish(await self._apply(answers))
                    APPLY_DELAY.observe(self._clock() - first_s)
                for answer in batch:
                    if isinstance(answer, WatchProgress) and answer.is_complete:
                        self._progress(answer.header)
            except EtcdError as error:
                return error
            if errors := [answer for answer in batch if isinstance(answer, EtcdError)]:
                return errors[0]

    async def _apply(self, answers: Sequence[WatchEvents]) -> Update[ValueT]:
        if sum(len(answer.events) for answer in answers) < _OFF_LOOP_EVENTS:
            return self._keyspace.apply(answers)
        # Nobody else alters the mirror meanwhile: all that does waits for its turn behind this.
        return self._keyspace.publish(await asyncio.to_thread(self._keyspace.applied, answers))

    def _progress(self, header: EtcdHeader) -> None:
        self._keyspace.progress(header)
        self._wake()

    def _publish(self, update: Update[ValueT]) -> None:
        """Nothing waits in here: an observer sees the view that it is told of."""
        for note in update.notes[:_NOTES_MAX]:
            log.warning("key of etcd is not as expected", extra={"key": note.key, "what": note.what})
        if len(update.notes) > _NOTES_MAX:
            log.warning("further keys of etcd are not as expected", extra={"count": len(update.notes) - _NOTES_MAX})
        for before, after in update.changes:
            self._bytes += (len(after.raw) if after else 0) - (len(before.raw) if before else 0)
        KEYS.set(len(update.view.key_values))
        BYTES.set(self._bytes)
        UNDECODABLE.set(len(update.view.undecodable))
        REVISION.set(update.view.revision)
        for observer in self._observers:
            try:
                observer(update)
            except Exception:
                # Neither the mirror nor the other observers have to do with it.
                OBSERVER_FAILED.inc()
                log.exception("observer of the key space failed", extra={"revision": update.view.revision})
        self._wake()

    def _wake(self) -> None:
        renewed, self._renewed = self._renewed, asyncio.Event()
        renewed.set()

    async def _verify_regularly(self, arrived: asyncio.Queue[WatchEvents | WatchProgress | EtcdError]) -> None:
        while True:
            await asyncio.sleep(self._verified_s + self._timing.verify_s - self._clock())
            self._verified_s = self._clock()
            try:
                wrong = await self._differing_keys()
            except EtcdError as error:
                VERIFIED.labels("failed").inc()
                log.info("mirror of etcd could not be verified (will try again)", extra={"error": str(error)})
                continue
            VERIFIED.labels("differs" if wrong else "same").inc()
            if wrong:
                log.error("mirror differs from etcd", extra={"keys": wrong[:_NOTES_MAX], "count": len(wrong)})
                await arrived.put(MirrorError(wrong))
                return

    async def _differing_keys(self) -> list[str]:
        """None if the mirror has just been proved, at some revision and to be moving on if there is something to
        move on to."""
        prefix = self._keyspace.prefix
        listing = await self._etcd.list_prefix(prefix, keys_only=True)
        view = self.view
        wrong = await asyncio.to_thread(keys_that_differ, view, listing.keys)
        if not wrong:
            return []
        if view.through <= listing.header.revision:
            # Events are on their way, or were lost. If none comes they were lost.
            try:
                view = await self.wait_change(view, self._timing.stall_s)
            except TimeoutError:
                return wrong
        listing = await self._etcd.list_prefix(prefix, view.through, keys_only=True)
        return await asyncio.to_thread(keys_that_differ, view, listing.keys)
