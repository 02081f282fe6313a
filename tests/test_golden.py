"""Every golden case is run by some test, or stands here with the reason why not yet."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.golden import GOLDEN

TESTS = Path(__file__).parent

# Cases for parts that are not built yet.
NOT_YET = {
    ("fragments", "roll"): "which fragment to propose is decided by the broker",
    ("recoverylog", "op-decoding"): "recovery logs are played by the consumer framework",
    ("recoverylog", "fsm"): "recovery logs are played by the consumer framework",
    ("recoverylog", "replay"): "recovery logs are played by the consumer framework",
    ("recoverylog", "new-fsm"): "recovery logs are played by the consumer framework",
    ("recoverylog", "segment-set"): "recovery logs are played by the consumer framework",
    ("etcd-keys", "consumer-consistency"): "consistency of shards is judged by the consumer framework",
}


def kinds() -> list[tuple[str, str]]:
    found = {
        (path.stem, case.get("kind", ""))
        for path in GOLDEN.glob("*.json")
        for case in json.loads(path.read_text(encoding="utf-8"))
    }
    return sorted(found)


def used() -> set[tuple[str, str]]:
    """The files and kinds that tests ask for: ``cases("file", "kind", ...)``, or a whole file."""
    asked: set[tuple[str, str]] = set()
    for path in TESTS.rglob("test_*.py"):
        for name, rest in re.findall(
            r'\bcases\(\s*"([\w-]+)"((?:,\s*"[\w-]+")*),?\s*\)', path.read_text(encoding="utf-8")
        ):
            asked |= {(name, kind) for kind in re.findall(r'"([\w-]+)"', rest)} or {(name, "*")}
    return asked


@pytest.mark.parametrize(("name", "kind"), kinds())
def test_golden_cases_are_run(name: str, kind: str) -> None:
    is_used = {(name, kind), (name, "*")} & used()
    if not is_used and (name, kind) in NOT_YET:
        pytest.skip(NOT_YET[name, kind])
    assert is_used, f"no test runs the cases of {name}.json that are of kind {kind!r}"
