"""Peer: another broker, and which of several is asked first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum, auto

from protocol.route import ProcessId


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker and where it is reached."""

    id: ProcessId
    endpoint: str
    # Whether it runs this implementation. Only such a one is pinged: Go servers end a connection for it.
    is_own_kind: bool


class Link(IntEnum):
    """What is known of the way to a peer; the less the better."""

    CONNECTED = auto()
    # Nobody has tried of late, or somebody is about to.
    UNTRIED = auto()
    FAILING = auto()


def nearest_first(peers: Iterable[Peer], zone: str, link_to: Callable[[Peer], Link]) -> list[Peer]:
    """Those of our zone, and among equals those that can be reached at once: in the order of Gazette's dispatcher.

    >>> near = Peer(ProcessId("a", "near"), "http://near:80", is_own_kind=True)
    >>> far = Peer(ProcessId("b", "far"), "http://far:80", is_own_kind=True)
    >>> [peer.id.suffix for peer in nearest_first([far, near], "a", lambda _: Link.UNTRIED)]
    ['near', 'far']
    """
    return sorted(peers, key=lambda peer: (peer.id.zone != zone, link_to(peer), peer.id))
