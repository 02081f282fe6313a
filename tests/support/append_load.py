"""Appends to journals of real brokers, over and over, and what must then be true of every one that was acknowledged."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count

import grpc

from protocol.gen import journal_pb2 as pb
from tests.support.broker_cluster import BrokerCluster
from tests.support.eventually import eventually

PAUSE_S = 0.002
APPEND_S = 5.0


@dataclass(frozen=True, slots=True)
class Acknowledged:
    journal: str
    begin: int
    content: bytes


@dataclass
class AppendLoad:
    """Numbered lines, each sent once: what is not acknowledged may be there or not, and is not asked for."""

    cluster: BrokerCluster
    journals: tuple[str, ...]
    acknowledged: list[Acknowledged] = field(default_factory=list)
    unknown: int = 0
    _numbers: count[int] = field(default_factory=count)
    _is_stopped: bool = False

    def stop(self) -> None:
        self._is_stopped = True

    async def run(self) -> None:
        """Until it is told to stop, through whichever broker is there."""
        for number in self._numbers:
            if self._is_stopped:
                return
            names = [name for name, broker in self.cluster.brokers.items() if broker.process is not None]
            journal = self.journals[number % len(self.journals)]
            if names:
                await self._append(names[number % len(names)], journal, b"line %d\n" % number)
            await asyncio.sleep(PAUSE_S if names else 0.1)

    async def _append(self, name: str, journal: str, line: bytes) -> None:
        try:
            response = await self.cluster.try_append(name, journal, line, timeout_s=APPEND_S)
        except grpc.aio.AioRpcError:
            self.unknown += 1
            await asyncio.sleep(0.05)
            return
        if response.status == pb.OK:
            self.acknowledged.append(Acknowledged(journal, response.commit.begin, line))
        else:
            await asyncio.sleep(0.05)

    async def wait_more(self, more: int = 20) -> None:
        """Until so many more were acknowledged of every journal."""
        before = self._counts()
        await eventually(
            lambda: all(now >= then + more for now, then in zip(self._counts(), before, strict=True)),
            lambda: f"{more} more appends to each journal: there were {before}, and are {self._counts()}",
        )

    def _counts(self) -> list[int]:
        journals = [held.journal for held in self.acknowledged]
        return [journals.count(journal) for journal in self.journals]

    async def check(self, name: str) -> dict[str, bytes]:
        """All that was acknowledged is where it was said to be, and stands there once. The contents, by journal."""
        contents = {}
        for journal in self.journals:
            held = [ack for ack in self.acknowledged if ack.journal == journal]
            end = max(ack.begin + len(ack.content) for ack in held)
            contents[journal] = content = await self._read(name, journal, end)
            lost = [ack for ack in held if content[ack.begin : ack.begin + len(ack.content)] != ack.content]
            assert not lost, f"{len(lost)} of {len(held)} appends to {journal} are not where they were: {lost[:3]}"
            lines = content.splitlines()
            assert len(lines) == len(set(lines)), f"a line of {journal} stands there twice"
        return contents

    async def _read(self, name: str, journal: str, end: int) -> bytes:
        content = b""

        async def is_read() -> bool:
            nonlocal content
            try:
                responses = await self.cluster.responses(name, journal, block=True, end_offset=end)
            except grpc.aio.AioRpcError:
                return False
            content = b"".join(response.content for response in responses)
            # Nobody is sent past what he asked for.
            offsets = [response.offset for response in responses if response.content]
            return len(content) >= end and offsets[:1] == [0]

        await eventually(is_read, lambda: f"all of {journal}: {len(content)} of {end} bytes")
        return content
