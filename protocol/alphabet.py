"""The characters identifiers are made of, as character classes for ``re``.

Letters and numbers are those of Unicode 15.0, the tables of the Go release that Gazette is built with, on every
Python up to 3.14 (Unicode 16.0): two programs that disagree on a name cannot share a cluster.
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


# Those of 15.1 and 16.0, which later Pythons take for letters and numbers and Gazette does not. A Python that
# does not know them either is not bothered by the list.
_NEWER_THAN_15_0 = (
    "\u1c89-\u1c8a\ua7cb-\ua7cd\ua7da-\ua7dc\U000105c0-\U000105f3\U00010d40-\U00010d65\U00010d6f-\U00010d85"
    "\U00010ec2-\U00010ec4\U00011380-\U00011389\U0001138b\U0001138e\U00011390-\U000113b5\U000113b7\U000113d1"
    "\U000113d3\U000116d0-\U000116e3\U00011bc0-\U00011be0\U00011bf0-\U00011bf9\U00013460-\U000143fa"
    "\U00016100-\U0001611d\U00016130-\U00016139\U00016d40-\U00016d6c\U00016d70-\U00016d79\U00018cff"
    "\U0001ccf0-\U0001ccf9\U0001e5d0-\U0001e5ed\U0001e5f0-\U0001e5fa\U0002ebf0-\U0002ee5d"
)


def _class(symbols: str) -> str:
    known = rf"[\w{_NEW_IN_15_0 if _UNICODE < (15, 0) else ''}{symbols}]"
    return rf"(?:(?![{_NEWER_THAN_15_0}]){known})" if _UNICODE > (15, 0) else known


TOKEN = _class(r"\-+/.")
"""One character of a token: a letter, a number, or one of ``- _ + / .``"""

PATH = _class(r"\-+/.=%")
"""One character of a path: that of a token, or ``=`` or ``%``"""

# Possessive, so that a long text takes no memory for going back.
is_token = re.compile(rf"{TOKEN}*+").fullmatch
is_path = re.compile(rf"{PATH}*+").fullmatch
