"""The algebra of partial specs, field by field, where a field at its zero value is not set.

Push-down is ``union``: a child keeps what it sets and takes the rest from its parent. Hoisting is its
inverse: the parent becomes the ``intersect`` of its children, and each child is left with what ``subtract``
leaves. For specs a, b, ... with the intersection p, ``union(subtract(a, p), p)`` is a again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Fields = Iterable[Any]
"""The values of a spec's fields in a fixed order; what ``operator.attrgetter`` of several names returns."""


def union(ours: Fields, theirs: Fields) -> Iterator[Any]:
    """Our fields, and theirs where ours are not set."""
    return (our or their for our, their in zip(ours, theirs, strict=True))


def intersect(ours: Fields, theirs: Fields, zeros: Fields) -> Iterator[Any]:
    """The fields that are the same in both."""
    return (our if our == their else zero for our, their, zero in zip(ours, theirs, zeros, strict=True))


def subtract(ours: Fields, theirs: Fields, zeros: Fields) -> Iterator[Any]:
    """Our fields, but for those that are the same in both."""
    return (zero if our == their else our for our, their, zero in zip(ours, theirs, zeros, strict=True))
