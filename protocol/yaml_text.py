"""YAML as Gazette's tools print it, to the byte: scripts compare the listings of both.

Mappings and lists are printed as blocks, a list at the indent of its key. A text is printed plain where it reads
back as itself, and in the lightest quotes that hold it otherwise; past column 80 it is folded at the next blank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from protocol.errors import InvariantError
from protocol.yaml_scalar import reads_as_text

Value = str | int | bool | Sequence["Value"] | Mapping[str, "Value"]

_INDENT = "  "
_WIDTH = 80

# What makes a plain text look like something else: at its beginning, or anywhere.
_INDICATOR = re.compile(r"""\A(?:---|\.\.\.|[][#,{}&*!|>'"%@`]|[-?:](?: |\Z))|:(?: |\Z)| #""")
# Whatever needs an escape. Line feeds do in a quoted text only.
_SPECIAL = re.compile("[^\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd]")
_ESCAPED = re.compile(f'["\\\\\n]|{_SPECIAL.pattern}')
_ESCAPES = {
    "\0": "\\0",
    "\a": "\\a",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\v": "\\v",
    "\f": "\\f",
    "\r": "\\r",
    "\x1b": "\\e",
    '"': '\\"',
    "\\": "\\\\",
    "\x85": "\\N",
    "\u2028": "\\L",
    "\u2029": "\\P",
}


def block(mapping: Mapping[str, Value], indent: str = "") -> Iterator[str]:
    """The lines of a mapping. A line may hold line feeds, where a text is folded or has several lines."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:" if value else f"{indent}{key}: {{}}"
            yield from block(value, indent + _INDENT)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield f"{indent}{key}:" if value else f"{indent}{key}: []"
            for each in value:
                yield from _item(each, indent)
        else:
            yield f"{indent}{key}: {_scalar(value, len(indent) + len(key) + 2, indent + _INDENT)}"


def item(mapping: Mapping[str, Value], indent: str = "") -> Iterator[str]:
    """The lines of a mapping that is an item of a list."""
    lines = block(mapping, indent + _INDENT)
    yield f"{indent}- {next(lines, '{}').removeprefix(indent + _INDENT)}"
    yield from lines


def _item(value: Value, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from item(value, indent)
    elif isinstance(value, str | int):
        yield f"{indent}- {_scalar(value, len(indent) + 2, indent + _INDENT)}"
    else:
        raise InvariantError("no spec has a list of lists")


def _scalar(value: str | int | bool, column: int, indent: str) -> str:
    """`value` as it is printed from `column` on, with `indent` before each further line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if "\n" in value:
        literal = not (_SPECIAL.search(value) or value.endswith(" ") or " \n" in value)
        return _literal(value, indent) if literal else _double_quoted(value, column, indent)
    if not reads_as_text(value) or _SPECIAL.search(value):
        return _double_quoted(value, column, indent)
    if value.startswith(" ") or value.endswith(" ") or _INDICATOR.search(value):
        return f"'{_folded(value, column + 1, indent, quote=True)}'"
    return _folded(value, column, indent)


def _folded(text: str, column: int, indent: str, *, quote: bool = False) -> str:
    if not quote and column + len(text) <= _WIDTH:
        return text
    folded = []
    for at, char in enumerate(text):
        if char == " " and column > _WIDTH and _is_lone_blank(text, at):
            folded.append(f"\n{indent}")
            column = len(indent)
        else:
            folded.append("''" if quote and char == "'" else char)
            column += len(folded[-1])
    return "".join(folded)


def _double_quoted(text: str, column: int, indent: str) -> str:
    quoted, column = ['"'], column + 1
    for at, char in enumerate(text):
        if char == " " and column > _WIDTH and 0 < at < len(text) - 1 and text[at - 1] != " ":
            # A blank at the beginning of a line would be lost, so it is escaped.
            quoted.append(f"\n{indent}" + ("\\" if text[at + 1] == " " else ""))
            column = len(indent) + (text[at + 1] == " ")
        else:
            quoted.append(_escaped(char) if _ESCAPED.match(char) else char)
            column += len(quoted[-1])
    return "".join([*quoted, '"'])


def _literal(text: str, indent: str) -> str:
    # Which of the line feeds at the end a reader keeps: one of them, unless told otherwise.
    keep = "+" if text == "\n" or text.endswith("\n\n") else "" if text.endswith("\n") else "-"
    hint = str(len(_INDENT)) if text[0] in " \n" else ""
    lines = text.removesuffix("\n").split("\n")
    return "\n".join([f"|{hint}{keep}", *(f"{indent}{line}" if line else "" for line in lines)])


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def _is_lone_blank(text: str, at: int) -> bool:
    return 0 < at < len(text) - 1 and text[at - 1] != " " and text[at + 1] != " "
