"""The assignment that Gazette's own solver would choose, by a model of it that is exact: ties are broken as there.

It is push-relabel over a network from a source through items, pairs of an item and a zone, and members to a sink. Arcs
are not stored but offered page by page, the more desirable first, and some only to nodes that have been lifted far
enough. Tests and benchmarks compare ours with it; nothing else uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from allocator.solve import Desired
from allocator.state import AssignmentT, ItemT, MemberT, State

SUB_PROBLEM_ITEMS = 10_000
SOURCE, SINK = 0, 1
_LAST_PAGE = -1
_MANY = 1 << 60

Arc = tuple[int, int, bool]
"""The node it leads to, its capacity, and whether flow along it is the last to be given up."""


def gazette_assignment(state: State[ItemT, MemberT, AssignmentT]) -> Desired:
    """Large problems are cut into parts, each of which gets its share of every member. It knows no item zones."""
    ids = [kv.value.id for kv in state.members]
    desired: Desired = {}
    for begin in range(0, len(state.items), SUB_PROBLEM_ITEMS):
        part = state.items[begin : begin + SUB_PROBLEM_ITEMS]
        solved = _Solver(_Network(state, begin, begin + len(part))).solve()
        desired |= {
            kv.value.id: tuple(ids[at] for at in members) for kv, members in zip(part, solved, strict=True) if members
        }
    return desired


class _Network:
    def __init__(self, state: State[ItemT, MemberT, AssignmentT], begin: int, end: int) -> None:
        self.replication = list(state.replication[begin:end])
        self.current = [
            sorted({at for kv in assigned if (at := state.position.get(kv.value.member)) is not None})
            for assigned in state.assignments[begin:end]
        ]
        self.limits = state.limits
        self.slots, self.item_slots, self.member_slots = sum(self.replication), state.item_slots, state.member_slots
        zone_at = {zone: at for at, zone in enumerate(state.zones)}
        self.zone_of = [zone_at.get(kv.value.zone) for kv in state.members]
        self.zones = len(state.zones)
        self.zone_members = [[at for at, own in enumerate(self.zone_of) if own == zone] for zone in range(self.zones)]
        self.first_pair = 2 + len(self.replication)
        self.first_member = self.first_pair + len(self.replication) * self.zones
        self.nodes = self.first_member + len(self.limits)

    def arcs(self, node: int, page: int, height: int) -> tuple[list[Arc], int]:
        """Those of one page, and which page is next."""
        if node == SOURCE:
            return self._from_source(), _LAST_PAGE
        if node < self.first_pair:
            return self._from_item(node - 2, page, height)
        if node < self.first_member:
            return self._from_pair(*divmod(node - self.first_pair, self.zones), page)
        share = _scaled(self.limits[node - self.first_member], self.slots, self.item_slots)
        if height - self.nodes < -1:
            share = _scaled(share, self.item_slots, self.member_slots)
        return [(SINK, share, False)], _LAST_PAGE

    def _from_source(self) -> list[Arc]:
        arcs, left = [], self.member_slots
        for at, count in enumerate(self.replication):
            arcs.append((2 + at, min(count, left), False))
            left -= min(count, left)
        return arcs

    def _from_item(self, item: int, page: int, height: int) -> tuple[list[Arc], int]:
        count, first = self.replication[item], self.first_pair + item * self.zones
        if self.zones == 1 or height == self.nodes + 1:
            return [(first + zone, count, False) for zone in range(self.zones)], _LAST_PAGE
        most = max(count - 1, 1)
        if page == 0:
            held = [self.zone_of[member] for member in self.current[item]]
            found = [(zone, held.count(zone)) for zone in range(self.zones)]
            return [(first + zone, min(have, most), True) for zone, have in found if have], 1
        if page == 1:
            return [(first + zone, -(-count // self.zones), False) for zone in range(self.zones)], 2
        return [(first + zone, most, False) for zone in range(self.zones)], _LAST_PAGE

    def _from_pair(self, item: int, zone: int, page: int) -> tuple[list[Arc], int]:
        if page == 0:
            held = [member for member in self.current[item] if self.zone_of[member] == zone]
            return [(self.first_member + member, 1, True) for member in held], 1
        return [(self.first_member + member, 1, False) for member in self.zone_members[zone]], _LAST_PAGE

    def height(self, node: int) -> int:
        if node == SOURCE:
            return self.nodes
        if node == SINK:
            return 0
        return 3 if node < self.first_pair else 2 if node < self.first_member else 1


def _scaled(capacity: int, numerator: int, denominator: int) -> int:
    return capacity if numerator > denominator or not denominator else -(-capacity * numerator // denominator)


@dataclass(slots=True, eq=False)
class _Flow:
    begin: int
    end: int
    amount: int


@dataclass(slots=True)
class _Node:
    height: int
    excess: int = 0
    # Where to go on: the page and the arc in it, and how high to be lifted in the end.
    page: int = 0
    arc: int = 0
    next_height: int = _MANY
    out: dict[int, _Flow] = field(default_factory=dict)
    into: list[_Flow] = field(default_factory=list)

    def restart(self) -> None:
        self.page, self.arc, self.next_height = 0, 0, _MANY


class _Solver:
    def __init__(self, network: _Network) -> None:
        self._network = network
        self._nodes = [_Node(network.height(node)) for node in range(network.nodes)]
        self._count: dict[int, int] = {}
        for node in self._nodes:
            self._count[node.height] = self._count.get(node.height, 0) + 1
        # A heap of nodes, the highest first. Which of several equals comes first has to be as in Go, and not as in
        # heapq, since it decides who is assigned.
        self._active: list[int] = []

    def solve(self) -> list[list[int]]:
        self._nodes[SOURCE].excess = _MANY
        self._discharge(SOURCE)
        while self._active:
            node = self._pop()
            if node != SOURCE:
                self._discharge(node)
        network = self._network
        if not network.zones:
            return [[] for _ in network.replication]
        return [
            sorted(
                flow - network.first_member
                for pair in range(first, first + network.zones)
                for flow in self._nodes[pair].out
            )
            for first in range(network.first_pair, network.first_member, network.zones)
        ]

    def _discharge(self, at: int) -> None:
        node = self._nodes[at]
        while node.excess:
            self._push_on(at, node)
            if at == SOURCE:
                return
            if node.excess:
                self._push_back(node)
            if node.excess:
                self._lift(node)

    def _push_on(self, at: int, node: _Node) -> None:
        while node.page != _LAST_PAGE:
            arcs, following = self._network.arcs(at, node.page, node.height)
            while node.arc < len(arcs):
                end, capacity, first = arcs[(at + node.arc) % len(arcs)]
                flow = node.out.get(end)
                room = capacity - flow.amount if flow else capacity
                if room > 0:
                    self._push(at, node, end, room, first)
                    if not node.excess:
                        return
                node.arc += 1
            node.page, node.arc = following, 0

    def _push(self, at: int, node: _Node, end: int, room: int, first: bool) -> None:
        target = self._nodes[end]
        if node.height <= target.height:
            node.next_height = min(node.next_height, target.height + 1)
            return
        amount = min(node.excess, room)
        flow = node.out.get(end)
        if flow is None:
            flow = node.out[end] = _Flow(at, end, 0)
            target.into.insert(0 if first else len(target.into), flow)
        flow.amount += amount
        self._give(node, end, amount)

    def _push_back(self, node: _Node) -> None:
        for at in range(len(node.into) - 1, -1, -1):
            flow = node.into[at]
            origin = self._nodes[flow.begin]
            if node.height <= origin.height:
                node.next_height = min(node.next_height, origin.height + 1)
                continue
            amount = min(node.excess, flow.amount)
            flow.amount -= amount
            if not flow.amount:
                del node.into[at]
                del origin.out[flow.end]
            self._give(node, flow.begin, amount)
            if not node.excess:
                return

    def _give(self, node: _Node, to: int, amount: int) -> None:
        target = self._nodes[to]
        node.excess -= amount
        if not target.excess and to != SINK:
            self._active.append(to)
            self._sift_up(len(self._active) - 1)
        target.excess += amount

    def _lift(self, node: _Node) -> None:
        top, height, lifted = self._network.nodes, node.height, node.next_height
        if 0 < height < top - 1 and lifted < top - 1 and self._count[height] == 1:
            if self._count.get(lifted):
                self._close_gap(height)
            lifted = top - 1
        node.restart()
        self._count[height] -= 1
        self._count[lifted] = self._count.get(lifted, 0) + 1
        node.height = lifted

    def _close_gap(self, height: int) -> None:
        """No path leads below `height` any more, so all above can be lifted at once."""
        top = self._network.nodes
        for node in self._nodes:
            if height < node.height < top:
                self._count[node.height] -= 1
                node.height = top - 1
                node.restart()
        for at in range(len(self._active) // 2 - 1, -1, -1):
            self._sift_down(at, len(self._active))

    def _pop(self) -> int:
        heap, last = self._active, len(self._active) - 1
        heap[0], heap[last] = heap[last], heap[0]
        self._sift_down(0, last)
        return heap.pop()

    def _sift_up(self, at: int) -> None:
        heap, nodes = self._active, self._nodes
        while at and nodes[heap[at]].height > nodes[heap[(at - 1) // 2]].height:
            above = (at - 1) // 2
            heap[at], heap[above] = heap[above], heap[at]
            at = above

    def _sift_down(self, at: int, end: int) -> None:
        heap, nodes = self._active, self._nodes
        while (below := 2 * at + 1) < end:
            if below + 1 < end and nodes[heap[below + 1]].height > nodes[heap[below]].height:
                below += 1
            if nodes[heap[below]].height <= nodes[heap[at]].height:
                return
            heap[at], heap[below] = heap[below], heap[at]
            at = below
