"""Remembering the verdict on texts that come back: store URLs, endpoints, templates.

A cluster's hundred thousand specs name a handful of stores, and every header names the same brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

TEXTS_MAX = 1024
CHARS_MAX = 1024


def remembered(judge: Callable[[str], T]) -> Callable[[str], T]:
    """`judge`, which keeps its latest answers. What it raises is not kept.

    Long texts are judged anew each time: they come from outside, and a cache of them is a way to fill
    our memory.
    """
    kept = lru_cache(maxsize=TEXTS_MAX)(judge)

    def of(text: str) -> T:
        return kept(text) if len(text) <= CHARS_MAX else judge(text)

    return of
