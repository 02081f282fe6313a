from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.label import LabelSet
from spark_readers.journal_selectors import journal_selectors
from spark_readers.read_options import JournalChoice


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("acme/orders", "acme/orders"),
        ("^acme/.*", "acme/"),
        ("acme/order(s|ed)", "acme/order"),
        ("acme/orders?", "acme/order"),
        ("acme/orders*", "acme/order"),
        ("acme/o{2}", "acme/"),
        (r"acme\.com/v1\.[0-9]+", "acme.com/v1."),
        (r"acme/\d+", "acme/"),
        ("acme/one|other/two", ""),
        ("acme/[|]one|other/two", ""),
        ("acme/[|]", "acme/"),
        ("acme/[]|]x", "acme/"),
        ("acme/[^]|]x", "acme/"),
        (r"acme/\|", ""),
        ("(?i)acme/.*", ""),
        ("(acme|other)/.*", ""),
        ("", ""),
    ],
)
def test_a_pattern_is_asked_for_by_what_it_begins_with(pattern: str, prefix: str) -> None:
    [selector] = journal_selectors(JournalChoice(pattern=pattern))
    assert [label.value for label in selector.include] == ([prefix] if prefix else [])
    assert all(label.prefix for label in selector.include)


PARTS = st.lists(st.sampled_from(["ab", "a", "/", *"|()*?+]^.", "[]|]", "[a|", r"\.", "{1}", r"\w"]))


@given(PARTS, st.text("ab/.", min_size=1, max_size=8))
def test_whatever_a_pattern_matches_brokers_are_asked_for(parts: list[str], name: str) -> None:
    pattern = "".join(parts)
    try:
        matches = re.fullmatch(pattern, name)
    except (re.error, FutureWarning):
        return
    if matches:
        [selector] = journal_selectors(JournalChoice(pattern=pattern))
        assert selector.matcher("name")(name, LabelSet())


def test_names_are_asked_for_by_themselves() -> None:
    [selector] = journal_selectors(JournalChoice(names=("acme/one", "acme/two")))
    assert str(selector) == "name in (acme/one,acme/two)"
