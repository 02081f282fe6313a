"""ProtoStamp: puts a UUID into a protobuf message.

The field goes behind the message as it is: of a field that comes twice the last counts, and messages within messages
are merged. So nothing else of it is touched, fields that the descriptor does not know included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from protocol.errors import ValidationError

_SOME_UUID = "00000000-0000-1000-8000-000000000000"


class ProtoStamp:
    def __init__(self, kind: type[Message], path: Sequence[str]) -> None:
        """`path` names a field of bytes or text, where readers of the same type look for it."""
        self._kind = kind
        self._is_text = _checked(kind.DESCRIPTOR, path).type == FieldDescriptor.TYPE_STRING
        only = kind()
        within: Any = only
        for name in path[:-1]:
            within = getattr(within, name)
        setattr(within, path[-1], _SOME_UUID if self._is_text else self._raw(_SOME_UUID))
        if not only.IsInitialized():
            raise ValidationError(
                f"{kind.DESCRIPTOR.full_name} has required fields, so that no acknowledgement, which is a message of "
                "nothing but a UUID, can be written: make them optional",
                "messageName",
            )
        # Around the UUID; behind it there are only ends of groups, which few have.
        self._before, _, self._after = only.SerializeToString().rpartition(self._raw(_SOME_UUID))

    def stamped(self, message: bytes, uuid: str) -> bytes:
        """Raises a ValidationError if it is no such message: readers could not tell that it has a UUID."""
        try:
            self._kind.FromString(message)
        except DecodeError as error:
            raise ValidationError(f"a value is no {self._kind.DESCRIPTOR.full_name}: {error}") from None
        return b"".join((message, self._before, self._raw(uuid), self._after))

    def _raw(self, uuid: str) -> bytes:
        return uuid.encode() if self._is_text else bytes.fromhex(uuid.replace("-", ""))


def _checked(of: Any, path: Sequence[str]) -> Any:
    """The field at the end of a path, if a UUID can be put there."""
    field: Any = None
    for at, name in enumerate(path):
        field = of.fields_by_name.get(name) if of is not None else None
        if field is None or field.is_repeated:
            raise ValidationError(
                f"{'.'.join(path[: at + 1])} is no single field of the message: name one of type bytes or string",
                "uuidField",
            )
        if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
            raise ValidationError(f"{name} is one of several, of which a UUID would drop the others", "uuidField")
        of = field.message_type
    if field.type not in (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING):
        raise ValidationError(f"{'.'.join(path)} can hold no UUID: expected a field of bytes or string", "uuidField")
    return field
