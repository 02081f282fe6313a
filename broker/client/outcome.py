"""How a call can end beside the ways that ``protocol.errors`` knows.

An append has three outcomes. It is done: ``Appended`` says where. It was refused, by a ``RefusedError`` or another
error of ``protocol.errors``: then nothing was written. Or that is not known: ``UnknownOutcomeError``.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import GazetteError, PermissionDeniedError, UnauthenticatedError, ValidationError
from protocol.label import LabelSet

REFUSED_MARK = ("pygazette-append", "refused")
"""What a broker of our kind says in the trailing metadata of an append that failed before anybody was asked to commit
it: it was not done, and never will be. Of a failure without it that is not known."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The bytes [begin, end) of the journal are those that were given."""

    journal: str
    begin: int
    end: int
    # Of the journal, after this append.
    registers: LabelSet
    # SHA-1 of all that was written by the call. Several appends of an ``AppendService`` may share one.
    sum: bytes
    # How many messages the broker counted, and how many of them it held back for the sake of the journal's rate.
    total_chunks: int = 0
    delayed_chunks: int = 0


class UnknownOutcomeError(GazetteError):
    """A change was sent and no answer came: it may have been made, or may yet be made, or not.

    It is not repeated unless the caller asked for that, since then it might be made twice. Whoever has to know looks:
    for an append, at what the journal holds from the offset on at which it was last known to end.
    """


class FailedCallError(GazetteError):
    """A broker gave up on a call for a reason of its own, or gave an answer that makes no sense.

    The same call may well fail again: what it says is for people.
    """


_REFUSALS = (UnauthenticatedError, PermissionDeniedError, ValidationError)


def is_refusal(error: GazetteError) -> bool:
    """Whether a broker has turned a change away before it made any of it."""
    return isinstance(error, _REFUSALS)
