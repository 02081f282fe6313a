"""Which of several journals a message goes to, decided by its key.

The arithmetic is Gazette's, so that writers of either kind send one key to one journal. FNV-1a in Python
costs some 50 ns a byte: map by a short key, not by a whole document.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from random import Random

from protocol.errors import ValidationError

_OFFSET_BASIS = 0x811C9DC5
_PRIME = 0x01000193
_MASK = 0xFFFF_FFFF


def fnv1a_32(data: bytes) -> int:
    """
    >>> hex(fnv1a_32(b"It always"))
    '0x5e1f62fd'
    """
    digest = _OFFSET_BASIS
    for byte in data:
        digest = (digest ^ byte) * _PRIME & _MASK
    return digest


class Partitions:
    """The journals that messages are spread over, in the order of their names, as List returns them.

    Made once per listing: the names are hashed here, so that mapping a message hashes its key alone.
    """

    def __init__(self, journals: Sequence[str]) -> None:
        if not journals:
            raise ValidationError("no journal matches: create at least one partition before publishing")
        self._journals = tuple(journals)
        # The first of those with the same digest wins, hence in reverse.
        self._by_digest = {fnv1a_32(name.encode()): name for name in reversed(self._journals)}
        self._digests = sorted(self._by_digest)

    def modulo(self, key: bytes) -> str:
        """Even and fast, but a new partition moves nearly every key."""
        return self._journals[fnv1a_32(key) % len(self._journals)]

    def rendezvous(self, key: bytes) -> str:
        """The largest of journal digests XORed with the key's. A new partition takes only its own keys."""
        digest = fnv1a_32(key)
        # Bit by bit, keep those of the journals that differ from the key in it, if there are any. As they are
        # sorted they are one half of those kept so far, which is a good deal faster than weighing them all.
        digests, begin, end = self._digests, 0, len(self._digests)
        shared, bit = 0, 1 << 31
        while end - begin > 1:
            middle = bisect_left(digests, shared | bit, begin, end)
            if middle == begin or (middle < end and not digest & bit):
                begin = middle
                shared |= bit
            else:
                end = middle
            bit >>= 1
        return self._by_digest[digests[begin]]

    def random(self, generator: Random) -> str:
        """Any journal, for messages whose order does not matter."""
        return generator.choice(self._journals)
