"""What a failing run prints: enough to run it again exactly, and to see why it failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.simulation.checkers import Violation
from tests.simulation.faults import Fault, Options
from tests.simulation.history import History
from tests.simulation.world import World

_SHOWN = 60
_HEAD = Path(__file__).parents[2] / ".git" / "HEAD"


def failure_report(
    options: Options, faults: Sequence[Fault], world: World, history: History, violations: Sequence[Violation]
) -> str:
    sections = [
        f"seed {options.seed} failed at {_commit()}, after {world.events} events, fingerprint {world.fingerprint:x}\n"
        f"again, if it was drawn from all faults: python -m tests.simulation --seed {options.seed}",
        "\n".join(str(violation) for violation in violations[:_SHOWN]),
        options.describe(),
        "\n".join(["faults:", *map(str, faults)]),
        "\n".join(
            [f"the last of the history ({history.unknown_share:.0%} unknown):", *list(history.lines())[-_SHOWN:]]
        ),
        "\n".join(["the last events:", *world.trace()[-_SHOWN:]]),
    ]
    return "\n\n".join(sections)


def _commit() -> str:
    """Of the code that ran, if this is a checkout."""
    if not _HEAD.exists():
        return "an unknown commit"
    head = _HEAD.read_text(encoding="utf-8").strip()
    named = _HEAD.parent / head.removeprefix("ref: ")
    return named.read_text(encoding="utf-8").strip() if head.startswith("ref: ") and named.exists() else head
