from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol import shard_set
from protocol.label import LabelSet
from protocol.shard import ShardSource, ShardSpec

SMALL = st.sampled_from([0, 0, 1, 3])
TEXTS = st.sampled_from(["", "", "/hints", "yes", "12", "a: b"])
NANOSECONDS = st.sampled_from([0, 0, 1, 10**9, -(10**9)])

specs = st.builds(
    ShardSpec,
    st.sampled_from(["", "shard-000", "shard-001", "null"]),
    st.lists(st.builds(ShardSource, TEXTS, SMALL), max_size=2).map(tuple),
    TEXTS,
    TEXTS,
    SMALL,
    NANOSECONDS,
    NANOSECONDS,
    st.booleans(),
    SMALL,
    st.lists(st.tuples(st.sampled_from(["aa", "bb"]), TEXTS), max_size=3).map(lambda pairs: LabelSet.of(*pairs)),
    st.booleans(),
    SMALL,
    SMALL,
)


@given(st.lists(st.tuples(specs, st.sampled_from([0, -1, 5])), max_size=6))
def test_hoisting_and_pushing_down_is_identity(listed: list[tuple[ShardSpec, int]]) -> None:
    request = shard_set.flatten(shard_set.decode(shard_set.hoist(listed)))
    assert [(ShardSpec.from_proto(change.upsert), change.expect_mod_revision) for change in request.changes] == listed


@given(specs, specs)
def test_the_algebra_of_specs_undoes_itself(a: ShardSpec, b: ShardSpec) -> None:
    shared = a.intersect(b)
    assert a.subtract(shared).union(shared) == a
    assert b.subtract(shared).union(shared) == b
