"""Which journals of a view a List shows, and the messages that show them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from allocator.key_value import KeyValue
from allocator.keys import Assignment, Item, Member, assignments_prefix, items_prefix, member_key
from allocator.keyspace_view import Change, KeySpaceView, by_key
from broker.answer_header import reachable
from broker.broker_member import BrokerMember
from broker.cluster_keys import BrokerEntity, route_of
from broker.journal_item import JournalItem
from protocol.gen import journal_pb2 as pb
from protocol.route import ProcessId, Route
from protocol.selector import LabelSelector

JOURNALS_MAX = 25
"""In one message, as of Gazette."""
MESSAGE_BYTES_MAX = 1 << 20
"""Beyond it a message takes no further journal. With the largest that etcd holds, it stays below the 4 MiB of gRPC."""

JournalKey = KeyValue[Item[JournalItem]]


class Selection:
    """The journals that are asked for, among those that may be seen."""

    def __init__(self, asked: LabelSelector, permitted: LabelSelector) -> None:
        asked = asked.with_prefix_label_expanded()
        self._asked = asked.matcher("name")
        self._permitted = permitted.matcher("name")
        # One that asks for names is answered without a look at all the others.
        self._names = _names(asked) or _names(permitted)

    def matches(self, kv: KeyValue[BrokerEntity]) -> bool:
        """`kv` is that of a journal."""
        name, item = cast("Item[JournalItem]", kv.value)
        labels = item.spec.labels
        return self._asked(name, labels) and self._permitted(name, labels)

    def touches(self, change: Change[BrokerEntity]) -> bool:
        """Whether what is selected differs by this change of a journal."""
        return any(kv is not None and self.matches(kv) for kv in change)

    def candidates(self, view: KeySpaceView[BrokerEntity], root: str) -> Sequence[KeyValue[BrokerEntity]]:
        """Those among which all that match are found, in the order of their names."""
        items = items_prefix(root)
        if self._names is None:
            return view.prefixed(items)
        found: dict[str, KeyValue[BrokerEntity]] = {}
        for name, is_prefix in self._names:
            named = view.prefixed(items + name) if is_prefix else filter(None, [view.get(items + name)])
            found.update((kv.key, kv) for kv in named)
        return [found[key] for key in sorted(found)]


def _names(selector: LabelSelector) -> list[tuple[str, bool]] | None:
    """The names that are included, and whether each stands for all that begin with it; None if any name is."""
    named = [label for label in selector.include if label.name == "name"]
    if not named or not all(label.value for label in named):
        return None
    return [(label.value, label.prefix) for label in named]


class ListedJournals:
    """Makes what a List tells of journals of one view, asked for in the order of their names."""

    def __init__(self, view: KeySpaceView[BrokerEntity], root: str) -> None:
        self._keys = view.key_values
        self._root = root
        self._endpoint = _endpoints(view, root)
        self._at = 0
        # By who holds a journal: the member and the slot of each.
        self._routes: dict[tuple[tuple[str, int], ...], bytes] = {}

    def add_to(self, response: pb.ListResponse, kv: JournalKey) -> int:
        """Returns about how many bytes it takes."""
        journal = response.journals.add(mod_revision=kv.mod_revision, create_revision=kv.create_revision)
        # As etcd has it: what this process does not know of a spec is for others to see.
        journal.spec.MergeFromString(kv.raw)
        route = self._route(kv.value.id)
        journal.route.MergeFromString(route)
        return len(kv.raw) + len(route) + 32

    def _route(self, journal: str) -> bytes:
        """Serialised, and made once for all journals that the same members hold in the same roles."""
        assigned = self._assignments(assignments_prefix(self._root, journal))
        holders = tuple([kv.value[1:3] for kv in assigned])
        known = self._routes.get(holders)
        if known is None:
            route = route_of(assigned)
            told = reachable(route.with_endpoints({member: self._endpoint(member) for member in route.members}))
            known = self._routes[holders] = told.to_proto().SerializeToString()
        return known

    def _assignments(self, prefix: str) -> list[KeyValue[Assignment[Route]]]:
        """Assignments are in the order of journals, so those of the next journal mostly follow.

        Types are named in quotes here: to put them together takes longer than all the rest.
        """
        keys, at = self._keys, self._at
        if at >= len(keys) or not keys[at].key.startswith(prefix):
            at = bisect_left(keys, prefix, key=by_key)
        begin = at
        while at < len(keys) and keys[at].key.startswith(prefix):
            at += 1
        self._at = at
        return cast("list[KeyValue[Assignment[Route]]]", keys[begin:at])


def _endpoints(view: KeySpaceView[BrokerEntity], root: str) -> Callable[[ProcessId], str]:
    """Of members, looked up once: every Route is made of the same few."""
    known: dict[ProcessId, str] = {}

    def endpoint(member: ProcessId) -> str:
        if member not in known:
            kv = cast("KeyValue[Member[BrokerMember]] | None", view.get(member_key(root, *member)))
            known[member] = kv.value.value.endpoint if kv is not None else ""
        return known[member]

    return endpoint


def snapshot(
    view: KeySpaceView[BrokerEntity], root: str, header: pb.Header, candidates: Iterable[KeyValue[BrokerEntity] | None]
) -> Iterator[pb.ListResponse | None]:
    """The messages that show these journals. A None among them comes out as one: that is where to let others go on.

    The first has the header, and there is always a first; none of those that follow is empty.
    """
    listed = ListedJournals(view, root)
    response = pb.ListResponse(header=header)
    size = 0
    is_first = True
    for kv in candidates:
        if kv is None:
            yield None
            continue
        size += listed.add_to(response, cast("JournalKey", kv))
        if len(response.journals) == JOURNALS_MAX or size >= MESSAGE_BYTES_MAX:
            yield response
            response, size, is_first = pb.ListResponse(), 0, False
    if is_first or response.journals:
        yield response
