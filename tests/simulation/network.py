"""Network: streams and calls between nodes, and everything that can go wrong with them.

A stream is one TCP connection with one RPC on it. Messages of one direction arrive in order. One that is lost takes
the rest of its direction with it, and sooner or later both ends learn that the stream is no more. There is no back
pressure: whoever sends may look at ``in_flight``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from math import log
from typing import Any

from tests.simulation.world import Act, Node, World


class Ending(Enum):
    EOF = "the far end has sent all it had to send"
    CANCELLED = "the far end wants no more of it"
    LOST = "the connection broke, or the far end is gone"


@dataclass(frozen=True, slots=True)
class End:
    kind: Ending
    # A word of the far end that comes with its EOF, such as the status that a server ends a call with.
    detail: object = None


OnMessage = Callable[[Any], None]
OnEnd = Callable[[End], None]
Acceptor = Callable[["Stream", str], tuple[OnMessage, OnEnd]]
"""Given the accepting end and the method that was called: who hears of messages, and who of the end."""


class Cut(Enum):
    REJECTED = "whoever sends is told at once"
    SILENT = "nobody is told; keep-alives that are not answered have to do"


@dataclass(slots=True)
class NetworkTimes:
    base_s: float = 0.0005
    # Of the exponential part of each delay.
    mean_s: float = 0.002
    # After how long a peer that says nothing is given up.
    silence_s: float = 10.0
    # Of each message on a stream, to be lost on a network that is otherwise well.
    drop_rate: float = 0.0


class Link:
    """One direction between two nodes."""

    __slots__ = ("cut", "is_clogged", "slow_s", "waiting")

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self.is_clogged = False
        # Added to every delay.
        self.slow_s = 0.0
        # What arrived while it was clogged, and is done when it no longer is.
        self.waiting: list[tuple[Node, int, Act, tuple[Any, ...]]] = []

    def hold(self, node: Node, act: Act, *args: Any) -> None:
        self.waiting.append((node, node.life, act, args))


class _Opening:
    """Goes ahead of a stream's messages."""


_OPENING = _Opening()


class Stream:
    """One end of a stream.

    ``on_message`` and ``on_end`` are called on the node of this end, in the order in which things arrive. An accepting
    end, like a server of grpc.aio, cannot tell a clean end from a broken one: it hears of EOF first whatever happened,
    and if it was something else, hears of that a moment later.
    """

    __slots__ = (
        "_heard_eof",
        "_is_accepting",
        "_network",
        "_sent_eof",
        "inbox",
        "is_over",
        "is_severed",
        "is_told",
        "last_s",
        "link_in",
        "method",
        "node",
        "on_end",
        "on_message",
        "peer",
    )

    peer: Stream

    def __init__(self, network: Network, node: Node, link_in: Link, method: str, *, is_accepting: bool) -> None:
        self.node = node
        self.method = method
        self.on_message: OnMessage = _ignored
        self.on_end: OnEnd = _ignored
        # Nothing more is sent or heard at this end.
        self.is_over = False
        self._network = network
        self._is_accepting = is_accepting
        # The rest is for the network. What is on its way to this end, and when the last of it arrives:
        self.link_in = link_in
        self.inbox: deque[object] = deque()
        self.last_s = 0.0
        # Nothing that is sent to this end from now on will arrive; and it is on its way to learn that.
        self.is_severed = False
        self.is_told = False
        self._sent_eof = False
        self._heard_eof = False

    @property
    def in_flight(self) -> int:
        """Messages of this end that have not arrived."""
        return len(self.peer.inbox)

    def send(self, message: object) -> bool:
        """Whether it was sent. That it arrives is another matter."""
        if self.is_over or self._sent_eof:
            return False
        self._network.transmit(self.peer, message)
        return True

    def half_close(self, detail: object = None) -> None:
        """Nothing more comes from here. At an accepting end that ends the whole call, as it does in gRPC: what the
        other end still sends is heard by nobody."""
        if self.is_over or self._sent_eof:
            return
        self._sent_eof = True
        self._network.transmit(self.peer, End(Ending.EOF, detail))
        if self._is_accepting:
            self.finish()

    def cancel(self) -> None:
        """Hear no more of it. What was sent before may be lost with it."""
        if self.is_over:
            return
        self.finish()
        if self._network.world.chance.random() < 0.5:
            self.peer.inbox.clear()
        self._network.transmit(self.peer, End(Ending.CANCELLED))

    def arrive(self) -> None:
        """Something has. It is always the first that is on its way, so nothing changes the order."""
        link = self.link_in
        if link.is_clogged:
            link.hold(self.node, self.arrive)
        elif link.cut is not None:
            self._network.lose(self, link.cut)
        elif self.inbox:
            self._hear(self.inbox.popleft())

    def _hear(self, item: object) -> None:
        if self.is_over:
            return
        if item is _OPENING:
            self._network.accept(self)
        elif not isinstance(item, End):
            self.on_message(item)
        elif item.kind is Ending.EOF:
            self._heard_eof = True
            if not self._is_accepting:
                self.finish()
            self.on_end(item)
        else:
            self.break_off(item)

    def break_off(self, end: End) -> None:
        if self.is_over:
            return
        if self._is_accepting and not self._heard_eof:
            self._heard_eof = True
            self.node.after(self._network.delay_s(self.link_in), self.break_off, end)
            self.on_end(End(Ending.EOF))
            return
        self.finish()
        self.on_end(end)

    def finish(self) -> None:
        self.is_over = True
        self.inbox.clear()
        self._network.forget(self)

    def sever(self, keep: int = 0) -> None:
        self.is_severed = True
        while len(self.inbox) > keep:
            self.inbox.pop()


class Network:
    def __init__(self, world: World, times: NetworkTimes | None = None) -> None:
        self.world = world
        self.times = times or NetworkTimes()
        self._random = world.chance.random
        self._links: dict[tuple[Node, Node], Link] = {}
        self._acceptors: dict[Node, tuple[int, Acceptor]] = {}
        # In the order of their opening: a set would have another one in each process.
        self._streams: dict[Node, dict[Stream, None]] = {}

    def serve(self, node: Node, acceptor: Acceptor) -> None:
        """Accept streams in this life of the node."""
        self._acceptors[node] = (node.life, acceptor)

    def open(self, src: Node, dst: Node, method: str, on_message: OnMessage, on_end: OnEnd) -> Stream:
        """Returns at once, before anybody knows whether the far end is there; messages may be sent right away."""
        near = Stream(self, src, self.link(dst, src), method, is_accepting=False)
        far = Stream(self, dst, self.link(src, dst), method, is_accepting=True)
        near.peer, far.peer = far, near
        near.on_message, near.on_end = on_message, on_end
        for end in (near, far):
            self._streams_of(end.node)[end] = None
        if dst.is_up:
            self.transmit(far, _OPENING)
            if dst.is_paused:
                self._expect_answer(far)
        else:
            far.finish()
            src.after(2 * self.delay_s(self.link(src, dst)), near.break_off, End(Ending.LOST))
        return near

    def streams_of(self, node: Node) -> list[Stream]:
        """Ends on this node that are not over. A healthy cluster at rest has few."""
        return list(self._streams_of(node))

    # Faults.

    def cut(self, src: Node, dst: Node, kind: Cut = Cut.SILENT) -> None:
        """Let nothing through from `src` to `dst`. The other direction goes on, for as long as it can."""
        self.link(src, dst).cut = kind
        for end in [end for end in self._streams_of(dst) if end.peer.node is src]:
            if kind is Cut.REJECTED:
                self.lose(end, kind)
            else:
                # Keep-alives of idle streams are lost, too.
                end.node.after(self.times.silence_s, self._give_up_if_cut, end)

    def partition(self, here: Iterable[Node], there: Iterable[Node], kind: Cut = Cut.SILENT) -> None:
        there = list(there)
        for one in here:
            for other in there:
                self.cut(one, other, kind)
                self.cut(other, one, kind)

    def clog(self, src: Node, dst: Node) -> None:
        """Hold everything back, as a queue on the way that does not move. Nothing is lost."""
        self.link(src, dst).is_clogged = True

    def unclog(self, src: Node, dst: Node) -> None:
        link = self.link(src, dst)
        link.is_clogged = False
        waiting, link.waiting = link.waiting, []
        for node, life, act, args in waiting:
            if node.life == life:
                node.after(0.0, act, *args)

    def heal(self) -> None:
        """Every link is well again. Streams that lost something stay broken."""
        self.times.drop_rate = 0.0
        for (src, dst), link in self._links.items():
            link.cut = None
            link.slow_s = 0.0
            self.unclog(src, dst)

    def link(self, src: Node, dst: Node) -> Link:
        link = self._links.get((src, dst))
        if link is None:
            link = self._links[src, dst] = Link()
        return link

    def lose(self, end: Stream, cut: Cut) -> None:
        """What is on its way to this end is gone, and all that would follow it. Both ends learn of it in time."""
        end.sever()
        for informed in (end, end.peer):
            if informed.is_told:
                continue
            informed.is_told = True
            delay_s = self.delay_s(informed.link_in)
            informed.node.after(
                delay_s if cut is Cut.REJECTED else self.times.silence_s + delay_s, informed.break_off, End(Ending.LOST)
            )

    # For the ends.

    def delay_s(self, link: Link) -> float:
        times = self.times
        # As ``expovariate(1.0)`` draws it: this is asked for more often than anything else.
        return times.base_s - log(1.0 - self._random()) * times.mean_s + link.slow_s

    def transmit(self, end: Stream, item: object) -> None:
        """Send towards `end`."""
        if end.is_severed or end.is_over:
            return
        if self.times.drop_rate and self._random() < self.times.drop_rate:
            self.lose(end, Cut.REJECTED)
            return
        end.inbox.append(item)
        self._schedule_arrival(end)

    def accept(self, end: Stream) -> None:
        life, acceptor = self._acceptors.get(end.node, (-1, None))
        if acceptor is None or life != end.node.life:
            # The process is up, but does not listen yet.
            self.transmit(end.peer, End(Ending.LOST))
            end.finish()
            return
        end.on_message, end.on_end = acceptor(end, end.method)

    def forget(self, end: Stream) -> None:
        self._streams_of(end.node).pop(end, None)

    def _schedule_arrival(self, end: Stream) -> None:
        world, node = self.world, end.node
        arrives_s = world.now_s + self.delay_s(end.link_in)
        # Not before what was sent earlier.
        if arrives_s < end.last_s:
            arrives_s = end.last_s
        end.last_s = arrives_s
        if node.is_up:
            world.push(arrives_s, node, end.arrive, ())

    def _streams_of(self, node: Node) -> dict[Stream, None]:
        streams = self._streams.get(node)
        if streams is None:
            streams = self._streams[node] = {}
            node.crash_listeners.append(self._crashed)
            node.pause_listeners.append(self._paused)
        return streams

    def _crashed(self, node: Node, power_lost: bool) -> None:
        for end in list(self._streams[node]):
            end.sever()
            end.finish()
            peer = end.peer
            if peer.is_over or peer.is_told:
                continue
            # What the kernel had taken over may still be sent, or part of it.
            peer.sever(keep=self.world.chance.randint(0, len(peer.inbox)))
            if power_lost:
                peer.is_told = True
                peer.node.after(self.times.silence_s, peer.break_off, End(Ending.LOST))
            else:
                peer.inbox.append(End(Ending.LOST))
                self._schedule_arrival(peer)

    def _paused(self, node: Node) -> None:
        for end in self._streams[node]:
            self._expect_answer(end)

    def _expect_answer(self, end: Stream) -> None:
        """The kernel of a stopped process takes everything, but nobody answers keep-alives."""
        end.peer.node.after(self.times.silence_s, self._give_up_if_paused, end, end.node.pauses)

    def _give_up_if_paused(self, end: Stream, pauses: int) -> None:
        """What has reached the stopped process is still there when it goes on."""
        if not end.peer.is_over and end.node.is_paused and end.node.pauses == pauses:
            self.lose(end.peer, Cut.REJECTED)

    def _give_up_if_cut(self, end: Stream) -> None:
        if not end.is_over and end.link_in.cut is not None:
            self.lose(end, Cut.REJECTED)


def _ignored(_: Any) -> None:
    """Nobody listens yet."""
