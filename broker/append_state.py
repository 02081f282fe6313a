"""What an append waits for, or how it ended."""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    RESOLVE = auto()
    ACQUIRE_PIPELINE = auto()
    START_PIPELINE = auto()
    READ_HEAD = auto()
    PREPARE_SPOOL = auto()
    OPEN_PIPELINE = auto()
    SYNCHRONISE = auto()
    CONFIRM_RESET = auto()
    AWAIT_LISTING = auto()
    UPDATE_ASSIGNMENTS = auto()
    UPDATE_SUSPEND = auto()
    VALIDATE_PRECONDITIONS = auto()
    STREAM_CONTENT = auto()
    SEAL_CONTENT = auto()
    READ_ACKS = auto()
    READ_ROLLBACK_ACKS = auto()
    SHOW = auto()
    PROXY = auto()
    FINISHED = auto()

    @property
    def waits_while_valid(self) -> bool:
        """Whether the wait ends when the Resolution does not hold any more."""
        return self in _WAITS_WHILE_VALID

    @property
    def may_fail(self) -> bool:
        """The others have a pipeline to tell them of failures, or something to wait for that cannot fail."""
        return self in _MAY_FAIL


_WAITS_WHILE_VALID = frozenset(
    (State.ACQUIRE_PIPELINE, State.START_PIPELINE, State.AWAIT_LISTING, State.VALIDATE_PRECONDITIONS)
)
_MAY_FAIL = frozenset(
    (
        State.RESOLVE,
        State.START_PIPELINE,
        State.READ_HEAD,
        State.PREPARE_SPOOL,
        State.CONFIRM_RESET,
        State.AWAIT_LISTING,
        State.UPDATE_ASSIGNMENTS,
        State.UPDATE_SUSPEND,
        State.VALIDATE_PRECONDITIONS,
        State.STREAM_CONTENT,
        State.SEAL_CONTENT,
    )
)
