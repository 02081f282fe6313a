"""Tables of listings, drawn to the character as Gazette's tools draw them; and sizes and times as people say them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[^A-Za-z0-9]+")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SPANS = (
    ("year", 365 * 86_400),
    ("month", 30 * 86_400),
    ("week", 7 * 86_400),
    ("day", 86_400),
    ("hour", 3_600),
    ("minute", 60),
    ("second", 1),
)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """
    >>> print(table(["Name", "RF"], [["acme/orders", "3"]]))
    ┌─────────────┬────┐
    │    NAME     │ RF │
    ├─────────────┼────┤
    │ acme/orders │ 3  │
    └─────────────┴────┘
    """
    heads = [title_of(title) for title in titles]
    body = [list(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(heads, *body, strict=True)]

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * (width + 2) for width in widths) + right

    def line(cells: Sequence[str], align: str) -> str:
        padded = (f" {cell:{align}{width}} " for cell, width in zip(cells, widths, strict=True))
        return "│" + "│".join(padded) + "│"

    lines = [rule("┌", "┬", "┐"), line(heads, "^")]
    if body:
        lines += [rule("├", "┼", "┤"), *(line(row, "<") for row in body)]
    return "\n".join([*lines, rule("└", "┴", "┘")])


def title_of(name: str) -> str:
    """A column's title. Gazette's library parts it wherever the kind of character changes.

    >>> title_of("content-type"), title_of("SHA1")
    ('CONTENT - TYPE', 'SHA 1')
    """
    return " ".join(" ".join(_WORDS.findall(name)).split()).upper()


def size_text(count: float) -> str:
    """
    >>> size_text(512), size_text(4362), size_text(34492), size_text(5 << 30)
    ('512 B', '4.3 KiB', '34 KiB', '5.0 GiB')
    """
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.1f} {_UNITS[unit]}" if unit and count < 10 else f"{count:.0f} {_UNITS[unit]}"


def ago_text(seconds: float) -> str:
    """
    >>> ago_text(0), ago_text(1320), ago_text(86_400)
    ('now', '22 minutes ago', '1 day ago')
    """
    for name, length in _SPANS:
        count = int(abs(seconds) // length)
        if count:
            return f"{count} {name}{'s' * (count > 1)} {'ago' if seconds > 0 else 'from now'}"
    return "now"
