"""Conversations recorded with live Gazette brokers, kept verbatim in ``tests/golden/live/wire``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.support.golden import GOLDEN

Row = dict[str, Any]


@dataclass
class Conversation:
    title: str
    rows: list[Row] = field(default_factory=list)

    @property
    def request(self) -> bytes:
        """Of an RPC that has one."""
        (sent,) = [bytes.fromhex(row["hex"]) for row in self.rows if row["dir"] == ">" and "hex" in row]
        return sent

    @property
    def answers(self) -> list[bytes]:
        return [bytes.fromhex(row["hex"]) for row in self.rows if row["dir"] == "<" and "hex" in row]

    @property
    def code(self) -> str | None:
        """How it ended, None if the recording does not say."""
        ended = [row["code_name"] for row in self.rows if row.get("event") == "status"]
        return ended[-1] if ended else None

    @property
    def is_refused(self) -> bool:
        """By what Go answers to a request that breaks a rule, where we say INVALID_ARGUMENT."""
        return self.code == "UNKNOWN"


def conversations(name: str) -> list[Conversation]:
    found: dict[str, Conversation] = {}
    with (GOLDEN / "live" / "wire" / f"{name}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            found.setdefault(row["conv"], Conversation(row["conv"])).rows.append(row)
    assert found, f"{name}.jsonl holds no conversation"
    return list(found.values())


def title(conversation: Conversation) -> str:
    """For ``parametrize(ids=...)``."""
    return conversation.title
