"""Appends, failures and changes of the Route in any order, over the shipped cores of four brokers."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from allocator.keys import item_key
from broker.append_event import AppendOpening, AppendOutcome, End, Intent
from protocol.errors import Status
from protocol.fragment import Fragment
from protocol.journal import SuspendMode
from protocol.label import LabelSet
from protocol.route import ProcessId
from tests.support.broker_cores import JOURNAL, ROOT, SPEC, A, B, C, D
from tests.support.mini_cluster import Client, MiniBroker, MiniCluster

RETRIES = 12

Choices = Sequence[int]


class Run:
    """A cluster, the appends to it, and what has to hold after each step of any of it."""

    def __init__(self, has_slow_disks: bool, keeps_epochs: bool) -> None:
        self.cluster = MiniCluster(A, B, C, D, has_slow_disks=has_slow_disks, keeps_epochs=keeps_epochs)
        self.clients: list[Client] = []
        # Of each spool: how much of its history was checked.
        self._checked: dict[int, int] = {}

    def primary(self) -> ProcessId:
        """As etcd has it, or any broker if there is none."""
        return next((member for member, slot in self.cluster.etcd.slots().items() if slot == 0), A)

    def reassign(self, which: int) -> None:
        """As a leader may: nobody is taken away unless enough others are in step, and only a vacant place is filled."""
        etcd = self.cluster.etcd
        slots = etcd.slots()
        others = [member for member in (A, B, C, D) if member not in slots]
        if 0 not in slots.values():
            etcd.move(sorted(slots)[which % len(slots)], 0)
        elif len(slots) > SPEC.replication and etcd.is_consistent():
            gone = sorted(slots)[which % len(slots)]
            etcd.assign(*((member, slot) for member, slot in slots.items() if member != gone))
        elif others:
            etcd.assign(*slots.items(), (others[which % len(others)], max(slots.values()) + 1))

    def append(self, broker: ProcessId, kind: int) -> None:
        """Content that no other append has, so that wherever it turns up it is known whose it is."""
        number = len(self.clients)
        content = b"<%d>" % number
        registers = AppendOpening(JOURNAL, union_registers=LabelSet.of(("author", str(number))))
        match kind:
            case 0 | 1:
                client = self.cluster.append(broker, content[:2], content[2:])
            case 2:
                client = self.cluster.append(broker, content, opening=registers)
            case 3:
                client = self.cluster.append(broker, content, ends="drop")
            case 4:
                client = self.cluster.append(broker, content, ends="open")
            case 5:
                client = self.cluster.append(broker)
            case _:
                keep = AppendOpening(JOURNAL, suspend=SuspendMode.KEEP)
                client = self.cluster.append(broker, content, opening=keep)
        self.clients.append(client)

    def act(self, what: int, which: int) -> None:
        live = [client for client in self.clients if not client.is_over and not client.is_cancelled]
        match what:
            case 0 | 1:
                self.append(self.primary(), which % 7)
            case 2:
                self.append((A, B, C, D)[which % 4], which % 7)
            case 3 if live:
                live[which % len(live)].cancel()
            case 4 if self.cluster.wires:
                self.cluster.wires[which % len(self.cluster.wires)].break_off()
            case 5 | 9:
                self.reassign(which)
            case 6:
                broker = self.cluster.brokers[(A, B, C, D)[which % 4]]
                if JOURNAL in broker.resolver.replicas:
                    broker.spool.fault = OSError("disk full")
            case 7 if which % 4 == 0:
                self.cluster.etcd.remove(item_key(ROOT, JOURNAL))
                self.cluster.etcd.apply(SPEC)
            case _:
                self.step(which)

    def step(self, which: int) -> None:
        actions = self.cluster.actions()
        if actions:
            actions[which % len(actions)][1]()

    def check(self) -> None:
        for broker in self.cluster.brokers.values():
            self._check_broker(broker)

    def _check_broker(self, broker: MiniBroker) -> None:
        for held in broker.spools:
            known = self._checked.get(id(held), 0)
            for commit in held.committed[known:]:
                self._check_commit(held.bytes_of(commit), commit)
            self._checked[id(held)] = len(held.committed)
            # Only what is committed is read, and it is never taken back.
            shown = {commit.begin: commit.end for commit in held.committed}
            assert all(visible.end <= shown[visible.begin] for visible in held.visible[-1:])

    def _check_commit(self, content: bytes, commit: Fragment) -> None:
        """A fragment is made of whole appends, of clients who wanted it."""
        assert hashlib.sha1(content).digest() == commit.sum
        assert content.startswith(b"<"), "an append does not straddle fragments"
        assert content.endswith(b">")
        for part in content[1:-1].split(b"><"):
            client = self.clients[int(part)]
            assert client.has_intent, "no byte without the client's word"
            assert client.opening.suspend is not SuspendMode.KEEP

    def come_to_rest(self) -> None:
        """Everything heals, all clients end, and then an append goes through."""
        self.cluster.run()
        # One after the other: who has not ended has the pipeline, or waits for the leader to take a member away.
        for _ in range(len(self.clients) + RETRIES):
            if all(client.is_over for client in self.clients):
                break
            # The primary's own pulse, which brings its members in step.
            self.append(self.primary(), 5)
            self.cluster.run()
            if len(self.cluster.etcd.slots()) > SPEC.replication:
                self.reassign(0)
            for client in self.clients:
                if not client.is_over and not client.is_cancelled and not client.script:
                    client.script = deque([End()] if client.has_intent else [Intent(), End()])
            self.cluster.run()
        self.check()
        for client in self.clients:
            assert client.is_over, client.run.fsm.state
        last = self._last()
        self.check()
        self._check_rest(last)

    def _last(self) -> Client:
        """Appends and the leader's doing, one after the other, until one of them goes through."""
        slots = self.cluster.etcd.slots
        for attempt in range(RETRIES):
            last = self.cluster.append(self.primary(), b"<%d>" % len(self.clients))
            self.clients.append(last)
            self.cluster.run()
            if len(slots()) > SPEC.replication or 0 not in slots().values():
                self.reassign(0)
                self.cluster.run()
            if last.outcomes and isinstance(last.outcome, AppendOutcome) and last.status is Status.OK:
                event(f"attempts: {attempt + 1}")
                return last
        raise AssertionError(f"the journal is not writable any more: {self.clients[-1]}")

    def _check_rest(self, last: Client) -> None:
        holders = [self.cluster.brokers[member] for member in self.cluster.etcd.slots()]
        assert {broker.spool.spool.fragment for broker in holders} == {holders[0].spool.spool.fragment}
        assert {broker.spool.spool.registers for broker in holders} == {holders[0].spool.spool.registers}
        for broker in self.cluster.brokers.values():
            for replica in broker.all_replicas:
                is_held = replica in broker.resolver.replicas.values()
                assert is_held != replica.given_up.is_fired, "what is not held any more is handed on"
                assert is_held != replica.is_stopped
        for broker in holders:
            shown = broker.replica.index.summary().end
            assert shown == last.commit.end, f"{broker.id} shows all that is acknowledged"


@pytest.mark.parametrize("keeps_epochs", [True, False], ids=["in epochs", "by Gazette's rules"])
@settings(max_examples=200)
@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 24), st.integers(0, 1000)), min_size=15, max_size=150),
)
def test_whatever_happens_what_was_acknowledged_is_held_and_nothing_else_is_lost(
    keeps_epochs: bool, has_slow_disks: bool, choices: list[tuple[int, int]]
) -> None:
    run = Run(has_slow_disks, keeps_epochs)
    for what, which in choices:
        run.act(what, which)
        run.check()
    run.come_to_rest()
