"""Watches of the simulated etcd, and the mirror that each client keeps of a prefix with the shipped KeySpace.

A watch brings events late, together, cut short, in two parts, or ends. The mirror does what ``KeySpaceWatch`` does
over a real connection: it gathers what comes within a moment into one update, resumes where the mirror stands, and
lists afresh where etcd has forgotten what came in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from allocator.etcd_errors import CompactedError, EtcdError, EtcdUnavailableError
from allocator.key_event import EtcdHeader, Listing, WatchEvents, WatchProgress
from allocator.key_value import ValueT
from allocator.keyspace import KeySpace
from allocator.keyspace_view import KeySpaceView, Update
from tests.simulation.etcd import Etcd, EtcdAccess, KeyEvent
from tests.simulation.network import End, Network, Stream

WATCH = "etcd watch"
BATCH_S = 0.03
_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class _Begin:
    prefix: str
    revision: int


@dataclass(frozen=True, slots=True)
class _Delivery:
    answers: Sequence[WatchEvents | WatchProgress]
    # The answers are not to be made one update.
    is_torn: bool = False


class WatchServer:
    """Etcd's side of all watches."""

    def __init__(self, network: Network, etcd: Etcd) -> None:
        network.serve(etcd.node, self._accept)
        self._etcd = etcd
        self._watches: dict[_Watch, None] = {}
        etcd.observers.append(self._changed)

    def _accept(self, stream: Stream, method: str) -> tuple[Callable[[_Begin], None], Callable[[End], None]]:
        assert method == WATCH
        watch = _Watch(self._etcd, stream, self._watches)
        return watch.begin, watch.ended

    def _changed(self) -> None:
        for watch in self._watches:
            watch.wake()


class _Watch:
    def __init__(self, etcd: Etcd, stream: Stream, watches: dict[_Watch, None]) -> None:
        self._etcd = etcd
        self._stream = stream
        self._watches = watches
        self._prefix = ""
        self._next = 0
        self._is_awake = False

    def begin(self, request: _Begin) -> None:
        if request.revision < self._etcd.compacted:
            self._refuse()
            return
        self._prefix, self._next = request.prefix, request.revision
        self._watches[self] = None
        self.wake()
        self._etcd.node.after(self._etcd.faults.progress_s, self._progress)

    def ended(self, _: End) -> None:
        self._watches.pop(self, None)
        self._stream.half_close()

    def _refuse(self) -> None:
        """What comes next is forgotten."""
        self._watches.pop(self, None)
        self._stream.send(CompactedError(self._etcd.compacted))
        self._stream.half_close()

    def wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            delay_s = self._etcd.node.world.chance.random() * self._etcd.faults.watch_delay_s
            self._etcd.node.after(delay_s, self._deliver)

    def _deliver(self) -> None:
        self._is_awake = False
        chance, faults = self._etcd.node.world.chance, self._etcd.faults
        if self not in self._watches:
            return
        if chance.random() < faults.watch_drop_rate:
            self._watches.pop(self)
            self._stream.half_close()
            return
        if self._next < self._etcd.compacted:
            # It happened since the watch began, and before it was told.
            self._refuse()
            return
        happened = self._etcd.history(self._prefix, self._next, self._etcd.revision)
        if not happened:
            # What did happen was elsewhere. To resume from here would bring nothing new.
            return
        if len(happened) > 1 and chance.random() < faults.watch_lag_rate:
            happened = happened[: chance.randrange(1, len(happened))]
            self.wake()
        self._next = happened[-1][0] + 1
        self._send([event for _, events in happened for event in events], happened[-1][1])

    def _send(self, events: list[KeyEvent], last: tuple[KeyEvent, ...]) -> None:
        """The header tells of the store and may be ahead of the events. A revision in two parts has one header."""
        chance, faults, header = self._etcd.node.world.chance, self._etcd.faults, self._etcd.header
        if len(last) < 2 or chance.random() >= faults.watch_split_rate:
            self._stream.send(_Delivery([WatchEvents(header, events)]))
            return
        at = len(events) - chance.randrange(1, len(last))
        parts = [WatchEvents(header, events[:at]), WatchEvents(header, events[at:])]
        self._stream.send(_Delivery(parts, chance.random() < faults.watch_tear_rate))

    def _progress(self) -> None:
        """Only where everything up to the header's revision has been sent, as etcd promises."""
        if self not in self._watches:
            return
        if not self._is_awake:
            self._stream.send(_Delivery([WatchProgress(self._etcd.header, True)]))
        self._etcd.node.after(self._etcd.faults.progress_s, self._progress)


class Mirror(Generic[ValueT]):
    """A client's KeySpace, kept in step with etcd for one life of its node."""

    def __init__(
        self,
        access: EtcdAccess,
        keyspace: KeySpace[ValueT],
        observe: Callable[[Update[ValueT]], None],
        batch_s: float = BATCH_S,
    ) -> None:
        """`observe` is called with every update, and after the view has changed."""
        self._access = access
        self._node = access.node
        self._keyspace = keyspace
        self._observe = observe
        self._batch_s = batch_s
        self._stream: Stream | None = None
        self._arrived: list[WatchEvents | WatchProgress] = []
        self._is_applying = False
        self.reloads = 0
        self.resumed = 0

    @property
    def view(self) -> KeySpaceView[ValueT]:
        return self._keyspace.view

    def start(self, loaded: Callable[[], None], revision: int | None = None) -> None:
        """List at `revision`, that of the announcement for a member; then follow. `loaded` hears when the first view
        is there."""

        def listed(listing: Listing | EtcdError) -> None:
            if isinstance(listing, CompactedError):
                self.start(loaded)
            elif isinstance(listing, EtcdError):
                self._node.after(_RETRY_S, self.start, loaded, revision)
            else:
                self._observe(self._keyspace.load(self._keyspace.decoded(listing)))
                self._follow()
                loaded()

        self._access.list_prefix(self._keyspace.prefix, listed, revision)

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        self._arrived.clear()

    def _follow(self) -> None:
        access = self._access
        self._stream = access.network.open(self._node, access.etcd.node, WATCH, self._heard, self._ended)
        self._stream.send(_Begin(self._keyspace.prefix, self.view.through + 1))

    def _heard(self, message: _Delivery | CompactedError) -> None:
        if isinstance(message, CompactedError):
            self._arrived.clear()
            self._reload()
            return
        if message.is_torn:
            self._arrived.append(message.answers[0])
            self._apply()
        self._arrived.extend(message.answers[1:] if message.is_torn else message.answers)
        if not self._is_applying:
            self._is_applying = True
            self._node.after(self._batch_s, self._apply)

    def _apply(self) -> None:
        self._is_applying = False
        arrived, self._arrived = self._arrived, []
        answers = [answer for answer in arrived if isinstance(answer, WatchEvents)]
        try:
            if answers:
                self._observe(self._keyspace.apply(answers))
            for answer in arrived:
                if isinstance(answer, WatchProgress):
                    self._progress(answer.header)
        except EtcdUnavailableError:
            self.stop()
            self._node.after(_RETRY_S, self._follow)

    def _progress(self, header: EtcdHeader) -> None:
        self._keyspace.progress(header)
        self._observe(Update(self.view, [], []))

    def _ended(self, _: End) -> None:
        """What has arrived is applied first: the watch is resumed from where the mirror stands."""
        if self._arrived:
            self._apply()
        self.resumed += 1
        self._node.after(_RETRY_S * self._node.world.chance.random(), self._follow)

    def _reload(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

        def listed(listing: Listing | EtcdError) -> None:
            if isinstance(listing, EtcdError):
                self._node.after(_RETRY_S, self._reload)
                return
            self.reloads += 1
            self._observe(self._keyspace.reload(self._keyspace.decoded(listing)))
            self._follow()

        self._access.list_prefix(self._keyspace.prefix, listed)
