"""FragmentTable: the fragments of one journal in fifty bytes each.

A Fragment as an object takes five times as much, and a driver may have to hold a hundred thousand of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct

from protocol.codec import CompressionCodec
from protocol.fragment import Fragment

_ROW = Struct("<qq20sBqII")


class FragmentTable:
    __slots__ = ("_rows", "_texts", "begin", "end", "journal")

    def __init__(self, journal: str, fragments: Iterable[Fragment] = ()) -> None:
        self.journal = journal
        self._rows = bytearray()
        self._texts: dict[str, int] = {}
        # Of all of them together; None and zero if there are none.
        self.begin: int | None = None
        self.end = 0
        self.extend(fragments)

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def extend(self, fragments: Iterable[Fragment]) -> None:
        texts = self._texts
        for of in fragments:
            store = texts.setdefault(of.backing_store, len(texts))
            postfix = texts.setdefault(of.path_postfix, len(texts))
            self._rows += _ROW.pack(of.begin, of.end, of.sum, of.codec, of.mod_time, store, postfix)
            self.begin = of.begin if self.begin is None else min(self.begin, of.begin)
            self.end = max(self.end, of.end)

    def __iter__(self) -> Iterator[Fragment]:
        return self.since(0)

    def since(self, offset: int) -> Iterator[Fragment]:
        """Those that do not end before `offset`. Others are not unpacked."""
        texts = list(self._texts)
        for begin, end, digest, codec, mod_time, store, postfix in _ROW.iter_unpack(self._rows):
            if end >= offset:
                yield Fragment(
                    self.journal, begin, end, digest, CompressionCodec(codec), texts[store], mod_time, texts[postfix]
                )
