"""The laws of the label algebra, in which a name and all of its values are one thing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.label import LabelSet

label_sets = st.lists(
    st.tuples(st.sampled_from(["aa", "bb", "cc", "dd", "éé"]), st.sampled_from(["", "1", "2", "x/y"])), max_size=8
).map(lambda pairs: LabelSet.of(*pairs))

NONE = LabelSet()


def names(labels: LabelSet) -> set[str]:
    return {label.name for label in labels}


def model(labels: LabelSet) -> dict[str, list[str]]:
    return {name: labels.values_of(name) for name in names(labels)}


@given(label_sets, label_sets)
def test_the_algebra_is_that_of_a_mapping_from_names_to_values(left: LabelSet, right: LabelSet) -> None:
    ours, theirs = model(left), model(right)
    assert model(left.union(right)) == theirs | ours
    assert model(left.intersect(right)) == {k: v for k, v in ours.items() if theirs.get(k) == v}
    assert model(left.subtract(right)) == {k: v for k, v in ours.items() if theirs.get(k) != v}


@given(label_sets, label_sets)
def test_every_result_is_in_order(left: LabelSet, right: LabelSet) -> None:
    for labels in (left.union(right), left.intersect(right), left.subtract(right)):
        assert list(labels) == sorted(set(labels))


@given(label_sets)
def test_a_set_with_itself_and_with_none(labels: LabelSet) -> None:
    assert labels.union(labels) == labels.intersect(labels) == labels
    assert labels.subtract(labels) == NONE
    assert labels.union(NONE) == NONE.union(labels) == labels.subtract(NONE) == labels
    assert labels.intersect(NONE) == NONE.intersect(labels) == NONE.subtract(labels) == NONE


@given(label_sets, label_sets)
def test_intersecting_and_subtracting_part_a_set_by_name(left: LabelSet, right: LabelSet) -> None:
    shared, rest = left.intersect(right), left.subtract(right)
    assert not names(shared) & names(rest)
    assert sorted([*shared, *rest]) == list(left)
    assert shared == right.intersect(left)


@given(label_sets, label_sets)
def test_what_was_subtracted_comes_back_with_a_union(left: LabelSet, right: LabelSet) -> None:
    assert left.subtract(right).union(left.intersect(right)) == left
    assert left.subtract(right).union(right).intersect(left) == left


@given(label_sets, label_sets, label_sets)
def test_union_and_intersection_may_be_grouped_at_will(a: LabelSet, b: LabelSet, c: LabelSet) -> None:
    assert a.union(b).union(c) == a.union(b.union(c))
    assert a.intersect(b).intersect(c) == a.intersect(b.intersect(c))


@given(label_sets, st.sampled_from(["aa", "bb", "zz"]), st.sampled_from(["", "1", "9"]))
def test_edits_touch_one_name(labels: LabelSet, name: str, value: str) -> None:
    others = labels.remove(name)
    assert labels.add(name, value).values_of(name) == sorted({*labels.values_of(name), value})
    assert labels.assign(name, value).values_of(name) == [value]
    assert others.values_of(name) == []
    assert labels.add(name, value).remove(name) == labels.assign(name, value).remove(name) == others
    assert labels.union(others) == labels
