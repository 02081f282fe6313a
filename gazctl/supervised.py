"""Supervised: a child process that is started again when it dies, with a word to whoever watches."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Say = Callable[[str], None]

PAUSE_S_MIN = 0.5
PAUSE_S_MAX = 10.0
STEADY_S = 30.0
"""One that has run for so long is started again after the shortest pause."""

_PR_SET_PDEATHSIG = 1


class EndedError(Exception):
    """It has ended before it was ready."""


class Supervised:
    """One process, and those that come after it under the same name."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        say: Say,
        on_spawn: Callable[[], None] = lambda: None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`on_spawn` is called when there is another process id."""
        self.name = name
        self._command = command
        self._log = log
        self._say = say
        self._on_spawn = on_spawn
        self._environ = environ
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False

    @property
    def pid(self) -> int:
        """Of the process that runs, or has run last."""
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.returncode is not None

    async def spawn(self) -> None:
        # A file and not a pipe: a process whose output nobody reads stands still. In a session of its own, so that a
        # Ctrl-C is ours alone to pass on.
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._log.parent,
                env=self._environ,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self._on_spawn()

    def check(self) -> None:
        """Raise if it has ended."""
        if self.has_ended:
            raise EndedError(f"{self.name} {self._how()}. The end of {self._log} says:\n{self._tail()}")

    async def supervise(self) -> None:
        """Start it again whenever it ends, until ``stop``."""
        loop = asyncio.get_running_loop()
        pause_s, since_s = PAUSE_S_MIN, loop.time()
        while True:
            await self._wait()
            if self._is_stopping:
                return
            if loop.time() - since_s >= STEADY_S:
                pause_s = PAUSE_S_MIN
            self._say(f"{self.name} (process {self.pid}) {self._how()}. It is started again in {pause_s:g} s.")
            await asyncio.sleep(pause_s)
            pause_s, since_s = min(pause_s * 2, PAUSE_S_MAX), loop.time()
            await self.spawn()
            self._say(f"{self.name} runs again (process {self.pid}).")

    async def stop(self, timeout_s: float) -> bool:
        """Ask it to end, and end it after `timeout_s`. Whether it ended by itself."""
        self._is_stopping = True
        if self._process is None or self.has_ended:
            return True
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
            return True
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._process.wait()
            return False

    async def _wait(self) -> None:
        assert self._process is not None
        await self._process.wait()

    def kill(self) -> None:
        self._is_stopping = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and not self.has_ended:
            self._process.send_signal(number)

    def _how(self) -> str:
        code = self._process.returncode if self._process is not None else None
        if code is None:
            return "has not been started"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has ended with code {code}"

    def _tail(self, lines: int = 8) -> str:
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join(f"  {line[:300]}" for line in text.splitlines()[-lines:])


def _end_with_parent() -> None:
    """In the child: whoever kills the parent without a chance to stop us, stops us too. Linux alone has this."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
