"""What tests of the broker's cores are made of: values with defaults, a spool in memory, streams and ports that record.

Nothing here waits either. A ``MemorySpool`` drives the shipped ``fragment.spool.Spool``, and checks after each step
what has to hold of any spool at any time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from allocator.key_value import KeyValue
from allocator.keys import Assignment, Item, assignment_key, item_key, member_id
from allocator.transaction import Transaction
from broker.append_event import AppendOutcome, HeadRead, Ready
from broker.broker_member import EPOCHS, KIN, BrokerMember
from broker.durable_head import DurableHead, EpochTerms, Fate
from broker.journal_item import JournalItem
from broker.pipeline import HeldSpool, PeerStream, Pipeline, Sealed
from broker.replica import Replica
from broker.replication_message import Acked, Answer, Content, Message, Propose
from broker.resolution import Resolution, Wanted
from fragment.index import FileT, Index, Summary
from fragment.spool import Completed, Effect, EpochMark, Proposal, Reply, Spool, Visible, Write
from protocol.codec import CompressionCodec
from protocol.errors import GazetteError, Status
from protocol.fragment import NO_SUM, Fragment
from protocol.journal import FragmentPolicy, JournalSpec, Suspend
from protocol.label import LabelSet
from protocol.route import EtcdRevision, Header, ProcessId, Route

ROOT = "/gazette/cluster"
JOURNAL = "acme/orders"
NOW_NS = 1_700_000_000 * 1_000_000_000
CLUSTER_ID = 0xC1

A, B, C, D = (ProcessId("zone", f"broker-{suffix}") for suffix in "abcd")

FIRST_EPOCH = EpochTerms(EpochMark(4, 1))
VOID_HEAD = DurableHead(4, is_void=True)
"""Of a journal where somebody takes part who keeps no epochs: all go by Gazette's rules."""

POLICY = FragmentPolicy(1 << 20, CompressionCodec.NONE, ("file:///store/",), 30_000_000_000)
SPEC = JournalSpec(JOURNAL, 3, fragment=POLICY)


def labels(**values: str) -> LabelSet:
    return LabelSet.of(*values.items())


def fragment(begin: int, content: bytes = b"", codec: CompressionCodec = CompressionCodec.NONE) -> Fragment:
    digest = hashlib.sha1(content).digest() if content else NO_SUM
    return Fragment(JOURNAL, begin, begin + len(content), digest, codec)


def route_of(*members: ProcessId, primary: ProcessId | None = A) -> Route:
    held = tuple(sorted(members))
    endpoints = tuple(f"http://{member.suffix}:8080" for member in held)
    return Route(held, None if primary is None else held.index(primary), endpoints)


def header_of(route: Route, process_id: ProcessId | None = A, revision: int = 10) -> Header:
    return Header(process_id, route, EtcdRevision(CLUSTER_ID, 0x3E, revision, 2))


def assigned(route: Route, advertised: Route | None, mod_revision: int = 9) -> list[KeyValue[Assignment[Route]]]:
    """The assignments of a Route, each of which advertises another, or nothing."""
    held = []
    following = [member for member in route.members if member != route.primary_id]
    for member in route.members:
        slot = 0 if member == route.primary_id else 1 + following.index(member)
        value = Assignment(JOURNAL, member_id(*member), slot, advertised or Route())
        key = assignment_key(ROOT, JOURNAL, member.zone, member.suffix, slot)
        held.append(KeyValue(key, value, b"", 5, mod_revision, 1, 77))
    return held


def resolution_of(
    route: Route,
    *,
    local_id: ProcessId = A,
    spec: JournalSpec = SPEC,
    status: Status = Status.OK,
    revision: int = 10,
    is_consistent: bool = True,
    replica: object = None,
) -> Resolution:
    """As an append gets it, that is, of who is primary."""
    item = KeyValue(
        item_key(ROOT, JOURNAL), Item(JOURNAL, JournalItem.of(spec, 9)), spec.to_proto().SerializeToString(), 4, 6, 1, 0
    )
    process_id = route.primary_id if status is Status.OK else local_id
    assignments = assigned(route, route if is_consistent else None)
    kin = frozenset(route.members)
    return Resolution(status, header_of(route, process_id, revision), local_id, item, assignments, kin, replica=replica)


def suspended(level: int, offset: int = 0, spec: JournalSpec = SPEC) -> JournalSpec:
    return replace(spec, suspend=Suspend(level, offset))


class MemorySpool:
    """A HeldSpool whose files are in memory. Its steps are done at once, or by ``work`` if it is `deferred`."""

    def __init__(
        self,
        journal: str = JOURNAL,
        released: Callable[[HeldSpool], None] = lambda _: None,
        index: Index[bytearray] | None = None,
        *,
        deferred: bool = False,
    ) -> None:
        self.spool = Spool.fresh(journal)
        self.released = released
        self.index = index
        self.is_deferred = deferred
        # What the next steps fail with, until the spool is given back.
        self.fault: Exception | None = None
        # By where the fragment begins: all that was written, be it committed or not.
        self.files: dict[int, bytearray] = {}
        self.committed: list[Fragment] = []
        self.visible: list[Fragment] = []
        self.completed: list[Fragment] = []
        # Of spools that were retired.
        self.fates: list[Fate] = []
        self.releases = 0
        self.is_handed_on = False
        self.sums_content = False
        self._failure: Exception | None = None
        self._failed: Callable[[Exception], None] | None = None
        self._steps: deque[Callable[[], None]] = deque()
        self._is_working = False
        self._content = hashlib.sha1()

    def watch(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed

    def content(self, data: bytes | memoryview, delta: int) -> None:
        self._add(lambda: self._do_content(bytes(data), delta))

    def seal(self, done: Callable[[Sealed | Exception], None]) -> None:
        self._add(lambda: done(self._failure or Sealed(self.spool.next(), self._content.digest())))

    def prepare(self, fate: Fate | None, done: Callable[[Exception | None], None]) -> None:
        def step() -> None:
            if not self._is_able():
                done(self._failure)
                return
            if fate is not None:
                self.fates.append(fate)
            self._perform(*(self.spool.unplaced() if fate is None else self.spool.retired()))
            done(None)

        self._add(step)

    def propose(self, proposal: Proposal, done: Callable[[Reply | Exception], None]) -> None:
        self._add(lambda: self._do_propose(proposal, done))

    def acked(self, through: int, done: Callable[[], None] | None = None) -> None:
        def step() -> None:
            if self._failure is None:
                self._perform(*self.spool.acked(through))
            if done is not None:
                done()

        self._add(step)

    def release(self) -> None:
        self._failed = None
        self._add(self._do_release)

    def hand_on(self, done: Callable[[], None]) -> None:
        def step() -> None:
            assert not self.is_handed_on
            self.is_handed_on = True
            self._perform(*self.spool.complete())
            done()

        self._failed = None
        self._add(step)

    @property
    def has_work(self) -> bool:
        return bool(self._steps)

    def work(self) -> None:
        """Do the next step."""
        self._steps.popleft()()

    def bytes_of(self, held: Fragment) -> bytes:
        return bytes(self.files[held.begin][: held.content_length]) if held.content_length else b""

    def reads(self, begin: int, end: int) -> bytes | None:
        """What is committed here of that range, by one fragment."""
        held = next((held for held in reversed(self.committed) if held.begin <= begin and end <= held.end), None)
        return None if held is None else self.bytes_of(held)[begin - held.begin : end - held.begin]

    def _add(self, step: Callable[[], None]) -> None:
        self._steps.append(step)
        if self.is_deferred or self._is_working:
            return
        self._is_working = True
        try:
            while self._steps:
                self.work()
        finally:
            self._is_working = False

    def _do_content(self, data: bytes, delta: int) -> None:
        if not self._is_able():
            return
        try:
            spool, write = self.spool.content(data, delta)
        except GazetteError as error:
            self._fail(error)
            return
        if delta == 0:
            self._content = hashlib.sha1()
        self._content.update(data)
        self._perform(spool, (write,))

    def _do_propose(self, proposal: Proposal, done: Callable[[Reply | Exception], None]) -> None:
        if not self._is_able():
            assert self._failure is not None
            done(self._failure)
            return
        before = self.spool
        spool, effects = before.propose(proposal)
        self._perform(spool, effects)
        check_step(before, spool)
        reply = effects[-1]
        assert isinstance(reply, Reply)
        done(reply)

    def _do_release(self) -> None:
        self._failure = self.fault = None
        before, self.spool = self.spool, self.spool.rolled_back()
        assert (before.fragment, before.registers) == (self.spool.fragment, self.spool.registers)
        self.releases += 1
        self.released(self)

    def _is_able(self) -> bool:
        if self._failure is None and self.fault is not None:
            self._fail(self.fault)
        return self._failure is None

    def _fail(self, error: Exception) -> None:
        self._failure = error
        if self._failed is not None:
            self._failed(error)

    def _perform(self, spool: Spool, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Write(position, data):
                    begin = self.spool.fragment.begin
                    # A spool that was retired may begin again where it once began: in another file.
                    if position == 0 or begin not in self.files:
                        self.files[begin] = bytearray()
                    file = self.files[begin]
                    file[position : position + len(data)] = data
                case Completed(whole):
                    if whole.fragment.content_length:
                        assert whole.fragment not in self.completed, "a fragment is handed on once"
                        self.completed.append(whole.fragment)
                case Visible(shown):
                    assert shown in self.committed or shown == spool.fragment, "only what is committed is shown"
                    self.visible.append(shown)
                    if self.index is not None:
                        self.index.commit(shown, self.files[shown.begin])
                case _:
                    pass
        if spool.fragment != self.spool.fragment and spool.fragment.content_length:
            self.committed.append(spool.fragment)
        self.spool = spool
        self._check()

    def _check(self) -> None:
        held = self.spool.fragment
        digest = hashlib.sha1(self.bytes_of(held)).digest() if held.content_length else NO_SUM
        assert digest == held.sum, "a fragment's sum is that of its bytes"


def check_step(before: Spool, after: Spool) -> None:
    """What may become of a spool by a proposal."""
    if after.registers != before.registers:
        assert after.fragment.end > before.fragment.end, "registers change together with the committed end"
    assert after.fragment.end >= before.fragment.end, "a spool never goes back"


@dataclass(slots=True)
class RecordingStream:
    """A PeerStream that keeps what it is told."""

    sent: list[Message] = field(default_factory=list)
    is_half_closed: bool = False

    def send(self, message: Message) -> None:
        assert not self.is_half_closed, "nothing is sent after a half-close"
        self.sent.append(message)

    def half_close(self) -> None:
        assert not self.is_half_closed
        self.is_half_closed = True

    @property
    def proposals(self) -> list[Propose]:
        return [message for message in self.sent if isinstance(message, Propose)]

    @property
    def contents(self) -> list[Content]:
        return [message for message in self.sent if isinstance(message, Content)]

    @property
    def lone_acks(self) -> list[int]:
        return [message.through for message in self.sent if isinstance(message, Acked)]

    def take(self) -> list[Message]:
        """What was sent since the last time."""
        sent, self.sent = self.sent, []
        return sent


@dataclass(slots=True)
class Built:
    """A pipeline of A over a spool in memory, with a recording stream to each peer."""

    pipeline: Pipeline
    held: MemorySpool
    streams: dict[ProcessId, RecordingStream]

    def answer_all(self, answer: Answer) -> None:
        for peer in self.pipeline.peers:
            self.pipeline.answered(peer, answer)


def built(
    route: Route | None = None,
    *,
    kin: frozenset[ProcessId] = frozenset((B, C)),
    held: MemorySpool | None = None,
    revision: int = 10,
    terms: EpochTerms | None = FIRST_EPOCH,
) -> Built:
    """With an epoch that is open, unless there is none."""
    held = held or MemorySpool()
    pipeline = Pipeline(header_of(route or route_of(A, B, C), revision=revision), A, held, kin, terms)
    if terms is not None:
        pipeline.opened(terms)
    streams = {peer: RecordingStream() for peer in pipeline.peers}
    pipeline.connect(streams)
    return Built(pipeline, held, streams)


OK = Answer(Status.OK)


def committed_spool(
    content: bytes = b"", begin: int = 0, registers: LabelSet = LabelSet(), acked: int | None = None
) -> MemorySpool:
    """A spool that holds `content` from `begin` on."""
    held = MemorySpool()
    held.propose(Proposal(fragment(begin), registers, NOW_NS, acked_through=acked), lambda _: None)
    if content:
        held.content(content, 0)
        held.propose(Proposal(fragment(begin, content), registers, NOW_NS, acked_through=acked), lambda _: None)
    assert held.spool.fragment == fragment(begin, content)
    assert held.spool.registers == registers
    return held


def replica_of(held: MemorySpool | None = None, create_revision: int = 4) -> Replica[bytearray]:
    replica: Replica[bytearray] = Replica(JOURNAL, create_revision, Index())
    held = held or MemorySpool()
    held.index = replica.index
    held.released = replica.spool_released
    replica.start(held)
    return replica


@dataclass
class Host:
    """A ReplicaHost whose timers a test fires."""

    members: dict[ProcessId, int] = field(default_factory=lambda: {A: 1, B: 1})
    timers: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    spool_id: bytes = b"here"
    copies: set[EpochMark] = field(default_factory=set)
    epochs: list[tuple[EpochTerms, EpochMark | None]] = field(default_factory=list)
    voids: list[str] = field(default_factory=list)

    def has_copy(self, journal: str, mark: EpochMark) -> bool:
        return mark in self.copies

    def later(self, delay_s: float, act: Callable[[], None]) -> Callable[[], None]:
        timer = (delay_s, act)
        self.timers.append(timer)
        return lambda: self.timers.remove(timer) if timer in self.timers else None

    def is_member(self, member: ProcessId, revision: int) -> bool:
        return member in self.members and self.members[member] <= revision

    def epoch_opened(self, replica: Replica[FileT], terms: EpochTerms, closed: EpochMark | None) -> None:
        self.epochs.append((terms, closed))

    def voided(self, journal: str) -> None:
        self.voids.append(journal)


def spool_id_of(member: ProcessId) -> bytes:
    return hashlib.md5(member.suffix.encode()).digest()


def member_of(member: ProcessId, *, is_kin: bool = True, keeps_epochs: bool = False) -> BrokerMember:
    capabilities = (KIN if is_kin else 0) | (EPOCHS if keeps_epochs else 0)
    spool_id = spool_id_of(member) if keeps_epochs else b""
    return BrokerMember(member, f"http://{member.suffix}:8080", 100, capabilities=capabilities, spool_id=spool_id)


class Withdrawal:
    """Something that is waited for, until it is served or withdrawn."""

    def __init__(self) -> None:
        self.is_withdrawn = False

    def __call__(self) -> None:
        self.is_withdrawn = True


@dataclass(slots=True)
class RecordingPort:
    """An AppendHost and its AppendCaller, that answer nothing by themselves."""

    now: int = NOW_NS
    resolves: list[tuple[Wanted, Callable[[Resolution | GazetteError], None], Withdrawal]] = field(default_factory=list)
    # How long each of them may take.
    bounds_s: list[float | None] = field(default_factory=list)
    transactions: list[tuple[Transaction, Callable[[int | GazetteError | None], None]]] = field(default_factory=list)
    readies: list[tuple[Callable[[Ready | GazetteError], None], Withdrawal]] = field(default_factory=list)
    opened: list[tuple[Pipeline, dict[ProcessId, RecordingStream]]] = field(default_factory=list)
    chunks_wanted: int = 0
    proxied: list[Resolution] = field(default_factory=list)
    outcomes: list[AppendOutcome | GazetteError | None] = field(default_factory=list)
    is_member: bool = True
    # What a resolution is answered with at once, if not by the test.
    resolution: Resolution | None = None
    head: HeadRead = field(default_factory=lambda: HeadRead(VOID_HEAD, 1))
    # Something that is wrong with us.
    fault: Exception | None = None

    def is_certain(self) -> bool:
        return self.is_member

    def resolve_within(
        self, wanted: Wanted, timeout_s: float | None, done: Callable[[Resolution | GazetteError], None]
    ) -> Callable[[], None]:
        withdrawal = Withdrawal()
        self.bounds_s.append(timeout_s)
        self.resolves.append((wanted, done, withdrawal))
        if self.resolution is not None:
            done(self.resolution)
        return withdrawal

    def transact(self, transaction: Transaction, done: Callable[[int | GazetteError | None], None]) -> None:
        self.transactions.append((transaction, done))

    def read_head(self, journal: str, done: Callable[[HeadRead | GazetteError], None]) -> None:
        done(self.head)

    def await_ready(
        self, replica: Replica[object], is_fresh: bool, done: Callable[[Ready | GazetteError], None]
    ) -> Callable[[], None]:
        withdrawal = Withdrawal()
        self.readies.append((done, withdrawal))
        return withdrawal

    def open_streams(self, replica: Replica[object], pipeline: Pipeline) -> Mapping[ProcessId, PeerStream]:
        streams = {peer: RecordingStream() for peer in pipeline.peers}
        self.opened.append((pipeline, streams))
        return streams

    def next_chunk(self) -> None:
        self.chunks_wanted += 1

    def proxy(self, resolution: Resolution) -> None:
        self.proxied.append(resolution)

    def finish(self, outcome: AppendOutcome | GazetteError | None) -> None:
        self.outcomes.append(outcome)

    def now_ns(self) -> int:
        if self.fault is not None:
            raise self.fault
        return self.now

    def resolved(self, resolution: Resolution | GazetteError) -> None:
        """Answer the latest question."""
        _, done, withdrawal = self.resolves[-1]
        assert not withdrawal.is_withdrawn
        done(resolution)

    def ready(self, ready: Ready | GazetteError | None = None) -> None:
        done, withdrawal = self.readies[-1]
        assert not withdrawal.is_withdrawn
        done(ready or Ready(Summary(0, 0, 0)))


async def no_heads() -> dict[str, DurableHead]:
    """Of brokers that keep no epochs."""
    return {}
