"""Remembering the verdict on what comes back: store URLs, endpoints, label sets, routes.

A cluster's hundred thousand specs name a handful of stores, and every header names the same brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from google.protobuf.message import Message

K = TypeVar("K", str, bytes)
M = TypeVar("M", bound=Message)
T = TypeVar("T")

ENTRIES_MAX = 1024
LENGTH_MAX = 1024


def remembered(judge: Callable[[K], T]) -> Callable[[K], T]:
    """`judge`, which keeps its latest answers. What it raises is not kept.

    Long texts are judged anew each time: they come from outside, and a cache of them is a way to fill
    our memory.
    """
    kept = lru_cache(maxsize=ENTRIES_MAX)(judge)

    def of(text: K) -> T:
        return kept(text) if len(text) <= LENGTH_MAX else judge(text)

    return of


def remembered_message(kind: type[M]) -> Callable[[Callable[[M], None]], Callable[[M], None]]:
    """Let a check of messages of this kind remember their bytes: to encode one is far cheaper than to read it."""

    def of(check: Callable[[M], None]) -> Callable[[M], None]:
        @remembered
        def check_encoded(encoded: bytes) -> None:
            check(kind.FromString(encoded))

        return lambda message: check_encoded(message.SerializeToString())

    return of
