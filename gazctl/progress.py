"""Progress of long work: a bar on the terminal, and nothing where there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gazctl.output import lines_above

Advance = Callable[[int], None]
"""Called with how much was done since."""


@contextmanager
def bar(what: str, total: int | None, is_bytes: bool = True) -> Iterator[Advance]:
    """A bar on stderr within the body. Without a total it only counts."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counts = (DownloadColumn(binary_units=True), TransferSpeedColumn()) if is_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeRemainingColumn())
    console = Console(stderr=True)

    def above(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    # Rich would show on stderr what is printed meanwhile. What belongs above the bar goes there by way of `above`.
    shown = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    with shown as progress, lines_above(above):
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
