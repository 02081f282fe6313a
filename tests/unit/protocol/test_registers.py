from __future__ import annotations

import pytest

from protocol import registers
from protocol.label import LabelSet
from protocol.selector import LabelSelector
from tests.support.golden import Case, case_id, cases
from tests.unit.protocol.test_selector import labels_of, selector_of


@pytest.mark.parametrize("case", cases("registers"), ids=case_id)
def test_registers_are_checked_and_changed_as_in_gazette(case: Case) -> None:
    held = labels_of(case["registers"])
    check = selector_of(case["check"]) if "check" in case else LabelSelector()
    assert registers.passes(held, check) == case["check_passes"]
    if case["check_passes"]:
        after = registers.changed(held, labels_of(case.get("subtract", [])), labels_of(case.get("union", [])))
        assert after == labels_of(case["after"])


def test_an_append_that_asks_for_nothing_changes_nothing() -> None:
    held = LabelSet.of(("author", "a"))
    assert registers.passes(held, LabelSelector())
    assert registers.changed(held, LabelSet(), LabelSet()) == held
