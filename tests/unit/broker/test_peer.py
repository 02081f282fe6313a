"""Which member a request is passed on to first."""

from __future__ import annotations

import itertools

import pytest

from broker.peer import Link, Peer, nearest_first
from protocol.route import ProcessId


def peer(zone: str, name: str) -> Peer:
    return Peer(ProcessId(zone, name), f"http://{name}:80", is_own_kind=True)


NEAR, ALSO_NEAR, FAR = peer("zone-b", "one"), peer("zone-b", "two"), peer("zone-a", "three")


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        pytest.param({}, [NEAR, ALSO_NEAR, FAR], id="the own zone comes first"),
        pytest.param({FAR: Link.CONNECTED}, [NEAR, ALSO_NEAR, FAR], id="even if only others are connected"),
        pytest.param({NEAR: Link.FAILING}, [ALSO_NEAR, NEAR, FAR], id="within it, one that fails comes last"),
        pytest.param({ALSO_NEAR: Link.CONNECTED}, [ALSO_NEAR, NEAR, FAR], id="and one that is connected first"),
        pytest.param({NEAR: Link.FAILING, ALSO_NEAR: Link.FAILING}, [NEAR, ALSO_NEAR, FAR], id="all of it fails"),
        pytest.param(
            {NEAR: Link.FAILING, ALSO_NEAR: Link.UNTRIED, FAR: Link.CONNECTED}, [ALSO_NEAR, NEAR, FAR], id="all three"
        ),
    ],
)
def test_the_nearest_that_can_be_reached_is_asked_first(links: dict[Peer, Link], expected: list[Peer]) -> None:
    for order in itertools.permutations((NEAR, ALSO_NEAR, FAR)):
        assert nearest_first(order, "zone-b", lambda one: links.get(one, Link.UNTRIED)) == expected
