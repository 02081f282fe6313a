"""Hive-style keys in paths, ``date=2026-11-16/hour=04``: what they are, and which time they tell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

_KEY = re.compile(r"([^=]+)=(.*)").fullmatch


def path_keys(path: str) -> dict[str, str]:
    """
    >>> path_keys("acme/orders/region=eu/date=2026-11-16/hour=04")
    {'region': 'eu', 'date': '2026-11-16', 'hour': '04'}
    """
    return {found[1]: found[2] for part in path.split("/") if (found := _KEY(part))}


def admits(where: Sequence[tuple[str, Sequence[str]]], keys: Mapping[str, str]) -> bool:
    """Whether a fragment with these keys may hold what is wanted. One that lacks a key is not ruled out by it."""
    return all(key not in keys or keys[key] in values for key, values in where)


class Period(NamedTuple):
    """Unix seconds [begin, end) within which a fragment had its first append."""

    begin: int
    end: int


def period(keys: Mapping[str, str]) -> Period | None:
    """What ``date`` and ``hour`` tell, in UTC, as brokers write them; None if they tell nothing."""
    try:
        day = datetime.strptime(keys["date"], "%Y-%m-%d").replace(tzinfo=UTC)
        hour = int(keys["hour"]) if "hour" in keys else None
    except (KeyError, ValueError):
        return None
    if hour is not None and not 0 <= hour < 24:
        return None
    begin = day if hour is None else day + timedelta(hours=hour)
    length = timedelta(days=1) if hour is None else timedelta(hours=1)
    return Period(int(begin.timestamp()), int((begin + length).timestamp()))
