from __future__ import annotations

import pytest

from protocol.errors import ValidationError
from protocol.label import Label, LabelSet
from protocol.selector import LabelSelector
from tests.support.golden import Case, case_id, cases


def labels_of(labels: list[dict[str, str | bool]]) -> LabelSet:
    return LabelSet(
        tuple(Label(str(label["name"]), str(label.get("value", "")), bool(label.get("prefix"))) for label in labels)
    )


def selector_of(case: Case) -> LabelSelector:
    return LabelSelector(labels_of(case["include"]), labels_of(case["exclude"]))


@pytest.mark.parametrize("case", cases("selectors", "parse"), ids=case_id)
def test_texts_parse_as_in_gazette(case: Case) -> None:
    if not case["ok"]:
        with pytest.raises(ValidationError, match="LabelSelector"):
            LabelSelector.parse(case["text"])
        return
    selector = LabelSelector.parse(case["text"])
    assert selector == selector_of(case["parsed"])
    assert str(selector) == case["canonical"]
    if case["canonical_reparses"]:
        assert LabelSelector.parse(str(selector)) == selector


@pytest.mark.parametrize("case", cases("selectors", "canonical"), ids=case_id)
def test_selectors_print_as_in_gazette(case: Case) -> None:
    assert str(selector_of(case["parsed"])) == case["canonical"]


@pytest.mark.parametrize("case", cases("selectors", "match"), ids=case_id)
def test_sets_match_as_in_gazette(case: Case) -> None:
    selector, labels = selector_of(case["parsed"]), labels_of(case["labels"])
    assert selector.matches(labels) == case["match"]
    assert LabelSelector.parse(case["selector"]).matches(labels) == case["match"]


@pytest.mark.parametrize("case", cases("selectors", "journal-meta", "shard-meta"), ids=case_id)
def test_meta_labels_match_as_if_they_were_in_the_set(case: Case) -> None:
    selector, labels = LabelSelector.parse(case["selector"]), labels_of(case["spec_labels"])
    meta, value = ("name", case["journal"]) if "journal" in case else ("id", case["shard"])
    assert selector.matcher(meta)(value, labels) == case["match"]
    assert selector.matches(labels_of(case["matched_labels"])) == case["match"]


def test_a_meta_label_wins_over_a_label_of_that_name() -> None:
    match = LabelSelector.parse("name=a/b").matcher("name")
    assert match("a/b", LabelSet.of(("name", "other")))
    assert not match("other", LabelSet.of(("name", "a/b")))


def test_the_legacy_prefix_label_means_a_prefix_of_the_name() -> None:
    selector = LabelSelector.parse("prefix in (acme/, other/), tier=a, name=z/z").with_prefix_label_expanded()
    assert str(selector) == "name=z/z,name:prefix in (acme/,other/),tier=a"
    match = selector.matcher("name")
    assert match("acme/orders", LabelSet.of(("tier", "a")))
    assert match("z/z", LabelSet.of(("tier", "a")))
    assert not match("acme", LabelSet.of(("tier", "a")))
    assert LabelSelector.parse("!x1").with_prefix_label_expanded() == LabelSelector.parse("!x1")


def test_an_error_says_where_and_what_was_expected() -> None:
    with pytest.raises(ValidationError) as caught:
        LabelSelector.parse("tier=a, ???")
    assert str(caught.value).startswith("LabelSelector: cannot be understood from ' ???' on: expected")


def test_letters_are_those_of_unicode_15_on_every_python() -> None:
    assert LabelSelector.parse("name=\U00031350\U0001e4d0").include.value_of("name") == "\U00031350\U0001e4d0"
    with pytest.raises(ValidationError):
        LabelSelector.parse("name=\U0002ebf0")  # assigned in 15.1
