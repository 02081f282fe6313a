"""SummaryProcess: a process beside the one that plans, which reads the UUIDs of runs. Python's threads take turns.

It is a plain program, not a fork nor a child of ``multiprocessing``: Spark's planner has threads that a fork would
lose, and a main module that a child should not run. It ends when its input does, so with whoever started it.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from typing import Any

from fragment.heap import keep_freed_memory
from protocol.errors import InvariantError
from spark_readers.fragment_access import fragment_access
from spark_readers.fragment_task import Run
from spark_readers.piece_messages import extractor_of
from spark_readers.read_options import ReadOptions
from spark_readers.run_summaries import RunSummaries, run_summaries

BLOCK_BYTES_MAX = 16 << 20
"""Larger than anything that is made of content on the way."""


class ProcessEndedError(Exception):
    """The process cannot be asked any more: whoever asked has to read by itself."""


class SummaryProcess:
    def __init__(self, options: ReadOptions) -> None:
        # What this process can import the other one can.
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-P", "-m", "spark_readers.summary_process"]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
            self._send(options)
        except OSError as error:
            raise ProcessEndedError(str(error)) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def summaries(self, run: Run) -> RunSummaries:
        try:
            self._send(run)
            assert self._process.stdout is not None
            found = pickle.load(self._process.stdout)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise ProcessEndedError(f"process {self.pid}: {type(error).__name__}") from error
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, RunSummaries)
        return found

    def end(self) -> None:
        """It holds nothing that would have to be finished."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                # What was still to be written goes nowhere.
                continue

    def _send(self, value: Any) -> None:
        assert self._process.stdin is not None
        pickle.dump(value, self._process.stdin)
        self._process.stdin.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    # Whatever else is printed must not come between answers.
    os.dup2(2, 1)
    keep_freed_memory(BLOCK_BYTES_MAX)
    options: ReadOptions = pickle.load(sys.stdin.buffer)
    access, extract = fragment_access(options), extractor_of(options)
    while True:
        try:
            run = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer: RunSummaries | Exception
        try:
            answer = run_summaries(access, run, options, extract)
        except Exception as error:
            answer = _sent(error)
        pickle.dump(answer, answers)
        answers.flush()


def _sent(error: Exception) -> Exception:
    """As it is, if it can be made again from what is sent."""
    try:
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    except Exception as unsent:
        return InvariantError(f"{type(error).__name__}: {error} ({type(unsent).__name__})")
    return InvariantError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
