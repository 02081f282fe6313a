"""Running a parsed template over an object: what Go's text/template does, within bounds.

Variables live until the ``end`` of the block that declares them, and the value of each stage of a pipeline is
the last argument of the next. Work and output are bounded, because a template is a small program from outside.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.errors import ValidationError
from protocol.template.functions import BUILTINS, kind, truth
from protocol.template.go_format import TEXT_MAX, BeyondSubsetError, text_of, too_long
from protocol.template.lexer import shown
from protocol.template.objects import Beyond, Method, Value, Verdict, member
from protocol.template.tree import (
    Action,
    Block,
    Chain,
    Dot,
    Field,
    Function,
    Include,
    Jump,
    Literal,
    Nil,
    Node,
    Operand,
    Pipeline,
    Text,
    Tree,
    Unsupported,
    Variable,
)

# One for each node and command, and one for each so many characters made: far more than any path takes, and
# few enough to be done in some hundredths of a second.
_STEPS_MAX = 10_000
_CHARS_PER_STEP = 64

_MISSING = object()
"""Stands for no value from the stage of a pipeline before, where nil would be one."""


class Evaluation:
    """One run of a template. `tolerant` passes over actions that only print what we cannot print."""

    def __init__(self, tree: Tree, root: object, tolerant: bool = False) -> None:
        self._tree = tree
        self._tolerant = tolerant
        self._variables: list[tuple[str, object]] = [("$", root)]
        self._written: list[str] = []
        self._size = 0
        self._steps = 0

    def run(self) -> str:
        self._walk(self._tree.nodes, self._variables[0][1])
        return "".join(self._written)

    def _walk(self, nodes: tuple[Node, ...], dot: object) -> str | None:
        """Returns the keyword of a jump that ended the walk early."""
        for node in nodes:
            self._spend(1)
            match node:
                case Text(text):
                    self._write(text)
                case Action():
                    self._act(node.pipeline, dot)
                case Jump(keyword):
                    return keyword
                case Include(name) if name in self._tree.defined:
                    raise BeyondSubsetError("includes another template")
                case Include(name):
                    raise ValidationError(f"template {shown(name)} is not defined")
                case Block():
                    declared = len(self._variables)
                    jump = self._range(node, dot) if node.keyword == "range" else self._choose(node, dot)
                    del self._variables[declared:]
                    if jump is not None:
                        return jump
        return None

    def _act(self, pipeline: Pipeline, dot: object) -> None:
        try:
            value = self._piped(pipeline, dot)
            if not pipeline.variables:
                self._write("<no value>" if value is None else text_of(value))
        except BeyondSubsetError:
            if not self._tolerant or pipeline.variables:
                raise

    def _choose(self, block: Block, dot: object) -> str | None:
        value = self._piped(block.pipeline, dot)
        if not truth(value):
            return self._walk(block.otherwise, dot)
        return self._walk(block.body, value if block.keyword == "with" else dot)

    def _range(self, block: Block, dot: object) -> str | None:
        pipeline = block.pipeline
        items = self._items(self._piped(pipeline, dot), len(pipeline.variables))
        declared = len(self._variables)
        empty = True
        for position, item in items:
            empty = False
            self._spend(1)
            # Of two variables the first takes the position; one alone takes the item.
            values = (position, item)[-len(pipeline.variables) :]
            for at, (name, value) in enumerate(zip(pipeline.variables, values, strict=False)):
                if pipeline.assigns:
                    self._assign(name, value)
                else:
                    self._variables[declared - len(pipeline.variables) + at] = name, value
            jump = self._walk(block.body, item)
            del self._variables[declared:]
            if jump == "break":
                break
        return self._walk(block.otherwise, dot) if empty else None

    def _items(self, value: object, variables: int) -> Iterator[tuple[object, object]]:
        if value is None:
            return iter(())
        if type(value) is tuple or isinstance(value, bytes):
            return enumerate(value)
        if kind(value) == "integer":
            if variables > 1:
                raise ValidationError("range over a number has one variable only")
            if type(value) is not int:
                raise BeyondSubsetError("ranges over a number that has a name")
            return ((None, each) for each in range(value))
        raise ValidationError(f"cannot range over {kind(value)}")

    def _piped(self, pipeline: Pipeline, dot: object) -> object:
        value: object = _MISSING
        for command in pipeline.commands:
            value = self._command(command, dot, value)
            self._spend(1 + (len(value) // _CHARS_PER_STEP if isinstance(value, str) else 0))
        for name in pipeline.variables:
            if pipeline.assigns:
                self._assign(name, value)
            else:
                self._variables.append((name, value))
        return value

    def _command(self, command: tuple[Operand, ...], dot: object, final: object) -> object:
        """`final` is the value of the stage before, which becomes the last argument."""
        first, arguments = command[0], command[1:]
        match first:
            case Field() | Chain() | Variable(names=(_, *_)):
                return self._follow(first, arguments, dot, final)
            case Function(name):
                return self._call(name, arguments, dot, final)
            case _ if arguments or final is not _MISSING:
                raise ValidationError("only functions and methods take arguments")
            case Nil():
                raise ValidationError("nil is not a command")
            case _:
                return self._operand(first, dot)

    def _operand(self, operand: Operand, dot: object) -> object:
        match operand:
            case Literal(value):
                if isinstance(value, int) and value >= 2**63:
                    raise ValidationError("a number is too large for an integer")
                return value
            case Unsupported(what):
                raise BeyondSubsetError(f"uses {what}")
            case Nil():
                return None
            case Dot():
                return dot
            case Pipeline():
                return self._piped(operand, dot)
            case Function(name):
                return self._call(name, (), dot, _MISSING)
            case Variable(name, ()):
                return self._value(name)
            case Variable() | Field() | Chain():
                return self._follow(operand, (), dot, _MISSING)

    def _owner(self, operand: Field | Chain | Variable, dot: object) -> object:
        """What the names of the operand start from."""
        match operand:
            case Field():
                return dot
            case Variable(name):
                return self._value(name)
            case Chain(of):
                return self._operand(of, dot)

    def _follow(
        self, operand: Field | Chain | Variable, arguments: tuple[Operand, ...], dot: object, final: object
    ) -> object:
        """Member by member; the last, if it is a method, takes the arguments."""
        owner = self._owner(operand, dot)
        for name in operand.names[:-1]:
            owner = self._member(owner, name, (), dot, _MISSING)
        return self._member(owner, operand.names[-1], arguments, dot, final)

    def _member(self, owner: object, name: str, operands: tuple[Operand, ...], dot: object, final: object) -> object:
        if owner is None:
            return None
        found = member(owner, name)
        wanted = 0 if isinstance(found, Value) else found.arguments
        if wanted != len(operands) + (final is not _MISSING):
            raise ValidationError(f".{name} takes {wanted} arguments")
        arguments = self._arguments(operands, dot, final)
        match found:
            case Value(get):
                return get(owner)
            case Beyond():
                raise BeyondSubsetError(f"calls .{name}")
            case Method(call):
                if any(type(argument) is not str for argument in arguments):
                    raise ValidationError(f".{name} takes a string")
                return call(owner, *arguments)

    def _call(self, name: str, operands: tuple[Operand, ...], dot: object, final: object) -> object:
        if name in ("and", "or"):
            return self._decide(name == "or", operands, dot, final)
        builtin, count = BUILTINS[name], len(operands) + (final is not _MISSING)
        if count < builtin.least or (builtin.most is not None and count > builtin.most):
            raise ValidationError(f"{name} does not take {count} arguments")
        return builtin.call(*self._arguments(operands, dot, final))

    def _decide(self, wanted: bool, operands: tuple[Operand, ...], dot: object, final: object) -> object:
        """The first value whose truth settles it, or else the last. What follows is not evaluated."""
        value = final
        for operand in operands:
            value = self._operand(operand, dot)
            if truth(value) is wanted:
                return value
        if value is _MISSING:
            raise ValidationError("and, or take at least one argument")
        return value if final is _MISSING else final

    def _arguments(self, operands: tuple[Operand, ...], dot: object, final: object) -> list[object]:
        values = [self._operand(operand, dot) for operand in operands]
        if final is not _MISSING:
            values.append(final)
        # No error, once it is passed on, is nil like any other.
        return [None if isinstance(value, Verdict) and value.holds else value for value in values]

    def _value(self, name: str) -> object:
        for declared, value in reversed(self._variables):
            if declared == name:
                return value
        raise ValidationError(f"variable {shown(name)} is not defined")

    def _assign(self, name: str, value: object) -> None:
        for at in range(len(self._variables) - 1, -1, -1):
            if self._variables[at][0] == name:
                self._variables[at] = name, value
                return
        raise ValidationError(f"variable {shown(name)} is not defined")

    def _write(self, text: str) -> None:
        self._size += len(text)
        if self._size > TEXT_MAX:
            raise too_long()
        self._written.append(text)

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _STEPS_MAX:
            raise ValidationError(f"takes more than {_STEPS_MAX} steps to evaluate")
