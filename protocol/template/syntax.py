"""The grammar of Go's text/template: a template's text becomes a tree, or is refused where Go refuses it.

The whole language is parsed, of which only a part is evaluated, because a spec may hold any template that Go
accepts. What is never evaluated is kept as ``Unsupported``, which says what it is.
"""

from __future__ import annotations

from protocol.errors import ValidationError
from protocol.template.functions import BUILTINS
from protocol.template.lexer import Token, character, check_imaginary, number, shown, tokens, unquoted
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

BYTES_MAX = 16 * 1024
DEPTH_MAX = 50
"""Of parentheses and blocks within each other. Python's stack is finite, and so is a reader's patience."""

_FUNCTIONS = {*BUILTINS, "and", "or"}
_STATEMENTS = {"if", "with", "range", "else", "end", "break", "continue", "template", "block"}

# Go names the template itself, and it may include itself.
_NAME = "postfix"


def parse(template: str) -> Tree:
    """Raises a ``ValidationError`` where Go's parser fails, and on a template beyond all reason."""
    try:
        size = len(template.encode())
    except UnicodeEncodeError:
        raise ValidationError("a template must be UTF-8") from None
    if size > BYTES_MAX:
        raise ValidationError(f"a template may have {BYTES_MAX} bytes (got {size})")
    return _Parser(tokens(template)).tree()


class _Parser:
    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._at = 0
        self._depth = 0
        self._range_depth = 0
        self._variables = ["$"]
        self._defined: dict[str, tuple[Node, ...]] = {}

    def tree(self) -> Tree:
        nodes: list[Node] = []
        while self._peek().kind != "eof":
            if self._peek().kind == "left" and self._after_spaces(self._at + 1).kind == "define":
                self._next_after_spaces()
                self._next_after_spaces()
                self._definition()
                continue
            node = self._node()
            if isinstance(node, Token):
                raise ValidationError(f"unexpected {{{{{node.kind}}}}}")
            nodes.append(node)
        self._define(_NAME, tuple(nodes))
        return Tree(tuple(nodes), frozenset(self._defined))

    def _definition(self) -> None:
        name = self._template_name()
        self._expect("right")
        self._define(name, self._detached_body())

    def _detached_body(self) -> tuple[Node, ...]:
        """A body that is a template of its own: neither variables nor ranges reach into it."""
        variables, ranges = self._variables, self._range_depth
        self._variables, self._range_depth = ["$"], 0
        body, end = self._body()
        if end.kind != "end":
            raise ValidationError("a definition must close with {{end}}")
        self._variables, self._range_depth = variables, ranges
        return body

    def _define(self, name: str, body: tuple[Node, ...]) -> None:
        if not _is_empty(self._defined.get(name, ())) and not _is_empty(body):
            raise ValidationError(f"template {shown(name)} is defined twice")
        if _is_empty(self._defined.get(name, ())):
            self._defined[name] = body

    def _body(self) -> tuple[tuple[Node, ...], Token]:
        """What stands before the next ``end`` or ``else``, and which it was."""
        self._descend()
        nodes: list[Node] = []
        while self._peek_after_spaces().kind != "eof":
            node = self._node()
            if isinstance(node, Token):
                self._depth -= 1
                return tuple(nodes), node
            nodes.append(node)
        raise ValidationError("an {{end}} is missing")

    def _node(self) -> Node | Token:
        token = self._next_after_spaces()
        if token.kind == "text":
            return Text(token.text)
        if token.kind != "left":
            raise _unexpected(token, "template")
        token = self._peek_after_spaces()
        if token.kind not in _STATEMENTS:
            return Action(self._pipeline("action", "right"))
        self._at += 1
        return self._statement(token)

    def _statement(self, token: Token) -> Node | Token:
        """Of ``else`` and ``end`` the token itself, which closes the body that they stand in."""
        match token.kind:
            case "if" | "with" | "range":
                return self._block(token.kind)
            case "template" | "block":
                return self._include(token.kind)
            case "else" if self._peek_after_spaces().kind in ("if", "with"):
                return token
            case _:
                self._expect("right")
        if token.kind in ("else", "end"):
            return token
        if not self._range_depth:
            raise ValidationError(f"{{{{{token.kind}}}}} outside of {{{{range}}}}")
        return Jump(token.kind)

    def _block(self, keyword: str) -> Block:
        declared = len(self._variables)
        pipeline = self._pipeline(keyword, "right")
        self._range_depth += keyword == "range"
        body, end = self._body()
        self._range_depth -= keyword == "range"
        otherwise: tuple[Node, ...] = ()
        if end.kind == "else":
            if keyword != "range" and self._peek().kind == keyword:
                # {{else if}} is an {{if}} inside of {{else}}, and shares its {{end}}.
                self._at += 1
                self._descend()
                otherwise = (self._block(keyword),)
                self._depth -= 1
            else:
                otherwise, end = self._body()
                if end.kind != "end":
                    raise ValidationError("expected {{end}} after {{else}}")
        del self._variables[declared:]
        return Block(keyword, pipeline, body, otherwise)

    def _include(self, keyword: str) -> Include:
        name = self._template_name()
        if keyword == "block":
            self._pipeline(keyword, "right")
            self._define(name, self._detached_body())
        elif self._peek_after_spaces().kind == "right":
            self._at += 1
        else:
            self._pipeline(keyword, "right")
        return Include(name)

    def _template_name(self) -> str:
        return unquoted(self._expect("string").text).decode(errors="replace")

    def _pipeline(self, context: str, end: str) -> Pipeline:
        variables, assigns = self._declarations(context)
        commands: list[tuple[Operand, ...]] = []
        while self._peek_after_spaces().kind != end:
            commands.append(self._command())
        self._at += 1
        if not commands:
            raise ValidationError(f"a value is missing in {context}")
        for command in commands[1:]:
            if isinstance(command[0], Literal | Unsupported | Dot | Nil):
                raise ValidationError("only the first stage of a pipeline may be a constant or the dot")
        return Pipeline(tuple(commands), variables, assigns)

    def _declarations(self, context: str) -> tuple[tuple[str, ...], bool]:
        variables: list[str] = []
        while self._peek_after_spaces().kind == "variable":
            name, after = self._peek().text, self._after_spaces(self._at + 1)
            if after.kind not in ("assign", "declare", "comma"):
                break
            self._next_after_spaces()
            self._next_after_spaces()
            variables.append(name)
            self._variables.append(name)
            if after.kind != "comma":
                return tuple(variables), after.kind == "assign"
            if context != "range" or len(variables) > 1:
                raise ValidationError(f"too many declarations in {context}")
            if self._peek_after_spaces().kind not in ("variable", "right", "close"):
                raise ValidationError("range can only initialize variables")
        return tuple(variables), False

    def _command(self) -> tuple[Operand, ...]:
        """Operands with spaces between; through its ``|``, but short of what else may end it."""
        operands: list[Operand] = []
        while True:
            self._peek_after_spaces()
            operand = self._operand()
            if operand is not None:
                operands.append(operand)
            token = self._peek()
            if token.kind == "space":
                continue
            if token.kind == "pipe":
                self._at += 1
            elif token.kind not in ("right", "close"):
                raise _unexpected(token, "operand")
            if not operands:
                raise _unexpected(token, "command")
            return tuple(operands)

    def _operand(self) -> Operand | None:
        term = self._term()
        names: list[str] = []
        while term is not None and self._peek().kind == "field":
            names.append(self._peek().text[1:])
            self._at += 1
        match term:
            case _ if not names:
                return term
            case Field():
                return Field((*term.names, *names))
            case Variable():
                return Variable(term.name, tuple(names))
            case Pipeline() | Function():
                return Chain(term, tuple(names))
            case _:
                raise ValidationError("a constant or the dot has no fields")

    def _term(self) -> Operand | None:
        token = self._peek()
        self._at += 1
        match token.kind:
            case "word" if token.text in _FUNCTIONS:
                return Function(token.text)
            case "word":
                raise ValidationError(f"function {shown(token.text)} is not defined")
            case "dot":
                return Dot()
            case "nil":
                return Nil()
            case "variable" if token.text in self._variables:
                return Variable(token.text)
            case "variable":
                raise ValidationError(f"variable {shown(token.text)} is not defined")
            case "field":
                return Field((token.text[1:],))
            case "open":
                self._descend()
                pipeline = self._pipeline("parentheses", "close")
                self._depth -= 1
                return pipeline
            case "bool" | "char" | "number" | "complex" | "string":
                return _constant(token)
            case _:
                self._at -= 1
                return None

    def _descend(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ValidationError(f"blocks and parentheses may nest {DEPTH_MAX} deep")

    def _expect(self, kind: str) -> Token:
        token = self._next_after_spaces()
        if token.kind != kind:
            raise _unexpected(token, f"place of {kind}")
        return token

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _peek_after_spaces(self) -> Token:
        if self._tokens[self._at].kind == "space":
            self._at += 1
        return self._tokens[self._at]

    def _next_after_spaces(self) -> Token:
        token = self._peek_after_spaces()
        self._at += 1
        return token

    def _after_spaces(self, at: int) -> Token:
        return self._tokens[at + 1 if self._tokens[at].kind == "space" else at]


def _constant(token: Token) -> Literal | Unsupported:
    match token.kind:
        case "bool":
            return Literal(token.text == "true")
        case "char":
            return Literal(character(token.text))
        case "string":
            try:
                return Literal(unquoted(token.text).decode())
            except UnicodeDecodeError:
                return Unsupported("a string that is not UTF-8")
        case "complex":
            if not token.text.endswith("i"):
                raise ValidationError(f"{shown(token.text)} is not a number")
            return Unsupported("a complex number")
        case _ if token.text.endswith("i"):
            check_imaginary(token.text)
            return Unsupported("a complex number")
        case _:
            return Literal(number(token.text))


def _is_empty(nodes: tuple[Node, ...]) -> bool:
    return all(isinstance(node, Text) and not node.text.strip() for node in nodes)


def _unexpected(token: Token, where: str) -> ValidationError:
    return ValidationError(f"unexpected {shown(token.text) if token.text else 'end'} in the {where}")
