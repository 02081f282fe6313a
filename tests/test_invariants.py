"""Every invariant of the reference is in docs/invariants.md, with tests that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DOCUMENT = TESTS.parent / "docs" / "invariants.md"

NUMBERS = [
    f"{area}-{at:02}" for area, last in (("A", 22), ("R", 17), ("RD", 14), ("S", 13)) for at in range(1, last + 1)
]


def rows() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Numbers, and the files and names of their tests."""
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"[A-Z]+-\d\d\*?", cells[0]):
            number, _, tests = cells
            yield number.rstrip("*"), re.findall(r"`([\w/.]+)::(\w+)`", tests)


@cache
def names(path: Path) -> set[str]:
    """Of all tests in a file, those of classes too."""
    parsed = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(parsed) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_invariant_is_there_once_and_in_order() -> None:
    assert [number for number, _ in rows()] == NUMBERS


@pytest.mark.parametrize(("number", "tests"), list(rows()), ids=lambda value: value if isinstance(value, str) else "")
def test_an_invariant_has_tests_that_exist(number: str, tests: list[tuple[str, str]]) -> None:
    assert tests, f"{number} has no test"
    for file, name in tests:
        assert name in names(TESTS / file), f"{number}: there is no {name} in {file}"
