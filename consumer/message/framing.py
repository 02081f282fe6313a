"""Framings by content type: how a journal's bytes divide into messages.

A decoder is fed bytes as they arrive and yields what they complete. What a payload means is for the ``parse``
of ``json_framing`` or ``csv_framing``, or for a protobuf message type, to say.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from consumer.message.csv_framing import CsvDecoder
from consumer.message.fixed_framing import FixedDecoder
from consumer.message.frame import FRAME_BYTES_MAX, Frame, Skipped
from consumer.message.line_framing import LineDecoder
from protocol.errors import ValidationError


class FrameDecoder(Protocol):
    """Bytes in, frames out, with their offsets. It holds no more than one frame and the piece fed last."""

    def feed(self, data: bytes) -> list[Frame | Skipped]:
        """What these bytes complete, in order."""

    def end(self) -> list[Frame | Skipped]:
        """What the end of the stream completes. Raises a ``CorruptError`` if it cuts a frame."""


class Framing(Enum):
    """Each is valued by its content type."""

    JSON = "application/x-ndjson"
    FIXED = "application/x-protobuf-fixed"
    CSV = "text/csv"

    @classmethod
    def of(cls, content_type: str) -> Framing:
        """The framing of journals whose ``content-type`` label has exactly this value."""
        try:
            return cls(content_type)
        except ValueError:
            known = ", ".join(framing.value for framing in cls)
            rule = f"no framing has content type {content_type[:64]!r}: label the journal with one of {known}"
            raise ValidationError(rule) from None

    def decoder(self, begin: int = 0, frame_bytes_max: int = FRAME_BYTES_MAX) -> FrameDecoder:
        """A decoder of a stream whose first byte is at offset `begin`, where a message begins."""
        match self:
            case Framing.JSON:
                return LineDecoder(begin, frame_bytes_max)
            case Framing.FIXED:
                return FixedDecoder(begin, frame_bytes_max)
            case Framing.CSV:
                return CsvDecoder(begin, frame_bytes_max)
