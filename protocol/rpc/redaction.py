"""Takes secrets out of a text before it is logged: tokens, what signs a URL, passwords, keys.

This is the last of several lines: code does not log secrets. But the text of a foreign exception may hold the URL that
failed, and that URL may be a signed one.
"""

from __future__ import annotations

import re

REDACTED = "[redacted]"

# Names of fields, headers and query arguments whose value is never to be seen.
_SECRET_NAMES = (
    r"(?:[\w.-]*(?:authorization|passw(?:or)?d|passphrase|secret|signature|credential|token|auth[_-]?keys?"
    r"|api[_-]?key|access[_-]?key(?:[_-]?id)?|account[_-]?key|private[_-]?key|sas[_-]?key)|sig)"
)
IS_SECRET_NAME = re.compile(_SECRET_NAMES, re.IGNORECASE).fullmatch

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # A key in PEM, whether its line ends are as they are or were escaped.
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), REDACTED),
    # A token in three parts, wherever it stands; the header of every JWT begins so.
    (re.compile(r"(?<![\w-])eyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)?"), REDACTED),
    (re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]+", re.IGNORECASE), rf"\1 {REDACTED}"),
    # User and password of a URL.
    (re.compile(r"(?<=://)[^/\s@\"']+@"), f"{REDACTED}@"),
    # name=value, name: value and "name": "value", in URLs, headers, JSON and the like. The quotes may be escaped.
    # A short word without quotes after `token:` is more likely one of a sentence.
    (
        re.compile(
            rf"(?<![\w.-])({_SECRET_NAMES})(\\?[\"']?\s*(?:=\s*|:\s*(?=\\?[\"']|[^\s&;,]{{12}})))"
            r"(?!\[redacted\]|Bearer |Basic )"
            r"(?:\\?\"(?:[^\"\\]|\\[^\"])*\\?\"|\\?'[^']*'|[^\s&;,\"'\\)}\]]+)",
            re.IGNORECASE,
        ),
        rf"\1\2{REDACTED}",
    ),
)


def redacted(text: str) -> str:
    """`text` without what looks like a secret.

    >>> redacted("GET https://bucket/key?X-Amz-Signature=0a1b2c&partNumber=3 failed")
    'GET https://bucket/key?X-Amz-Signature=[redacted]&partNumber=3 failed'
    """
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
