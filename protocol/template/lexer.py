"""Tokens of Go's text/template: the text between actions, and what stands inside ``{{`` and ``}}``.

Trim markers and comments are dealt with here; the parser never sees them. Spaces are tokens, because they
separate arguments: ``.A .B`` is two, ``.A.B`` is one.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from protocol.errors import ValidationError

_KEYWORDS = frozenset(("block", "break", "continue", "define", "else", "end", "if", "nil", "range", "template", "with"))

_SPACES = " \t\r\n"
_SPACE = f"[{_SPACES}]"
_LEFT = re.compile(rf"\{{\{{(?P<trim>-(?={_SPACE}))?")
_COMMENT = re.compile(rf"{_SPACE}?/\*(?:(?!\*/).)*\*/(?P<trim>{_SPACE}-)?\}}\}}", re.DOTALL)

_NUMBER = (
    r"(?>[+-]?(?:0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?(?:[pP][+-]?[0-9_]*)?"
    r"|0[oO][0-7_]*(?:\.[0-7_]*)?|0[bB][01_]*(?:\.[01_]*)?"
    r"|[0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]*)?)i?)(?!\w)"
)
"""Cuts out all that is meant as a number, which ``number`` judges: hence atomic, so that no part of it matches."""

# The last space before a trim marker belongs to the marker.
_TOKEN = re.compile(
    rf"(?P<right>(?P<trim>{_SPACE}-)?\}}\}})"
    rf"|(?P<space>{_SPACE}+?(?={_SPACE}-\}}\}})|{_SPACE}+)"
    r"|(?P<declare>:=)|(?P<assign>=)|(?P<pipe>\|)|(?P<open>\()|(?P<close>\))|(?P<comma>,)"
    r'|(?P<string>"(?:[^"\\\n]|\\[^\n])*"|`[^`]*`)'
    r"|(?P<char>'(?:[^'\\\n]|\\[^\n])*')"
    rf"|(?P<number>(?=[+\-0-9]|\.[0-9]){_NUMBER})(?P<complex>(?=[+-]){_NUMBER})?"
    r"|(?P<variable>\$\w*)|(?P<field>\.\w*)|(?P<word>\w+)"
)
_TERMINATOR = re.compile(rf"{_SPACE}|[.,|:()]|\}}\}}|\Z")
_NAMES = frozenset({"variable", "field", "word"})

_DIGITS = r"[0-9](?:_?[0-9])*"
_HEX_DIGITS = r"[0-9a-fA-F](?:_?[0-9a-fA-F])*"
_INTEGER = re.compile(
    rf"[+-]?(?:0[xX]_?(?P<hex>{_HEX_DIGITS})|0[bB](?P<binary>(?:_?[01])+)"
    r"|0[oO]?(?P<octal>(?:_?[0-7])+)|(?P<decimal>0|[1-9](?:_?[0-9])*))"
)
_FLOAT = re.compile(rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")
_HEX_FLOAT = re.compile(rf"[+-]?0[xX]_?(?:{_HEX_DIGITS}(?:\.(?:{_HEX_DIGITS})?)?|\.{_HEX_DIGITS})[pP][+-]?{_DIGITS}")
_BASES = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}

_CHARACTER = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\\'\"])|(?P<octal>[0-3][0-7]{2})|x(?P<byte>[0-9a-fA-F]{2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8}))|(?P<plain>[^\\])",
    re.DOTALL,
)
_SIMPLE = dict(zip("abfnrtv\\'\"", "\a\b\f\n\r\t\v\\'\"", strict=True))


class Token(NamedTuple):
    kind: str
    """``text``, ``left``, ``eof``, ``bool``, a keyword, or the name of a group of the pattern of tokens."""
    text: str


def tokens(template: str) -> list[Token]:
    """Raises a ``ValidationError`` where the text leaves Go's grammar of tokens."""
    found: list[Token] = []
    at = 0
    while left := _LEFT.search(template, at):
        text = template[at : left.start()]
        text = text.rstrip(_SPACES) if left["trim"] else text
        if text:
            found.append(Token("text", text))
        right = _comment(template, left) or _action(template, left.end(), found)
        at = right.end()
        if right["trim"]:
            at = len(template) - len(template[at:].lstrip(_SPACES))
    if at < len(template):
        found.append(Token("text", template[at:]))
    return [*found, Token("eof", "")]


def _comment(template: str, left: re.Match[str]) -> re.Match[str] | None:
    """A comment fills its action: nothing but trim markers stands beside it."""
    begin = left.end() + (1 if left["trim"] else 0)
    if not template.startswith("/*", begin):
        return None
    comment = _COMMENT.match(template, left.end())
    if comment is None:
        raise ValidationError("a comment must be closed, just before the braces that close its action")
    return comment


def _action(template: str, at: int, found: list[Token]) -> re.Match[str]:
    """Add the tokens up to and with the closing braces, whose match is returned."""
    found.append(Token("left", "{{"))
    while token := _TOKEN.match(template, at):
        kind, text, at = token.lastgroup or "", token[0], token.end()
        found.append(_named(text, kind, template, at) if kind in _NAMES else Token(kind, text))
        if kind == "right":
            return token
    raise ValidationError(f"an action is not closed, or cannot be understood from {shown(template[at:])} on")


def _named(text: str, kind: str, template: str, end: int) -> Token:
    # \w knows digits that Go does not count as such.
    if not _TERMINATOR.match(template, end) or not all(
        char == "_" or char.isalpha() or char.isdecimal() for char in text.lstrip("$.")
    ):
        raise ValidationError(f"a name ends with a bad character in {shown(template[end - len(text) :])}")
    if kind != "word":
        return Token("dot" if text == "." else kind, text)
    if text in _KEYWORDS:
        return Token(text, text)
    return Token("bool" if text in ("true", "false") else kind, text)


def shown(text: str) -> str:
    """As an error shows it: escaped, and no longer than some words."""
    return repr(text if len(text) <= 32 else text[:29] + "...")


def number(text: str) -> int | float:
    """The value of a literal; of which type, its syntax decides. Integers of 64 bits, either signed or not."""
    if integer := _INTEGER.fullmatch(text):
        base = integer.lastgroup or ""
        digits = integer[base].replace("_", "")
        # Above this many digits there is no 64-bit integer, and Python would not convert them.
        value = int(digits, _BASES[base]) if base != "decimal" or len(digits) <= 20 else 2**64
        if text[0] == "-":
            value = -value
        if -(2**63) <= value < (2**63 if text[0] in "+-" else 2**64):
            # Go takes a signed hexadecimal with an E for a float.
            return float(value) if text[0] in "+-" and set("eE") & set(text) else value
    elif set(text) & set(".eEpP") and math.isfinite(fraction := _float(text)):
        return fraction
    raise ValidationError(f"{shown(text)} is not a number, or too large for one")


def check_imaginary(text: str) -> None:
    """Before the ``i`` stands a float, which unlike an integer may begin with zeros."""
    if not math.isfinite(_float(text[:-1])):
        raise ValidationError(f"{shown(text)} is not a number, or too large for one")


def _float(text: str) -> float:
    """Infinite if it is no float, or too large for one."""
    digits = text.replace("_", "")
    try:
        if _FLOAT.fullmatch(text):
            return float(digits)
        return float.fromhex(digits) if _HEX_FLOAT.fullmatch(text) else math.inf
    except OverflowError:
        return math.inf


def unquoted(text: str) -> bytes:
    """The bytes that a quoted or raw string stands for: escapes may make them other than UTF-8."""
    body = text[1:-1]
    return body.replace("\r", "").encode() if text[0] == "`" else b"".join(_unescaped(body))


def character(text: str) -> int:
    """The code point of a character constant."""
    found = _CHARACTER.fullmatch(text[1:-1])
    if found is None or found[0] == '\\"':
        raise ValidationError(f"{shown(text)} is not one character")
    return _code(found)


def _unescaped(body: str) -> list[bytes]:
    parts: list[bytes] = []
    at = 0
    while at < len(body):
        found = _CHARACTER.match(body, at)
        if found is None or found[0] == "\\'":
            raise ValidationError(f"a string has a bad escape at {shown(body[at:])}")
        code = _code(found)
        parts.append(bytes([code]) if found["octal"] or found["byte"] else chr(code).encode())
        at = found.end()
    return parts


def _code(found: re.Match[str]) -> int:
    kind = found.lastgroup or ""
    text = found[kind]
    if kind in ("plain", "simple"):
        return ord(text if kind == "plain" else _SIMPLE[text])
    code = int(text, 8 if kind == "octal" else 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise ValidationError(f"{shown(found[0])} is no character")
    return code
