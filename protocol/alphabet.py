"""The characters identifiers are made of, as character classes for ``re``.

Letters and numbers are those of Unicode 15.0, the tables of the Go release that Gazette is built with,
whatever Python this runs on: two programs that disagree on a name cannot share a cluster.
"""

from __future__ import annotations

import re
import unicodedata

# Letters and numbers of Unicode 15.0 that the 14.0 tables of Python 3.11 do not have.
_NEW_IN_15_0 = (
    "\U0001123f-\U00011240\U00011f02\U00011f04-\U00011f10\U00011f12-\U00011f33\U00011f50-\U00011f59"
    "\U0001342f\U00013441-\U00013446\U0001b132\U0001b155\U0001d2c0-\U0001d2d3\U0001df25-\U0001df2a"
    "\U0001e030-\U0001e06d\U0001e4d0-\U0001e4eb\U0001e4f0-\U0001e4f9\U0002b739\U00031350-\U000323af"
)
_UNICODE = tuple(int(part) for part in unicodedata.unidata_version.split("."))[:2]


def _newer_than_15_0() -> str:
    """The characters this Python takes for letters and numbers although Unicode 15.0 has not assigned them."""
    if _UNICODE <= (15, 0):
        return ""
    # 15.1 added one block of ideographs. Later versions add more; unassigned there means unassigned in 15.0,
    # and a name written in a script that new has never been valid in any Gazette.
    return "\U0002ebf0-\U0002ee5d"


def _class(symbols: str) -> str:
    known = rf"[\w{_NEW_IN_15_0 if _UNICODE < (15, 0) else ''}{symbols}]"
    newer = _newer_than_15_0()
    return rf"(?:(?![{newer}]){known})" if newer else known


TOKEN = _class(r"\-+/.")
"""One character of a token: a letter, a number, or one of ``- _ + / .``"""

PATH = _class(r"\-+/.=%")
"""One character of a path: that of a token, or ``=`` or ``%``"""

is_token = re.compile(rf"{TOKEN}*").fullmatch
is_path = re.compile(rf"{PATH}*").fullmatch
