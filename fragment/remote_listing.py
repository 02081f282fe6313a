"""RemoteListing: which fragments of a journal its stores hold, from the names of their objects alone.

Journal names nest: ``acme/orders`` and ``acme/orders/late`` may both exist, and a listing of the first also
shows the objects of the second. An object belongs to the longest name of an existing journal that is a path
prefix of it; without that rule the fragments of one journal would be served as bytes of the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from fragment.stores.blob_store import ListedObject
from protocol.errors import ValidationError
from protocol.fragment import Fragment

FOREIGN_SAMPLE_MAX = 8
FOREIGN_CHARS_MAX = 160


class RemoteListing:
    """Gathers what the stores of one journal hold, batch by batch, so that a shell may pause in between."""

    __slots__ = ("_postfixes", "foreign_count", "foreign_sample", "fragments", "journal")

    def __init__(self, journal: str) -> None:
        self.journal = journal
        self.fragments: list[Fragment] = []
        # Objects that are no fragments at all, such as markers and temporary files; some of their paths for a log.
        self.foreign_count = 0
        self.foreign_sample: list[str] = []
        self._postfixes: dict[str, str] = {}

    def take(self, store_url: str, objects: Iterable[ListedObject], journals: Sequence[str]) -> None:
        """Add a batch that was listed below the journal's folder in one store.

        `journals` are the names of the existing journals, sorted, as known *after* the batch was listed: an
        object is only ever written when its journal exists already. Journals outside the folder do not matter.
        """
        owned = {"": True}
        for listed in objects:
            folder = listed.path.rpartition("/")[0]
            mine = owned.get(folder)
            if mine is None:
                mine = owned[folder] = not _lies_in_nested(self.journal, folder, journals)
            if not mine:
                continue
            try:
                parsed = Fragment.parse(self.journal, listed.path)
            except ValidationError:
                self._count_foreign(listed.path)
                continue
            self.fragments.append(
                Fragment(
                    self.journal,
                    parsed.begin,
                    parsed.end,
                    parsed.sum,
                    parsed.codec,
                    store_url,
                    # Zero would say that the fragment is on a broker's disk only; files unpacked by some tools have it.
                    max(1, listed.mod_time),
                    # One text for all fragments of a folder: a hundred thousand copies would weigh as much as the rest.
                    self._postfixes.setdefault(folder, folder),
                )
            )

    def _count_foreign(self, path: str) -> None:
        self.foreign_count += 1
        if len(self.foreign_sample) < FOREIGN_SAMPLE_MAX:
            self.foreign_sample.append(path[:FOREIGN_CHARS_MAX])


def _lies_in_nested(journal: str, folder: str, journals: Sequence[str]) -> bool:
    """Whether `folder` below the journal's own is that of another journal, or lies in one."""
    while folder:
        name = f"{journal}/{folder}"
        at = bisect_left(journals, name)
        if at < len(journals) and journals[at] == name:
            return True
        folder = folder.rpartition("/")[0]
    return False
