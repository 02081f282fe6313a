"""Results stay results, and in whole lines, while a bar is shown: run on a terminal of our own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from gazctl.output import notice, result
from gazctl.progress import bar

with bar("Working", 3) as advance:
    for at in range(3):
        result(f"result {at}")
        advance(1)
    notice("a notice")
"""


def on_terminal(stdout: Path | None) -> list[str]:
    """What comes on a terminal that is stderr, and stdout too if that is not to be a file."""
    ours, theirs = pty.openpty()
    output = theirs if stdout is None else os.open(stdout, os.O_WRONLY | os.O_CREAT)
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=output, stderr=theirs, env=environ)
    os.close(theirs)
    seen = bytearray()
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            # That is how the end of a terminal looks on Linux.
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    assert process.wait(60) == 0
    return seen.decode().split("\r\n")


def test_lines_come_above_the_bar_and_not_behind_it() -> None:
    lines = [line.rpartition("\x1b[2K")[2] for line in on_terminal(None)]
    assert [line for line in lines if line.startswith(("result", "a notice"))] == [
        *("result 0", "result 1", "result 2", "a notice")
    ]


def test_results_for_a_file_are_in_the_file_although_a_bar_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "results"
    shown = "\n".join(on_terminal(file))
    assert file.read_text() == "result 0\nresult 1\nresult 2\n"
    assert "Working" in shown
    assert "a notice" in shown
    assert "result" not in shown


def test_without_a_terminal_there_is_no_bar() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("result 0\nresult 1\nresult 2\n", "a notice\n")
