from __future__ import annotations

from math import inf

from allocator.member_loads import MemberLoads
from tests.support.allocation import Cluster, ItemSpec, MemberSpec


def loads() -> MemberLoads[ItemSpec, MemberSpec, bytes]:
    cluster = Cluster()
    for member, limit in (("a#m0", 2), ("a#m1", 4), ("b#m2", 0)):
        cluster.join(member, limit)
    cluster.put_item("i", 3)
    cluster.assign("i", "a#m0:0", "a#m1:1", "b#m2:2")
    return MemberLoads(cluster.state)


def test_begin_with_what_is_assigned() -> None:
    begun = loads()
    assert [begun.of_all(member) for member in ("a#m0", "a#m1", "b#m2")] == [0.5, 0.25, inf]
    assert [begun.of_primaries(member) for member in ("a#m0", "a#m1", "b#m2")] == [0.5, 0, inf]
    assert [begun.has_room(member) for member in ("a#m0", "a#m1", "b#m2", "a#nobody")] == [True, True, False, False]


def test_follow_what_is_decided() -> None:
    changed = loads()
    changed.add("a#m0", 1)
    assert not changed.has_room("a#m0")
    assert (changed.of_all("a#m0"), changed.of_primaries("a#m0")) == (1, 0.5)
    changed.remove("a#m0", 0)
    assert changed.has_room("a#m0")
    assert (changed.of_all("a#m0"), changed.of_primaries("a#m0")) == (0.5, 0)
    changed.remove("a#nobody", 0)
    assert changed.of_all("a#m1") == 0.25
