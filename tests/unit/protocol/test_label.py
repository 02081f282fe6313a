from __future__ import annotations

import pytest

from protocol.errors import ValidationError
from protocol.label import Label, LabelSet
from tests.support.golden import Case, case_id, cases


def labels_of(labels: list[dict[str, str | bool]]) -> LabelSet:
    return LabelSet(
        tuple(Label(str(label["name"]), str(label.get("value", "")), bool(label.get("prefix"))) for label in labels)
    )


@pytest.mark.parametrize("case", cases("labels", "algebra"), ids=case_id)
def test_the_algebra_of_labels_is_that_of_gazette(case: Case) -> None:
    left, right = labels_of(case["left"]), labels_of(case["right"])
    assert left.union(right) == labels_of(case["union"])
    assert left.intersect(right) == labels_of(case["intersect"])
    assert left.subtract(right) == labels_of(case["subtract"])


@pytest.mark.parametrize("case", cases("labels", "edit"), ids=case_id)
def test_labels_are_edited_as_in_gazette(case: Case) -> None:
    labels = labels_of(case["start"])
    for step in case["steps"]:
        match step["op"]:
            case "add":
                labels = labels.add(step["name"], step["value"])
            case "set":
                labels = labels.assign(step["name"], step["value"])
            case "remove":
                labels = labels.remove(step["name"])
            case op:
                pytest.fail(f"the vectors have an operation we do not know: {op}")
        assert labels == labels_of(step["after"])
    if case["valid_after"]:
        labels.check()
    else:
        with pytest.raises(ValidationError):
            labels.check()


@pytest.mark.parametrize("case", cases("labels", "values"), ids=case_id)
def test_values_are_found_by_name(case: Case) -> None:
    labels = labels_of(case["labels"])
    assert {name: labels.values_of(name) for name in case["values_of"]} == case["values_of"]
    assert {name: labels.value_of(name) for name in case["value_of"]} == case["value_of"]


def test_sets_survive_the_wire() -> None:
    labels = LabelSet((Label("aa", "1"), Label("aa", "2", prefix=True), Label("bb")))
    assert LabelSet.from_proto(labels.to_proto()) == labels
