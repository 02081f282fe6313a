"""Clients: programs that append values of their own, read them back, and write down what they were told.

A client has a node of its own and never dies, but it gives up, turns away in the middle, and tries again elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from broker.append_event import AppendOpening, AppendOutcome, Chunk, Intent
from fragment.cover_set import CoverSet
from fragment.index import WRITE_HEAD
from fragment.remote_listing import RemoteListing
from fragment.stores.blob_store import ListedObject
from protocol.errors import GazetteError, Status
from protocol.fragment import Fragment
from protocol.journal import SuspendMode
from protocol.label import LabelSet
from protocol.selector import LabelSelector
from tests.simulation.history import Append, Fence, HeadRead, History, Outcome
from tests.simulation.network import End, Network, Stream
from tests.simulation.sim_append import APPEND, AppendAnswer
from tests.simulation.sim_read import READ, ReadAnswer, ReadRequest
from tests.simulation.store import Store, path_in_store
from tests.simulation.world import Node

TIMEOUT_S = 12.0
REFUSED = "refused by a failure: "
_REGISTER = "fence"
_BETWEEN_S = 0.02
# Of readers who move on to another broker: that they begin at the beginning.
_ANEW_RATE = 0.3


def journal_key(journal: str, create_revision: int) -> str:
    """Tells one incarnation of a journal from another, in the history."""
    return f"{journal}@{create_revision}"


@dataclass(frozen=True, slots=True)
class Scene:
    """What all clients share."""

    network: Network
    store: Store
    history: History
    brokers: Sequence[Node]
    journals: Sequence[str]
    append_pause_s: float
    append_length_max: int
    repeats_unknowns: bool
    names_offsets: bool
    suspends: bool


@dataclass(slots=True)
class _Known:
    """What a client knows of a journal."""

    end: int | None = None
    register: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How a client goes about one append."""

    append: Append
    offset: int | None = None
    # It leaves before it has said that it wants the commit: by a word, or without one.
    abandons: str = ""
    suspend: SuspendMode = SuspendMode.RESUME


class Appender:
    """Appends one after the other, for as long as it `is_active`."""

    def __init__(self, node: Node, scene: Scene) -> None:
        self.name = node.name
        self.is_active = True
        self._node = node
        self._scene = scene
        self._chance = node.world.chance
        self._known = {journal: _Known() for journal in scene.journals}
        self._repeat: Append | None = None
        self._at: Node | None = None
        self._call: AppendCall | None = None
        node.after(self._chance.random() * scene.append_pause_s, self._next)

    @property
    def is_idle(self) -> bool:
        return not self.is_active and self._call is None

    def barrier(self, journal: str, done: Callable[[Append], None]) -> None:
        """One, after it has become idle."""
        assert self.is_idle
        self._begin(Plan(self._scene.history.barrier(self.name, journal)), done)

    def _next(self) -> None:
        if self.is_active:
            self._begin(self._plan(), self._done)

    def _plan(self) -> Plan:
        chance, history = self._chance, self._scene.history
        repeat, self._repeat = self._repeat, None
        if repeat is not None and self._scene.repeats_unknowns:
            return Plan(history.repeat(repeat))
        journal = chance.choice(self._scene.journals)
        known, drawn = self._known[journal], chance.random()
        if self._scene.suspends and chance.random() < 0.2:
            mode = chance.choice((SuspendMode.NO_RESUME, SuspendMode.KEEP))
            is_barrier = mode is SuspendMode.KEEP or drawn < 0.5
            append = history.barrier(self.name, journal) if is_barrier else history.append(self.name, journal)
            return Plan(append, suspend=mode)
        if drawn < 0.08:
            return Plan(history.barrier(self.name, journal))
        length = chance.randrange(self._scene.append_length_max)
        if drawn < 0.2:
            fence = Fence(known.register, f"v{len(history.appends) + 1}")
            return Plan(history.append(self.name, journal, length, fence))
        append = history.append(self.name, journal, length)
        if drawn < 0.25 and self._scene.names_offsets:
            return Plan(append, offset=known.end or None)
        if drawn < 0.3:
            return Plan(append, abandons=chance.choice(("half-close", "cancel")))
        return Plan(append)

    def _begin(self, plan: Plan, done: Callable[[Append], None]) -> None:
        if self._at is None or self._chance.random() < 0.2:
            self._at = self._chance.choice(self._scene.brokers)
        self._call = AppendCall(self._node, self._at, self._scene, plan, lambda call: self._settled(call, done))
        self._call.start()

    def _settled(self, call: AppendCall, done: Callable[[Append], None]) -> None:
        self._call = None
        append = call.append
        known = self._known[append.journal.partition("@")[0]]
        if call.registers is not None:
            known.register = call.registers.value_of(_REGISTER) or None
        if append.outcome is Outcome.OK:
            known.end = append.end
        else:
            self._at = None
        is_unknown = append.outcome is Outcome.UNKNOWN or append.why.startswith(REFUSED)
        if is_unknown and append.content and append.fence is None:
            self._repeat = append
        done(append)

    def _done(self, append: Append) -> None:
        mean_s = _BETWEEN_S if self._chance.random() < 0.7 else self._scene.append_pause_s
        pause_s = mean_s * self._chance.expovariate(1.0)
        self._node.after(pause_s if append.outcome is Outcome.OK else max(pause_s, 0.2), self._next)


class AppendCall:
    def __init__(self, node: Node, broker: Node, scene: Scene, plan: Plan, done: Callable[[AppendCall], None]) -> None:
        self.append = plan.append
        self.registers: LabelSet | None = None
        self._history = scene.history
        self._plan = plan
        self._done = done
        self._is_over = False
        self._stream = scene.network.open(node, broker, APPEND, self._answered, self._ended)
        self._stream.send(_opening(plan))
        self._pieces = _pieces(node, plan.append.content)

    def start(self) -> None:
        self._stream.node.after(TIMEOUT_S, self._time_out)
        self._send()

    def _send(self) -> None:
        """A client that takes its time holds up those who come after it."""
        node, chance = self._stream.node, self._stream.node.world.chance
        while self._pieces:
            self._stream.send(Chunk(self._pieces.pop(0)))
            if chance.random() < 0.1:
                node.after(chance.random() * 0.05, self._send)
                return
        if self._plan.abandons == "cancel":
            self._stream.cancel()
            self._settle("turned away")
        elif self._plan.abandons:
            self._stream.half_close()
        else:
            self._stream.send(Intent())
            self._stream.half_close()

    def _answered(self, answer: AppendAnswer) -> None:
        outcome = answer.outcome
        if isinstance(outcome, GazetteError):
            self._settle(str(outcome), is_refused=answer.is_refused)
            return
        self.registers = outcome.registers
        if outcome.status is Status.OK:
            self._settle_ok(outcome, answer.create_revision)
        elif not self._is_over:
            self._is_over = True
            self._history.failed(self.append, outcome.status.name)
            self._done(self)

    def _settle_ok(self, outcome: AppendOutcome, create_revision: int) -> None:
        if self._is_over:
            return
        commit = outcome.commit
        assert commit is not None
        if self._plan.abandons:
            self._settle("committed all the same")
            return
        assert commit.content_length == len(self.append.content)
        assert commit.sum == hashlib.sha1(self.append.content).digest()
        self._is_over = True
        key = journal_key(self.append.journal.partition("@")[0], create_revision)
        self._history.ok(self.append, commit.begin, commit.end, key)
        self._done(self)

    def _ended(self, end: End) -> None:
        self._settle(end.kind.name)

    def _time_out(self) -> None:
        if not self._is_over:
            self._stream.cancel()
            self._settle("no answer in time")

    def _settle(self, why: str, *, is_refused: bool = False) -> None:
        """There was no answer that says what became of it: unless the client never asked for it, or is told that it
        was not done, it may be there."""
        if self._is_over:
            return
        self._is_over = True
        if self._plan.abandons:
            self._history.failed(self.append, f"never asked for: {why}")
        elif is_refused:
            self._history.failed(self.append, f"{REFUSED}{why}")
        else:
            self._history.unknown(self.append, why)
        self._done(self)


def _opening(plan: Plan) -> AppendOpening:
    fence, journal = plan.append.fence, plan.append.journal.partition("@")[0]
    if fence is None:
        return AppendOpening(journal, offset=plan.offset, suspend=plan.suspend)
    check = None if fence.expected is None else LabelSelector(LabelSet.of((_REGISTER, fence.expected)))
    assert fence.sets is not None
    return AppendOpening(journal, check_registers=check, union_registers=LabelSet.of((_REGISTER, fence.sets)))


def _pieces(node: Node, content: bytes) -> list[bytes]:
    count = node.world.chance.choice((1, 1, 2, 3))
    length = -(-len(content) // count) or 1
    return [content[at : at + length] for at in range(0, len(content), length)]


class Reader:
    """Reads a journal on and on, now at this broker and then at that, from where it is.

    With a `target` it reads up to there, at one broker, and may be told to pass over spans that are lost.
    """

    def __init__(self, node: Node, name: str, scene: Scene, journal: str, at: Node | None = None) -> None:
        self.name = name
        self.is_active = True
        self.position = 0
        self.create_revision = 0
        # Where there is nothing any more, as the one who checks the run knows: end by begin.
        self.lost: dict[int, int] = {}
        self.target: int | None = None
        self._node = node
        self._scene = scene
        self._journal = journal
        self._at = at
        self._stream: Stream | None = None
        self._broker = node
        self._is_jump = False
        self._lives = 0
        node.after(node.world.chance.random() * 0.5, self._read)

    def has_all(self) -> bool:
        return self.target is not None and self.position >= self.target

    def stop(self) -> None:
        self.is_active = False
        if self._stream is not None:
            self._stream.cancel()

    def _read(self) -> None:
        if not self.is_active or self.has_all():
            return
        if self.position in self.lost:
            self.position, self._is_jump = self.lost[self.position], True
        chance = self._node.world.chance
        self._broker = self._at or chance.choice(self._scene.brokers)
        self._stream = self._scene.network.open(self._node, self._broker, READ, self._heard, self._ended)
        self._stream.send(ReadRequest(self._journal, self.position))
        self._node.after(chance.uniform(2.0, 6.0), self._move_on, self._stream)

    def _heard(self, answer: ReadAnswer) -> None:
        if answer.status is not Status.OK or not answer.content or self.has_all():
            return
        if answer.create_revision != self.create_revision:
            self._reincarnate(answer.create_revision)
            return
        key = journal_key(self._journal, self.create_revision)
        is_jump = answer.is_jump or self._is_jump
        self._is_jump = False
        self._scene.history.chunk(self.name, key, answer.offset, answer.content, self._broker.name, is_jump=is_jump)
        self.position = answer.offset + len(answer.content)
        if self.has_all() or self.position in self.lost:
            self._leave()

    def _reincarnate(self, create_revision: int) -> None:
        """Begin anew with a later one. An earlier one is what a broker shows that has yet to hear of it."""
        if create_revision > self.create_revision:
            self.create_revision, self.position = create_revision, 0
        self._leave()

    def _leave(self) -> None:
        assert self._stream is not None
        self._stream.cancel()
        self._again()

    def _move_on(self, stream: Stream) -> None:
        if stream is not self._stream or stream.is_over:
            return
        if self.target is None and self._node.world.chance.random() < _ANEW_RATE:
            # As somebody who has just come.
            self._lives += 1
            self.name, self.position = f"{self._node.name}.{self._lives}", 0
        self._leave()

    def _ended(self, _: End) -> None:
        self._again()

    def _again(self) -> None:
        self._node.after(0.02 + self._node.world.chance.random() * 0.3, self._read)


class HeadReader:
    """Asks brokers where a journal ends."""

    def __init__(self, node: Node, scene: Scene) -> None:
        self.is_active = True
        self._node = node
        self._scene = scene
        self._next()

    def _next(self) -> None:
        if self.is_active:
            chance = self._node.world.chance
            self._node.after(0.2 + chance.expovariate(1.0), self._next)
            _HeadCall(self._node, self._scene, chance.choice(self._scene.journals)).start()


class _HeadCall:
    def __init__(self, node: Node, scene: Scene, journal: str) -> None:
        self._node = node
        self._scene = scene
        self._journal = journal
        self._read: HeadRead | None = None

    def start(self) -> None:
        broker = self._node.world.chance.choice(self._scene.brokers)
        self._read = self._scene.history.head("", "")
        stream = self._scene.network.open(self._node, broker, READ, self._heard, _ignored)
        stream.send(ReadRequest(self._journal, WRITE_HEAD, block=False, metadata_only=True))
        self._node.after(TIMEOUT_S, stream.cancel)

    def _heard(self, answer: ReadAnswer) -> None:
        read, self._read = self._read, None
        if read is not None and answer.status is Status.OK:
            # Only now it is known whose head it is.
            read.replica, read.journal = answer.replica, journal_key(self._journal, answer.create_revision)
            self._scene.history.head_is(read, answer.write_head)


@dataclass(slots=True)
class StoreReader:
    """Reads a journal out of its store alone, as analysts do. It does not pass over what is missing."""

    node: Node
    scene: Scene
    journal: str
    url: str
    create_revision: int
    is_active: bool = True
    _position: int = 0
    _chain: list[Fragment] = field(default_factory=list)

    def start(self) -> None:
        if self.is_active:
            self.scene.store.list_journal(self.node, path_in_store(self.url, self.journal), self._listed)

    def _listed(self, objects: list[ListedObject] | GazetteError) -> None:
        if not isinstance(objects, GazetteError):
            listing = RemoteListing(self.journal)
            listing.take(self.url, objects, [self.journal])
            self._chain = list(CoverSet(listing.fragments).chain(self._position))
            self._get()
        else:
            self._again()

    def _get(self) -> None:
        if not self._chain or self._chain[0].begin > self._position:
            self._again()
            return
        fragment = self._chain.pop(0)

        def got(content: bytes | GazetteError) -> None:
            if isinstance(content, GazetteError) or len(content) != fragment.content_length:
                self._again()
                return
            part = content[self._position - fragment.begin :]
            key = journal_key(self.journal, self.create_revision)
            self.scene.history.chunk(f"{self.node.name}@store", key, self._position, part, "store")
            self._position = fragment.end
            self._get()

        self.scene.store.get(self.node, path_in_store(self.url, fragment.content_path), got)

    def _again(self) -> None:
        self.node.after(3.0 + self.node.world.chance.random() * 4.0, self.start)


def _ignored(_: End) -> None:
    """What it has to say was said before."""
