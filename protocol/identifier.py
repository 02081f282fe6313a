"""The names things go by, and the one place where each is judged.

Every check takes a text and either returns or raises a ``ValidationError`` that states the rule; the caller
adds the field. Lengths count bytes of UTF-8, as Gazette counts them.
"""

from __future__ import annotations

from protocol.alphabet import is_path, is_token
from protocol.errors import ValidationError

JOURNAL_BYTES = (4, 512)
SHARD_BYTES = (4, 512)
ZONE_BYTES = (1, 32)
SUFFIX_BYTES = (4, 128)
LABEL_NAME_BYTES = (2, 64)
LABEL_VALUE_BYTES = (0, 1024)
POSTFIX_BYTES = (0, 512)
META_BYTES = (1, 512)


def check_journal(name: str) -> None:
    """A journal's name, with or without a ``;meta`` suffix, which a client may add to tell two reads apart."""
    name, semicolon, meta = name.partition(";")
    check_path_component(name, *JOURNAL_BYTES)
    if semicolon:
        check_path_component(meta, *META_BYTES)


def strip_meta(name: str) -> str:
    """The journal's name without its ``;meta`` suffix."""
    return name.partition(";")[0]


def check_shard_id(shard_id: str) -> None:
    check_token(shard_id, *SHARD_BYTES)


def check_token(text: str, bytes_min: int, bytes_max: int) -> None:
    """Letters, numbers and ``- _ + / .`` only. Nothing at or below ``#``, which separates the parts of etcd keys."""
    if not is_token(text):
        raise ValidationError(f"expected letters, numbers and -_+/. only (got {_shown(text)})")
    _check_length(text, bytes_min, bytes_max)


def check_path_symbols(text: str, bytes_min: int, bytes_max: int) -> None:
    """As a token, and ``=`` and ``%`` as well."""
    if not is_path(text):
        raise ValidationError(f"expected letters, numbers and -_+/.=% only (got {_shown(text)})")
    _check_length(text, bytes_min, bytes_max)


def check_path_component(text: str, bytes_min: int, bytes_max: int) -> None:
    """A relative path that is already clean: no doubled or trailing slash, no ``.`` element, no inner ``..``.

    A leading ``..`` *is* clean and passes, as it does in Gazette: whoever joins a name to a file system
    path must guard against it.
    """
    check_path_symbols(text, bytes_min, bytes_max)
    if text.startswith("/"):
        raise ValidationError(f"must not begin with a slash (got {_shown(text)})")
    if text and clean_path(text) != text:
        raise ValidationError(f"must be a clean path: {_shown(clean_path(text))} rather than {_shown(text)}")


def clean_path(path: str) -> str:
    """`path` in its shortest form, as Go's ``path.Clean`` has it (``posixpath.normpath`` keeps a leading ``//``)."""
    rooted = path.startswith("/")
    parts: list[str] = []
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            parts.append(part)
        elif parts and parts[-1] != "..":
            parts.pop()
        elif not rooted:
            parts.append(part)
    return ("/" if rooted else "") + "/".join(parts) or "."


def _check_length(text: str, bytes_min: int, bytes_max: int) -> None:
    length = len(text) if text.isascii() else len(text.encode())
    if not bytes_min <= length <= bytes_max:
        raise ValidationError(f"expected {bytes_min} to {bytes_max} bytes (got {length}: {_shown(text)})")


def _shown(text: str) -> str:
    """`text` as an error shows it: escaped, and no longer than a line."""
    return repr(text if len(text) <= 64 else text[:61] + "...")
