"""What a template of Go's text/template parses into. Trees are immutable, so one serves every rendering."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    value: bool | int | float | str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A constant that Go knows and we do not evaluate."""

    what: str


@dataclass(frozen=True, slots=True)
class Nil:
    pass


@dataclass(frozen=True, slots=True)
class Dot:
    pass


@dataclass(frozen=True, slots=True)
class Field:
    """``.A.B``, read from the dot."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """``$x.A.B``; the name holds the dollar sign."""

    name: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """``(pipeline).A.B``"""

    of: Pipeline | Function
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    commands: tuple[tuple[Operand, ...], ...]
    variables: tuple[str, ...] = ()
    assigns: bool = False
    """Whether the variables exist already, and are not declared here."""


Operand = Literal | Unsupported | Nil | Dot | Field | Variable | Function | Chain | Pipeline


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Action:
    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Block:
    """``if``, ``with`` or ``range``."""

    keyword: str
    pipeline: Pipeline
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Jump:
    """``break`` or ``continue``."""

    keyword: str


@dataclass(frozen=True, slots=True)
class Include:
    """``template`` or ``block``."""

    name: str


Node = Text | Action | Block | Jump | Include


@dataclass(frozen=True, slots=True)
class Tree:
    nodes: tuple[Node, ...]
    defined: frozenset[str]
    """Templates that an ``Include`` may name."""
