"""Texts of values as Go's fmt package prints them, for the templates of fragment path postfixes.

Go's kinds map to Python's types: bool, int (of any width and sign), float, str, tuple (a slice), bytes (an
array of bytes) and None (nil). A value whose Go type has a ``String`` method is a ``Stringer``, a struct that
prints field by field is a ``Record``. What is left is not worth printing into a path, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from protocol.errors import ValidationError

TEXT_MAX = 64 * 1024
"""Characters a template may make of anything, which bounds what a hostile one can cost."""

_DIRECTIVE = re.compile(r"%([-+# 0]*)(\d*)(?:(\.)(\d*))?(.)?", re.DOTALL)
_STRING_VERBS = frozenset("vsqxX")
_BASES = {"v": "d", "d": "d", "x": "x", "X": "X", "o": "o", "b": "b"}
_ESCAPES = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    "\\": r"\\",
    '"': r"\"",
}


class BeyondSubsetError(ValidationError):
    """Go would go on where we stop: a spec that holds such a template is valid, but we cannot evaluate it."""


class Stringer:
    """A value that Go prints by calling its ``String`` method."""

    def text(self) -> str:
        raise NotImplementedError


class Enumerated(int, Stringer):
    """An integer whose values have names."""

    names: ClassVar[Mapping[int, str]] = {}

    def text(self) -> str:
        return self.names.get(self) or str(int(self))


class Record:
    """A struct that Go prints as its fields within braces."""

    def fields(self) -> tuple[object, ...]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Directive:
    """One ``%`` of a format."""

    verb: str
    flags: str = ""
    width: int = 0
    precision: int | None = None

    def padded(self, text: str) -> str:
        if "-" in self.flags:
            return text.ljust(self.width)
        return text.rjust(self.width, "0" if "0" in self.flags else " ")

    def without(self, flags: str) -> None:
        """Refuse flags whose effect here we do not reproduce."""
        if set(flags) & set(self.flags):
            raise self.beyond()

    def beyond(self) -> BeyondSubsetError:
        return BeyondSubsetError(
            f"printf cannot print this value as %{self.flags[:8]}{self.verb}: use %v, %s, %q, %d, %x, %t or %f, "
            "each with the kind of value it is for"
        )


_PLAIN = Directive("v")


def text_of(value: object) -> str:
    """What ``%v`` prints."""
    return _formatted(value, _PLAIN)


def sprint(values: Iterable[object]) -> str:
    """All values, with a space between two of which neither is a string."""
    return _bounded(_sprinted(values))


def _sprinted(values: Iterable[object]) -> Iterator[str]:
    after_string = True
    for value in values:
        is_string = isinstance(value, str)
        if not is_string and not after_string:
            yield " "
        yield text_of(value)
        after_string = is_string


def sprintln(values: Iterable[object]) -> str:
    """All values, with spaces between."""
    return _bounded(text_of(value) + " " for value in values)[:-1] + "\n"


def sprintf(form: str, values: tuple[object, ...]) -> str:
    return _bounded(_sprintfed(form, values))


def _sprintfed(form: str, values: tuple[object, ...]) -> Iterator[str]:
    at = used = 0
    for found in _DIRECTIVE.finditer(form):
        yield form[at : found.start()]
        at = found.end()
        if found[5] == "%":
            yield "%"
            continue
        if used == len(values):
            raise BeyondSubsetError("printf has fewer values than its format asks for")
        yield _formatted(values[used], _directive(found))
        used += 1
    if used < len(values):
        raise BeyondSubsetError("printf has more values than its format asks for")
    yield form[at:]


def _bounded(parts: Iterable[str]) -> str:
    """The parts as one text. Refused before it has grown beyond measure."""
    kept: list[str] = []
    size = 0
    for part in parts:
        size += len(part)
        if size > TEXT_MAX:
            raise too_long()
        kept.append(part)
    return "".join(kept)


def too_long() -> ValidationError:
    return ValidationError(f"makes a text of more than {TEXT_MAX} characters")


def _directive(found: re.Match[str]) -> Directive:
    flags, width, point, precision, verb = found.groups()
    if verb is None or max(len(width), len(precision or "")) > 6:
        raise BeyondSubsetError("printf has a directive without a verb or with a width beyond reason")
    directive = Directive(verb, flags, int(width or 0), int(precision or 0) if point else None)
    if max(directive.width, directive.precision or 0) > TEXT_MAX:
        raise too_long()
    return directive


def _formatted(value: object, directive: Directive) -> str:  # noqa: C901, one line for each kind of value
    verb = directive.verb
    if verb == "v":
        directive.without("+#")
    if isinstance(value, Stringer) and verb in _STRING_VERBS:
        return _string(value.text(), directive)
    match value:
        case str():
            return _string(value, directive)
        case bool() if verb in "tv":
            return directive.padded("true" if value else "false")
        case bool():
            raise directive.beyond()
        case int():
            return _integer(int(value), directive)
        case float():
            return _float(value, directive)
        case bytes():
            return _bytes(value, directive)
        case Record():
            return "{" + " ".join(_formatted(field, directive) for field in value.fields()) + "}"
        case None if verb == "v":
            return directive.padded("<nil>")
        case _ if type(value) is tuple:
            return "[" + " ".join([_formatted(item, directive) for item in value]) + "]"
        case _:
            raise BeyondSubsetError("prints a whole message or object: print one of its fields instead")


def _string(text: str, directive: Directive) -> str:
    directive.without("#+ ")
    if directive.verb in "xX":
        if directive.precision is not None:
            raise directive.beyond()
        digits = text.encode().hex()
        return directive.padded(digits if directive.verb == "x" else digits.upper())
    if directive.precision is not None:
        text = text[: directive.precision]
    match directive.verb:
        case "v" | "s":
            return directive.padded(text)
        case "q":
            return directive.padded(f'"{"".join(map(_quoted, text))}"')
        case _:
            raise directive.beyond()


def _quoted(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _integer(value: int, directive: Directive) -> str:
    if directive.verb not in _BASES:
        raise directive.beyond()
    digits = format(abs(value), _BASES[directive.verb])
    if directive.precision is not None:
        if not value and not directive.precision:
            return " " * directive.width
        digits = digits.zfill(directive.precision)
    prefix = ""
    if "#" in directive.flags:
        if directive.verb not in "xX":
            raise directive.beyond()
        prefix = "0" + directive.verb
    return _signed(value < 0, prefix, digits, directive)


def _float(value: float, directive: Directive) -> str:
    directive.without("#")
    match directive.verb, directive.precision:
        case "v", None:
            digits = _shortest(abs(value))
        case "f", precision:
            digits = format(abs(value), f".{6 if precision is None else precision}f")
        case _:
            raise directive.beyond()
    # The precision has had its effect: it does not switch off padding by zeros, as it does for integers.
    return _signed(str(value).startswith("-"), "", digits, Directive(directive.verb, directive.flags, directive.width))


def _signed(negative: bool, prefix: str, digits: str, directive: Directive) -> str:
    flags = directive.flags
    sign = "-" if negative else "+" if "+" in flags else " " if " " in flags else ""
    if "0" in flags and "-" not in flags and directive.precision is None:
        digits = digits.zfill(directive.width - len(sign))
    text = sign + prefix + digits
    return text.ljust(directive.width) if "-" in flags else text.rjust(directive.width)


def _shortest(value: float) -> str:
    """The fewest digits that read back as `value`; with an exponent below 1e-4 and from 1e6 on."""
    shortest = Decimal(repr(value)).normalize()
    _, digits, exponent = shortest.as_tuple()
    assert isinstance(exponent, int), "templates hold neither infinities nor NaN"
    magnitude = len(digits) + exponent - 1
    if not value or -4 <= magnitude < 6:
        return format(shortest, "f")
    mantissa = "".join(map(str, digits))
    point = "." if len(digits) > 1 else ""
    return f"{mantissa[0]}{point}{mantissa[1:]}e{'-' if magnitude < 0 else '+'}{abs(magnitude):02d}"


def _bytes(value: bytes, directive: Directive) -> str:
    if directive.flags or directive.width or directive.precision is not None:
        raise directive.beyond()
    match directive.verb:
        case "v" | "d":
            return f"[{' '.join(map(str, value))}]"
        case "x":
            return value.hex()
        case "X":
            return value.hex().upper()
        case _:
            raise directive.beyond()
