"""What every decoder of a framing yields: frames, and the ranges it could make nothing of."""

from __future__ import annotations

from typing import NamedTuple

FRAME_BYTES_MAX = 64 << 20
"""Larger payloads are skipped unless a decoder is told otherwise: this bounds what it holds in memory."""


class Frame(NamedTuple):
    """One message as it stands in a journal. The range includes header or newline, the payload does not."""

    begin: int
    end: int
    payload: bytes


class Skipped(NamedTuple):
    """A range that holds no frame. Long ones are reported piece by piece, as the bytes arrive."""

    begin: int
    end: int
    why: str
