"""INI files as Gazette's tools read them: sections with dots, values in quotes if need be, keys that may repeat."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from protocol.errors import ValidationError


@dataclass(slots=True)
class IniFile:
    """Sections and keys are found whatever their case."""

    _sections: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> IniFile:
        """
        >>> IniFile.parse('[journals.Broker]\\nAddress = "http://broker:8080" ').values("Journals.broker", "address")
        ['http://broker:8080']
        """
        parsed = cls()
        section: dict[str, list[str]] = parsed._sections.setdefault("", {})
        for number, line in enumerate(text.splitlines(), 1):
            line = line.strip()
            if not line or line[0] in ";#":
                continue
            if line.startswith("[") and line.endswith("]"):
                section = parsed._sections.setdefault(line[1:-1].strip().lower(), {})
                continue
            key, equals, value = line.partition("=")
            if not equals:
                raise ValidationError(f"line {number}: expected `key = value`, a `[section]` or a `; comment`")
            section.setdefault(key.strip().lower(), []).append(_unquoted(value.strip(), number))
        return parsed

    def values(self, section: str, key: str) -> list[str]:
        return self._sections.get(section.lower(), {}).get(key.lower(), [])


def _unquoted(value: str, number: int) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        raise ValidationError(f"line {number}: a value that begins with a quote ends with one") from None
