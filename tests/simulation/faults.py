"""Faults: what goes wrong in a run, drawn from its seed.

A seed first draws which faults there are at all, and how large everything is: runs with few kinds of faults reach
places that runs with all of them never do. Then it draws the schedule, which is a plain list, so that a failing one can
be made shorter by leaving faults out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from random import Random


class FaultKind(Enum):
    """With the mean number of seconds between two of them, where there are any, and how long one lasts."""

    # Of processes. What is not said to be lost stays on disk.
    KILL = ("a broker is killed and starts again", 15.0, 4.0)
    KILL_IN_A_STEP = ("a broker is killed between two operations on its disk", 20.0, 4.0)
    KILL_ALL = ("all brokers are killed at once", 40.0, 4.0)
    POWER_LOSS = ("a broker's machine loses power", 30.0, 6.0)
    PAUSE = ("a broker is stopped, and goes on where it was", 10.0, 4.0)
    LONG_PAUSE = ("a broker is stopped for longer than its lease lasts", 25.0, 30.0)
    # Of the network. Etcd and the store are on it, too.
    PARTITION = ("some nodes and the others do not hear each other", 15.0, 6.0)
    ONE_WAY_CUT = ("a node does not hear another", 12.0, 6.0)
    CLOG = ("what a node sends to another is held back", 6.0, 2.0)
    SLOW_LINK = ("what a node sends to another takes long", 8.0, 4.0)
    DROPS = ("messages are lost, and their streams with them", 12.0, 3.0)
    # Of etcd.
    ETCD_PAUSE = ("etcd has no leader for a while", 30.0, 5.0)
    ETCD_LOSS = ("requests to etcd and its answers are lost", 12.0, 4.0)
    WATCH_TROUBLE = ("watches lag, end, and bring revisions in parts", 12.0, 6.0)
    COMPACTION = ("etcd forgets its past, while watches are cut off", 20.0, 1.0)
    # Of the store.
    STORE_ERRORS = ("requests to the store fail, are lost, or take long", 12.0, 8.0)
    STORE_DOWN = ("the store answers with errors only", 25.0, 8.0)
    # Of disks.
    DISK_ERRORS = ("operations of a broker's disk fail", 20.0, 2.0)
    DISK_FULL = ("a broker's disk is full", 25.0, 4.0)
    DISK_SLOW = ("a broker's disk takes long", 15.0, 4.0)
    DISK_HANGS = ("a broker's disk does nothing, and says so to nobody", 20.0, 8.0)
    DISK_LOST = ("a broker is killed, and its spool directory is gone", 30.0, 4.0)
    BIT_FLIP = ("a broker is killed, and a bit of what it left is another", 25.0, 4.0)
    # Of operators.
    MOVE = ("a journal is moved to another broker", 10.0, 0.0)
    CHANGE_REPLICATION = ("a journal is given another number of replicas", 15.0, 0.0)
    RECREATE = ("a journal is deleted and created again", 30.0, 0.0)
    SUSPEND = ("a journal is suspended, until somebody appends to it", 8.0, 0.0)

    def __init__(self, text: str, interval_s: float, lasts_s: float) -> None:
        self.text = text
        self.interval_s = interval_s
        self.lasts_s = lasts_s


BROKERS_MIN, BROKERS_MAX = 3, 7
REPLICATION_MAX = 3
ETCD, STORE = "etcd", "store"

# Of seeds, that their faults may go beyond what was promised to be survived.
_OVER_BUDGET_RATE = 0.1
# Nobody has anything to lose before this.
_BEGIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    kind: FaultKind
    # Whom it befalls; the journal's number for those of operators.
    nodes: tuple[str, ...] = ()
    # Whom they do not hear.
    others: tuple[str, ...] = ()
    lasts_s: float = 0.0
    journal: int = 0
    # For whatever else is to be chosen when it happens.
    draw: int = 0

    def __str__(self) -> str:
        befallen = " ".join(self.nodes) + (f" | {' '.join(self.others)}" if self.others else "")
        return f"{self.at_s:8.3f} {self.kind.name:<18} {befallen} for {self.lasts_s:.3f} s, journal {self.journal}"


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that a seed decides about a run before it begins."""

    seed: int
    brokers: int
    replication: int
    journals: int
    clients: int
    readers: int
    # Of phase one, in which faults happen, and of phase two, in which everyone has to recover.
    duration_s: float
    recovery_s: float
    lease_ttl_s: int
    # Spools sync each commit, and so survive a loss of power.
    syncs_commits: bool
    delay_mean_s: float
    watch_delay_s: float
    # Clients append several times in a row, and then rest for so long on average.
    append_pause_s: float
    append_length_max: int
    fragment_length: int
    repeats_unknowns: bool
    # Clients say at which offset some appends are to begin. To a journal whose brokers are lost, that is a reset.
    names_offsets: bool
    keeps_budget: bool
    # How often each kind of fault happens: the mean number of seconds between two.
    intervals_s: tuple[tuple[FaultKind, float], ...]

    @classmethod
    def draw(cls, seed: int, *, kinds: Sequence[FaultKind] | None = None) -> Options:
        """`kinds` are those that may be drawn; none of them need be."""
        chance = Random(f"options/{seed}")
        brokers = chance.randint(BROKERS_MIN, BROKERS_MAX)
        return cls(
            seed=seed,
            brokers=brokers,
            replication=chance.randint(1, REPLICATION_MAX),
            journals=chance.choice((1, 1, 1, 2)),
            clients=chance.randint(1, 3),
            readers=chance.randint(1, 4),
            duration_s=chance.choice((6.0, 12.0, 24.0)),
            recovery_s=60.0,
            lease_ttl_s=chance.choice((5, 5, 10, 20)),
            syncs_commits=chance.random() < 0.5,
            delay_mean_s=chance.choice((0.0005, 0.002, 0.02)),
            watch_delay_s=chance.choice((0.005, 0.05, 0.5)),
            append_pause_s=chance.choice((0.5, 1.5, 4.0)),
            append_length_max=chance.choice((20, 100, 1000)),
            fragment_length=chance.choice((1024, 2048, 8192)),
            repeats_unknowns=chance.random() < 0.3,
            keeps_budget=chance.random() >= _OVER_BUDGET_RATE,
            intervals_s=_intervals(chance, list(kinds if kinds is not None else FaultKind)),
            names_offsets=chance.random() < 0.5,
        )

    @property
    def suspends(self) -> bool:
        """Journals, now and then; so that some clients may not want to wake one up."""
        return any(kind is FaultKind.SUSPEND for kind, _ in self.intervals_s)

    def describe(self) -> str:
        """All of it, as a failure prints it."""
        lines = [f"  {name} = {value}" for name, value in asdict(self).items() if name != "intervals_s"]
        lines += [f"  {kind.name} every {interval_s:.1f} s: {kind.text}" for kind, interval_s in self.intervals_s]
        return "\n".join(["options of this seed:", *lines])


def _intervals(chance: Random, kinds: list[FaultKind]) -> tuple[tuple[FaultKind, float], ...]:
    """Often few kinds, sometimes none, and each rarely or often."""
    count = min(len(kinds), chance.choice((0, 1, 1, 2, 2, 3, 4, 6, 10)))
    drawn = chance.sample(kinds, count)
    return tuple((kind, kind.interval_s * chance.choice((0.15, 0.4, 1.2))) for kind in drawn)


def broker_names(options: Options) -> tuple[str, ...]:
    return tuple(f"b{number}" for number in range(options.brokers))


def schedule(options: Options) -> tuple[Fault, ...]:
    """By time. It depends on the options alone, and not on how the run goes."""
    chance = Random(f"faults/{options.seed}")
    faults: list[Fault] = []
    for kind, interval_s in options.intervals_s:
        at_s = _BEGIN_S + chance.expovariate(1 / interval_s)
        while at_s < options.duration_s:
            faults.append(_fault(options, chance, kind, at_s))
            at_s += chance.expovariate(1 / interval_s)
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _fault(options: Options, chance: Random, kind: FaultKind, at_s: float) -> Fault:
    brokers = broker_names(options)
    nodes: tuple[str, ...] = (chance.choice(brokers),)
    others: tuple[str, ...] = ()
    everyone = (*brokers, ETCD, STORE)
    if kind is FaultKind.PARTITION:
        nodes = tuple(chance.sample(brokers, chance.randint(1, len(brokers) - 1)))
        others = tuple(name for name in everyone if name not in nodes)
    elif kind in (FaultKind.ONE_WAY_CUT, FaultKind.CLOG, FaultKind.SLOW_LINK):
        one, other = chance.sample(everyone, 2)
        nodes, others = (one,), (other,)
    elif kind is FaultKind.KILL_ALL:
        nodes = brokers
    elif kind.name.startswith(("ETCD", "STORE", "WATCH")) or kind in (FaultKind.COMPACTION, FaultKind.DROPS):
        nodes = ()
    lasts_s = kind.lasts_s * chance.uniform(0.2, 2.0)
    if kind is FaultKind.LONG_PAUSE:
        lasts_s = options.lease_ttl_s * chance.uniform(1.0, 3.0)
    return Fault(at_s, kind, nodes, others, lasts_s, chance.randrange(options.journals), chance.getrandbits(32))


def shrunk(faults: Sequence[Fault], fails: Callable[[tuple[Fault, ...]], bool]) -> tuple[Fault, ...]:
    """As few of the faults as still make a run fail: none can be left out any more. `fails` runs it."""
    kept = tuple(faults)
    size = max(1, len(kept) // 2)
    while True:
        at, is_shorter = 0, False
        while at < len(kept):
            tried = kept[:at] + kept[at + size :]
            if fails(tried):
                kept, is_shorter = tried, True
            else:
                at += size
        if size == 1 and not is_shorter:
            return kept
        size = max(1, size // 2)
