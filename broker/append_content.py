"""AppendContent: what a client sends in one append, and what its commit is of."""

from __future__ import annotations

import hashlib

from broker.append_event import AppendOpening
from broker.proposal import Head
from protocol import registers
from protocol.errors import ValidationError
from protocol.fragment import Fragment
from protocol.journal import JournalSpec, SuspendMode
from protocol.label import LabelSet

_EMPTY_SUM = hashlib.sha1().digest()
_BARRIERS_ONLY = frozenset((SuspendMode.IF_FLUSHED, SuspendMode.NOW, SuspendMode.KEEP))


class AppendContent:
    def __init__(self, opening: AppendOpening) -> None:
        self._opening = opening
        # Whether the client wants what it has sent committed.
        self.has_intent = False
        # Whether its word that there is no content came before it was asked for any.
        self.is_confirmed = False
        # Where it begins, how much of it was sent, and the SHA-1 of all of it.
        self._begin = 0
        self._sent = 0
        self._sum = _EMPTY_SUM
        # To be committed with it.
        self.registers = LabelSet()

    @property
    def is_empty(self) -> bool:
        return not self._sent

    @property
    def end(self) -> int:
        return self._begin + self._sent

    def begin(self, head: Head) -> None:
        self._begin, self.registers = head.end, head.registers

    def is_allowed(self, spec: JournalSpec) -> bool:
        return spec.may_write and self._opening.suspend not in _BARRIERS_ONLY

    def sent(self, data: bytes | memoryview) -> int:
        """How much was sent before."""
        delta, self._sent = self._sent, self._sent + len(data)
        return delta

    def ended(self) -> ValidationError | None:
        """What is wrong with it as it ended. Without the client's word that proves nothing: a killed client's stream
        ends just so."""
        opening = self._opening
        if not self.has_intent:
            return ValidationError("unexpected EOF: an append ends with an empty Content chunk")
        changes_registers = bool(opening.union_registers or opening.subtract_registers)
        # An operator who has just said where the journal goes on has said with which registers, too.
        if self.is_empty and changes_registers and not self.is_confirmed:
            return ValidationError("register modification requires non-empty Append")
        return None

    def sealed(self, content_sum: bytes) -> None:
        opening = self._opening
        self._sum = content_sum
        self.registers = registers.changed(self.registers, opening.subtract_registers, opening.union_registers)

    def commit(self, fragment: Fragment) -> Fragment:
        """The bytes of this append alone, out of the `fragment` that they were committed in."""
        return Fragment(fragment.journal, self._begin, self.end, self._sum, fragment.codec)
