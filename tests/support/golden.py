"""Vectors computed by Gazette itself, kept verbatim in ``tests/golden``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent.parent / "golden"

Case = dict[str, Any]


@cache
def _load(name: str) -> list[Case]:
    loaded: list[Case] = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def cases(name: str, *kinds: str) -> list[Case]:
    """The cases of one file, all of them or those of the given kinds."""
    found = [case for case in _load(name) if not kinds or case.get("kind") in kinds]
    assert found, f"{name}.json holds no case of {kinds}"
    return found


def case_id(case: Case) -> str:
    """For ``parametrize(ids=...)``."""
    return str(case["id"])
