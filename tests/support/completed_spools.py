"""Completed spools without a disk: for those who decide what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fragment.persist_item import Item
from fragment.spool import EpochMark, Proposal, Spool
from fragment.spool_log import CommitRecord
from fragment.spool_recovery import Copy, Worth, spool_of
from protocol.codec import CompressionCodec
from protocol.fragment import Fragment
from protocol.journal import FragmentPolicy, JournalSpec
from protocol.label import LabelSet

JOURNAL = "a/b"
EPOCH = EpochMark(5, 1)
"""Of the journal's incarnation that these spools are of."""
APPENDED_NS = 1_767_323_045 * 10**9


@dataclass(frozen=True, slots=True)
class Files:
    """In the place of a SpoolFile."""

    last_spec: bytes = b""
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class Handed:
    """In the place of a CompletedSpool."""

    spool: Spool
    file: Files
    is_superseded: bool = False

    @property
    def fragment(self) -> Fragment:
        return self.spool.fragment


PersistItem = Item[Files]


def spec(*stores: str, codec: CompressionCodec = CompressionCodec.NONE, template: str = "") -> JournalSpec:
    policy = FragmentPolicy(1 << 20, codec, stores or ("file:///one/",), path_postfix_template=template)
    return JournalSpec(JOURNAL, 1, fragment=policy)


NO_STORES = JournalSpec(JOURNAL, 1, fragment=FragmentPolicy(1 << 20, CompressionCodec.NONE))


def encoded(written_under: JournalSpec) -> bytes:
    return written_under.to_proto().SerializeToString()


def handed(
    *appends: bytes,
    acked: int | None = None,
    begin: int = 0,
    mark: EpochMark = EPOCH,
    written_under: JournalSpec | None = None,
    has_ended: bool = False,
) -> Handed:
    """Of so many commits, and acknowledged so far by what its primary has told."""
    spool = Spool.fresh(JOURNAL)
    spool, _ = spool.propose(Proposal(replace(spool.fragment, begin=begin, end=begin), spool.registers, 0))
    for data in appends:
        spool, _ = spool.content(data, 0)
        spool, _ = spool.propose(Proposal(spool.next(), spool.registers, APPENDED_NS, mark, acked))
    return Handed(spool, Files(encoded(written_under or spec()), has_ended))


def left(worth: Worth, *appends: bytes, acked: int | None, mark: EpochMark = EPOCH, begin: int = 0) -> Copy:
    """What an earlier process left behind. Of a damaged copy all but the last append is sound."""
    records = []
    for count in range(1, len(appends) + 1):
        spool = handed(*appends[:count], acked=acked, begin=begin, mark=mark).spool
        held = spool.fragment
        records.append(
            CommitRecord(
                held.journal, EPOCH.create_revision, mark, held.begin, held.end, held.sum, held.codec, LabelSet(),
                acked, spool.first_append_ns, b"\1" * 16, synced=False, spec=encoded(spec()),
                persisted=worth is Worth.STORED,
            )
        )  # fmt: skip
    sound = {Worth.DAMAGED: records[:-1], Worth.STORED: []}.get(worth, records)
    return Copy(worth, "", tuple(records), sound[-1] if sound else None)


def reopened(copy: Copy) -> Handed:
    return Handed(spool_of(copy), Files(encoded(spec())))
