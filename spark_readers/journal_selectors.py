"""What brokers are asked for, so that they need not tell of every journal there is."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.alphabet import is_path
from protocol.label import Label, LabelSet
from protocol.selector import LabelSelector
from spark_readers.read_options import JournalChoice

NAMES_MAX = 256
"""Of a request. A name has 512 bytes at most."""

_SPECIAL = frozenset(".^$*+?{}[]|()\\")
_REPEATS = frozenset("*+?{")


def journal_selectors(journals: JournalChoice) -> Sequence[LabelSelector]:
    """Selectors that together match whatever was chosen. By a pattern they may match others as well.

    >>> [str(one) for one in journal_selectors(JournalChoice(pattern="acme/(orders|items)-[0-9]+"))]
    ['name:prefix=acme/']
    """
    if journals.selector:
        return [LabelSelector.parse(journals.selector)]
    if journals.names:
        groups = [journals.names[at : at + NAMES_MAX] for at in range(0, len(journals.names), NAMES_MAX)]
        return [LabelSelector(LabelSet.of(*(("name", name) for name in group))) for group in groups]
    prefix = _literal_prefix(journals.pattern)
    return [LabelSelector(LabelSet((Label("name", prefix, prefix=True),)) if prefix else LabelSet())]


def _literal_prefix(pattern: str) -> str:
    """What every text begins with that the regular expression matches as a whole; less than that if in doubt."""
    if _has_alternatives(pattern):
        return ""
    found: list[str] = []
    at = 1 if pattern.startswith("^") else 0
    while at < len(pattern):
        width = 1
        literal = pattern[at]
        if literal == "\\" and not pattern[at + 1 : at + 2].isalnum():
            literal, width = pattern[at + 1 : at + 2], 2
        elif literal in _SPECIAL:
            break
        if pattern[at + width : at + width + 1] in _REPEATS:
            break
        found.append(literal)
        at += width
    prefix = "".join(found)
    return prefix if is_path(prefix) else ""


def _has_alternatives(pattern: str) -> bool:
    """Whether there is a ``|`` outside of groups, or a flag, which may change what all other characters mean."""
    if pattern.startswith("(?"):
        return True
    depth = 0
    is_class = False
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif is_class:
            is_class = char != "]"
        elif char == "[":
            is_class = True
            # Here it is one of the characters.
            at += 2 if pattern[at + 1 : at + 3] == "^]" else pattern[at + 1 : at + 2] == "]"
        elif char == "|" and depth == 0:
            return True
        else:
            depth += (char == "(") - (char == ")")
        at += 1
    return False
