"""Registers: labels that a journal carries beside its bytes, checked and changed together with an append."""

from __future__ import annotations

from protocol.label import LabelSet
from protocol.selector import LabelSelector


def passes(registers: LabelSet, check: LabelSelector) -> bool:
    """Whether an append with this check goes through. Registers that were never set pass every check."""
    return not registers or check.matches(registers)


def changed(registers: LabelSet, subtract: LabelSet, union: LabelSet) -> LabelSet:
    """The registers after an append: first the subtraction, then the union, whose values replace what was there."""
    if not subtract and not union:
        return registers
    return union.union(registers.subtract(subtract))
