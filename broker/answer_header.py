"""The Header of an answer, and of a request that is passed on: who speaks, and what it knows of journal and etcd.

A member that cannot be reached is left out of the Route: a Go client that finds one without an endpoint exits. Where
the Route is compared, as in an answer to a primary that replicates, the member stays, with an endpoint that is none.
"""

from __future__ import annotations

from dataclasses import replace

from allocator.keys import member_key
from allocator.keyspace_view import KeySpaceView
from broker.cluster_keys import BrokerEntity
from broker.resolution import MISSING_ID, Resolution
from protocol.gen import journal_pb2 as pb
from protocol.route import EtcdRevision, Header, ProcessId, Route

NOWHERE = "http://unreachable.invalid"
"""Every program can parse it, and nobody can dial it: that name is reserved for what does not exist."""


def own_header(
    view: KeySpaceView[BrokerEntity], root: str, own_id: ProcessId, revision: int | None = None
) -> pb.Header:
    """Of an answer that is about no single journal. `revision`, if it is not the view's, is one that a key had."""
    is_known = view.get(member_key(root, *own_id)) is not None
    known = view.header
    etcd = EtcdRevision(known.cluster_id, known.member_id, revision or known.revision, known.raft_term)
    return Header(own_id if is_known else MISSING_ID, Route(), etcd).to_proto()


def answer_header(resolution: Resolution) -> pb.Header:
    """Of an answer about a journal. It names somebody even where any member could have given it."""
    header = resolution.header
    return replace(
        header, process_id=header.process_id or resolution.local_id, route=reachable(header.route)
    ).to_proto()


def forwarded_header(resolution: Resolution) -> pb.Header:
    """Of a request that is passed on to whom the resolution names, or to any member."""
    return replace(resolution.header, route=reachable(resolution.header.route)).to_proto()


def reachable(route: Route) -> Route:
    """
    >>> a, b = ProcessId("zone-a", "broker-1"), ProcessId("zone-b", "broker-2")
    >>> reachable(Route((a, b), 1, ("", "http://b:80"))) == Route((b,), 0, ("http://b:80",))
    True
    """
    if route.endpoints is None:
        return Route()
    if all(route.endpoints):
        return route
    kept = [(member, endpoint) for member, endpoint in zip(route.members, route.endpoints, strict=True) if endpoint]
    members = tuple(member for member, _ in kept)
    primary = members.index(route.primary_id) if route.primary_id in members else None
    return Route(members, primary, tuple(endpoint for _, endpoint in kept))


def complete(route: Route) -> Route:
    """With an endpoint for each member, be it nowhere.

    A peer's answer must keep all members: a primary compares them with its own, and one that is missing would be news
    to it, of which it would hear again and again. It must not be without endpoints either, neither one nor all: none of
    Gazette's programs is known to dial what an answer to Replicate names, but those that did so with other answers have
    exited, both at an empty one and at none.

    >>> a, b = ProcessId("zone-a", "broker-1"), ProcessId("zone-b", "broker-2")
    >>> complete(Route((a, b), 1, ("", "http://b:80"))).endpoints
    ('http://unreachable.invalid', 'http://b:80')
    >>> complete(Route((a,), 0)).endpoints
    ('http://unreachable.invalid',)
    """
    if route.endpoints is not None and all(route.endpoints):
        return route
    known = route.endpoints or ("",) * len(route.members)
    return replace(route, endpoints=tuple(endpoint or NOWHERE for endpoint in known))
