from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ValidationError
from protocol.label import Label, LabelSet
from protocol.selector import LabelSelector

NAMES = st.sampled_from(["aa", "ab", "ab-c", "name", "tier", "éé", "x/y.z"])
# A value that begins with "=" does not survive its canonical text, in Gazette as here.
VALUES = st.text("ab/=%.é-", max_size=3).filter(lambda value: not value.startswith("="))


@st.composite
def label_sets(draw: st.DrawFn, prefixes: bool = False) -> LabelSet:
    labels = set()
    for name in draw(st.lists(NAMES, unique=True, max_size=4)):
        for value in draw(st.lists(VALUES, unique=True, min_size=1, max_size=3)):
            labels.add(Label(name, value, prefixes and draw(st.booleans())))
    label_set = LabelSet(tuple(sorted(labels)))
    # An empty value stands alone.
    for name in {label.name for label in labels}:
        if "" in label_set.values_of(name):
            label_set = label_set.assign(name, "")
    return label_set


selectors = st.builds(LabelSelector, label_sets(prefixes=True), label_sets(prefixes=True))


@given(selectors)
def test_printing_and_parsing_a_selector_is_identity(selector: LabelSelector) -> None:
    assert LabelSelector.parse(str(selector)) == selector
    assert LabelSelector.from_proto(selector.to_proto()) == selector


def found(wanted: Label, labels: LabelSet) -> bool:
    """One selector value against a set, straight from the definition."""
    values = [label.value for label in labels if label.name == wanted.name]
    if not wanted.value:
        return bool(values)
    return any(value.startswith(wanted.value) if wanted.prefix else value == wanted.value for value in values)


@given(selectors, label_sets())
def test_matching_is_its_definition(selector: LabelSelector, labels: LabelSet) -> None:
    included = {label.name for label in selector.include}
    expected = not any(found(label, labels) for label in selector.exclude) and all(
        any(found(label, labels) for label in selector.include if label.name == name) for name in included
    )
    assert selector.matches(labels) == expected


@given(selectors, label_sets(), st.text("ab/", min_size=1, max_size=4))
def test_a_meta_label_beside_the_set_is_one_within_it(selector: LabelSelector, labels: LabelSet, name: str) -> None:
    assert selector.matcher("name")(name, labels) == selector.matches(labels.assign("name", name))


@given(st.text("abn=!,() :prefix~\n\té", max_size=24))
def test_any_text_parses_or_is_refused_with_our_error(text: str) -> None:
    try:
        selector = LabelSelector.parse(text)
    except ValidationError:
        return
    assert selector.matches(LabelSet()) in (True, False)
