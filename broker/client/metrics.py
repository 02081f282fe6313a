"""What a client counts, by the names that Gazette's has. Only the first so many journals have labels of their own.

A program may touch any number of journals, and each label is a time series that somebody pays for.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter

from protocol.codec import CompressionCodec

JOURNALS_MAX = 500
OTHERS = "(others)"

_APPENDED = Counter("gazette_append_bytes", "Bytes that were appended.", ("journal",))
_READ = Counter("gazette_read_bytes", "Bytes that were read.", ("journal",))
_OF_FRAGMENTS = ("journal", "codec")
_OPENED = Counter("gazette_fragment_open", "Fragments that were opened in their store.", _OF_FRAGMENTS)
_OPENED_BYTES = Counter("gazette_fragment_open_bytes", "Content of opened fragments.", _OF_FRAGMENTS)
_OPENED_STORED = Counter(
    "gazette_fragment_open_content_length",
    "Length of the objects of opened fragments, as they are stored.",
    _OF_FRAGMENTS,
)
_FRAGMENT_BYTES = Counter("gazette_read_fragment_bytes", "Bytes that were read from stores.", _OF_FRAGMENTS)
_DISCARDED_BYTES = Counter(
    "gazette_discard_fragment_bytes", "Content of opened fragments before what was wanted.", _OF_FRAGMENTS
)


class JournalLabels:
    """The first so many names, and one for all others."""

    def __init__(self, size: int = JOURNALS_MAX) -> None:
        self._size = size
        self._known: set[str] = set()

    def label(self, journal: str) -> str:
        if journal in self._known:
            return journal
        if len(self._known) >= self._size:
            return OTHERS
        self._known.add(journal)
        return journal


_LABELS = JournalLabels()


def appended(journal: str, count: int) -> None:
    _APPENDED.labels(_LABELS.label(journal)).inc(count)


class ReadCounters:
    """Those of one reader, looked up once."""

    def __init__(self, journal: str) -> None:
        self._journal = _LABELS.label(journal)
        self.read = _READ.labels(self._journal)

    def opened(self, codec: CompressionCodec, content_bytes: int, discarded: int) -> Counter:
        """A fragment was opened in its store. Returns what counts the bytes that come of it."""
        labels = (self._journal, codec.name)
        _OPENED.labels(*labels).inc()
        _OPENED_BYTES.labels(*labels).inc(content_bytes)
        _DISCARDED_BYTES.labels(*labels).inc(discarded)
        return _FRAGMENT_BYTES.labels(*labels)

    def sized(self, codec: CompressionCodec) -> Callable[[int], None]:
        """What is told the length of a fragment's object, each time that it is opened. It counts but once: a fragment
        may be read in parts."""
        counter: Counter | None = _OPENED_STORED.labels(self._journal, codec.name)

        def told(size: int) -> None:
            nonlocal counter
            if counter is not None:
                counter.inc(size)
            counter = None

        return told
