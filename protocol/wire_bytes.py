"""Protobuf by hand, for the few messages that are nearly all content: a library would copy every byte twice.

Only what those messages need: lengths and offsets, which are varints that are not negative, and fields of bytes.
"""

from __future__ import annotations

_VARINT_BITS_MAX = 63


def varint(number: int) -> bytes:
    """
    >>> varint(300).hex()
    'ac02'
    """
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number that is not negative, and where it ends. Raises IndexError if the data ends before it does.

    >>> read_varint(bytes.fromhex("ac02"), 0)
    (300, 2)
    """
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift >= _VARINT_BITS_MAX:
            raise IndexError


def tag(field: int, *, is_bytes: bool) -> bytes:
    """What a field begins with: its number, and whether bytes follow or a varint.

    >>> tag(4, is_bytes=True)
    b'"'
    """
    return varint(field << 3 | (2 if is_bytes else 0))
