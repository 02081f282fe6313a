"""PipelineState: how far a pipeline has come, in a file that is replaced as a whole or not at all.

A run is first planned, which pins the bytes it reads, and then finished. Whoever finds a plan that is not finished does
just that run again, on the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from protocol.errors import PreconditionError

# Runs are counted from one again then, and a journal of commits takes what a run has written once.
START_OVER = "Nothing was written. To start over, run with another --table and --commits"


@dataclass(frozen=True)
class Plan:
    """Of one run."""

    # By journal, what is read: [begin, end).
    offsets: Mapping[str, tuple[int, int]]
    # Whether sessions are closed although more of them may come.
    closes: bool


@dataclass(frozen=True)
class PipelineState:
    # Runs that are finished. The next has this number plus one.
    run: int = 0
    # By journal, up to where they have read.
    ends: Mapping[str, int] = field(default_factory=dict)
    # Unix seconds: nothing older is expected any more.
    watermark_s: float = 0.0
    plan: Plan | None = None

    @classmethod
    def load(cls, file: Path) -> PipelineState:
        if not file.exists():
            return cls()
        kept = json.loads(file.read_text(encoding="utf-8"))
        plan = kept.pop("plan")
        if plan is not None:
            plan = Plan({journal: (begin, end) for journal, (begin, end) in plan["offsets"].items()}, plan["closes"])
        return cls(**kept, plan=plan)

    def save(self, file: Path) -> None:
        """The old file is there until the new one is, on disk."""
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as writing:
            json.dump(asdict(self), writing, indent=1)
            writing.flush()
            os.fsync(writing.fileno())
        fresh.replace(file)
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def check(self, found: Mapping[str, tuple[int, int]]) -> None:
        """Raises if journals, which are `found` to have [begin, end), are not those that were read up to now."""
        for journal, (begin, end) in found.items():
            reads_from = reads_to = self.ends.get(journal, begin)
            if self.plan is not None:
                reads_from, reads_to = self.plan.offsets.get(journal, (begin, end))
            if end < reads_to:
                raise PreconditionError(
                    f"{journal} ends at {end}, but was seen to reach {reads_to}: it was made anew since. {START_OVER}"
                )
            if reads_from < begin:
                raise PreconditionError(
                    f"{journal} begins at {begin} now, and was read up to {reads_from} only: the rest was removed "
                    f"before a run could read it, so give the journal a longer retention. {START_OVER}"
                )

    def finished(self, watermark_s: float) -> PipelineState:
        if self.plan is None:
            raise ValueError("only a run that was planned can be finished")
        ends = {journal: end for journal, (_, end) in self.plan.offsets.items()}
        return replace(self, run=self.run + 1, ends=ends, watermark_s=watermark_s, plan=None)
