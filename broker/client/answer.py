"""Answers of brokers: judged before they are believed, and turned into errors where they are refusals."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from broker.client.outcome import FailedCallError
from protocol.errors import RefusedError, Status, ValidationError
from protocol.label import LabelSet
from protocol.validation import validate

M = TypeVar("M", bound=Message)

_DETAIL_MAX = 256


def decoded(kind: type[M], raw: bytes | None, endpoint: str) -> M:
    """Raises a FailedCallError: what breaks the rules is no answer. gRPC gives None where a call ended without one."""
    if raw is None:
        raise FailedCallError(f"{endpoint}: it ended a call as successful without an answer")
    try:
        message = kind.FromString(raw)
        validate(message)
    except DecodeError as error:
        raise FailedCallError(f"{endpoint}: its answer is not a message of the expected type") from error
    except ValidationError as error:
        raise FailedCallError(f"{endpoint}: its answer makes no sense: {error}") from error
    return message


def check_ok(status: int, detail: str = "") -> None:
    """Raise the RefusedError of a status that is not OK."""
    if status:
        raise RefusedError(Status(status), detail[:_DETAIL_MAX])


def shown(labels: LabelSet) -> str:
    """Registers as they are shown in an error.

    >>> shown(LabelSet.of(("author", "a1b2"), ("zone", "eu")))
    'the registers are author=a1b2, zone=eu'
    """
    return "the registers are " + (", ".join(f"{name}={value}" for name, value, _ in labels) or "empty")
