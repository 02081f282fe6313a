"""Offsets of readers as a file: a JSON object of journals and where to go on."""

from __future__ import annotations

import json
import os
from pathlib import Path

from protocol.errors import ValidationError
from protocol.fragment import OFFSET_MAX


def read_offsets(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValidationError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict) or not all(type(at) is int and 0 <= at <= OFFSET_MAX for at in found.values()):
        raise ValidationError(f'{path} does not hold offsets: expected an object such as {{"my/journal":1234}}')
    return found


def write_offsets(path: Path, offsets: dict[str, int], is_also_input: bool) -> None:
    """Whole or not at all. Where they were read from the same file, that one is kept as ``.previous``."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(offsets, sort_keys=True, separators=(",", ":")) + "\n", encoding="utf-8")
    if is_also_input and path.exists():
        previous = path.with_name(f"{path.name}.previous")
        previous.unlink(missing_ok=True)
        os.link(path, previous)
    new.replace(path)
