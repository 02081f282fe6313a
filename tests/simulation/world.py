"""World: virtual time, one heap of events, and nodes that crash, pause and start again. One seed, one run.

Nothing here waits: the clock jumps from event to event. Every random choice of a run is drawn from ``chance``, and
events of the same moment happen in the order in which they were asked for, so a seed replays exactly.
"""

from __future__ import annotations

import re
import reprlib
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

Act = Callable[..., object]
CrashListener = Callable[["Node", bool], None]

UNIX_S = 1_700_000_000
"""What the wall clocks show when a run begins."""

TRACE_EVENTS = 400

# Below every number that an event gets when it is asked for.
_RESUMED_FIRST = -(1 << 60)

# Of objects without a name: it differs from run to run.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 100


class CrashError(BaseException):
    """Raised in the middle of an event by whatever the node is using: the node dies right there.

    Not an Exception, since no program under test may catch its own death.
    """

    def __init__(self, *, power_lost: bool = False) -> None:
        super().__init__()
        self.power_lost = power_lost


class Timer:
    """An event that may be called off."""

    __slots__ = ("_act", "_args", "is_cancelled")

    def __init__(self, act: Act, args: tuple[Any, ...]) -> None:
        self._act = act
        self._args = args
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def fire(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self._act(*self._args)


class Node:
    """A process and the machine it runs on. What its program holds is gone with each crash."""

    __slots__ = (
        "boot",
        "crash_listeners",
        "is_paused",
        "is_up",
        "life",
        "name",
        "number",
        "parked",
        "pause_listeners",
        "pauses",
        "program",
        "world",
    )

    def __init__(self, world: World, name: str, number: int, boot: Callable[[Node], object] | None) -> None:
        self.world = world
        self.name = name
        self.number = number
        self.boot = boot
        self.program: object = None
        # Grows with each crash. An event belongs to the life in which it was asked for, and dies with it.
        self.life = 0
        self.is_up = True
        self.is_paused = False
        self.parked: list[tuple[Act, tuple[Any, ...]]] = []
        # What outlives the process, such as disks and the far ends of streams, hears of its crash at once.
        self.crash_listeners: list[CrashListener] = []
        # How often it was paused, and who on other machines may notice that it does not answer.
        self.pauses = 0
        self.pause_listeners: list[Callable[[Node], None]] = []

    def after(self, delay_s: float, act: Act, *args: Any) -> None:
        """Do it here, so much later, unless this life of the node is over by then. What is asked of a dead node is
        never done."""
        if self.is_up:
            self.world.push(self.world.now_s + delay_s, self, act, args)

    def timer(self, delay_s: float, act: Act, *args: Any) -> Timer:
        timer = Timer(act, args)
        self.after(delay_s, timer.fire)
        return timer

    def note(self, what: str, *details: object) -> None:
        """A line for the trace that a failure prints."""
        self.world.note(self, what, *details)

    def __repr__(self) -> str:
        return self.name


class World:
    def __init__(self, seed: int, trace_events: int = TRACE_EVENTS) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.now_s = 0.0
        self.events = 0
        # Of everything that happened, in its order. Equal in two processes if and only if their runs were.
        self.fingerprint = 0
        self.nodes: dict[str, Node] = {}
        self._heap: list[tuple[float, int, Node, int, Act, tuple[Any, ...]]] = []
        self._asked = 0
        self._resumed = _RESUMED_FIRST
        self._trace: deque[tuple[float, int, Node, int, Act | str, tuple[Any, ...]]] = deque(maxlen=trace_events)
        # Whoever acts on the world from outside: faults and checks. It never dies.
        self.outside = self.node("outside")

    @property
    def unix_ns(self) -> int:
        return UNIX_S * 1_000_000_000 + int(self.now_s * 1e9)

    def node(self, name: str, boot: Callable[[Node], object] | None = None) -> Node:
        """A new node, running. `boot` makes its program now and after each restart."""
        node = self.nodes[name] = Node(self, name, len(self.nodes), boot)
        self._boot(node)
        return node

    def push(self, time_s: float, node: Node, act: Act, args: tuple[Any, ...]) -> None:
        self._asked += 1
        heappush(self._heap, (time_s, self._asked, node, node.life, act, args))

    def after(self, delay_s: float, act: Act, *args: Any) -> None:
        self.push(self.now_s + delay_s, self.outside, act, args)

    # Time.

    def run(self, until_s: float, stop: Callable[[], bool] | None = None) -> bool:
        """Let everything happen up to `until_s`, or until `stop` says so after an event. Whether it did."""
        heap, trace = self._heap, self._trace
        if stop is not None and stop():
            return True
        while heap and heap[0][0] <= until_s:
            event = heappop(heap)
            time_s, number, node, life, act, args = event
            if life != node.life:
                continue
            self.now_s = time_s
            if node.is_paused:
                node.parked.append((act, args))
                continue
            self.events += 1
            self.fingerprint = hash((self.fingerprint, time_s, number, node.number))
            trace.append(event)
            try:
                act(*args)
            except CrashError as crash:
                self.crash(node, power_lost=crash.power_lost)
            if stop is not None and stop():
                return True
        self.now_s = max(self.now_s, until_s)
        return False

    # What happens to nodes.

    def crash(self, node: Node, *, power_lost: bool = False) -> None:
        """End the process, as by ``kill -9``; with `power_lost` its machine goes too, and says no word."""
        if not node.is_up:
            return
        node.note("crashed", "power lost" if power_lost else "killed")
        node.life += 1
        node.is_up = node.is_paused = False
        node.parked.clear()
        node.program = None
        for listener in node.crash_listeners:
            listener(node, power_lost)

    def restart(self, node: Node) -> None:
        if not node.is_up:
            node.is_up = True
            node.note("restarted")
            self._boot(node)

    def pause(self, node: Node) -> None:
        """Stop the process, as by SIGSTOP. What comes meanwhile happens all at once when it goes on."""
        if node.is_up and not node.is_paused:
            node.note("paused")
            node.is_paused = True
            node.pauses += 1
            for listener in node.pause_listeners:
                listener(node)

    def resume(self, node: Node) -> None:
        if not node.is_paused:
            return
        node.note("resumed", len(node.parked))
        node.is_paused = False
        for act, args in node.parked:
            # Before anything else of this moment: it was there earlier.
            self._resumed += 1
            heappush(self._heap, (self.now_s, self._resumed, node, node.life, act, args))
        node.parked.clear()

    def _boot(self, node: Node) -> None:
        if node.boot is None:
            return
        try:
            node.program = node.boot(node)
        except CrashError as crash:
            self.crash(node, power_lost=crash.power_lost)

    # For people.

    def note(self, node: Node, what: str, *details: object) -> None:
        self._trace.append((self.now_s, 0, node, node.life, what, details))

    def trace(self, containing: str = "") -> list[str]:
        """The last events, oldest first; of those only the ones whose line has `containing`."""
        lines = [
            f"{time_s:10.4f} {node.name:<8} {_name(act)} {' '.join(map(_shown.repr, args))}".rstrip()
            for time_s, _, node, _, act, args in self._trace
        ]
        return [_ADDRESS.sub("", line) for line in lines if containing in line]


def _name(act: Act | str) -> str:
    if isinstance(act, str):
        return act
    if isinstance(owner := getattr(act, "__self__", None), Timer):
        # Which timer fired is told by what it does.
        act = owner._act  # noqa: SLF001 -- of this module
    return getattr(act, "__qualname__", None) or repr(act)
