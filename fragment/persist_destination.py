"""Destination: which stores a spool's bytes go to, and under which name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from fragment.persist_item import FileT, Item
from protocol.errors import UnavailableError, ValidationError
from protocol.fragment import Fragment
from protocol.gen import journal_pb2
from protocol.identifier import POSTFIX_BYTES, check_path_component
from protocol.journal import JournalSpec
from protocol.postfix_template import PostfixTemplate
from protocol.template.objects import PostfixData


@dataclass(frozen=True, slots=True)
class CurrentSpec:
    """A journal's spec as it is now, and the CreateRevision that tells one of that name from another."""

    spec: JournalSpec
    create_revision: int


class Detour(Enum):
    """Why bytes do not become part of the journal that they were written to."""

    UNDECIDED = "nobody can tell whether bytes are part of their journal: they are set aside"
    DELETED = "the journal was deleted before its bytes were persisted: they are set aside"
    DISCARDED = "bytes of a deleted journal were discarded, as this broker was told to do"


@dataclass(frozen=True, slots=True)
class Destination:
    # None: they go nowhere.
    spec: JournalSpec | None
    # As it is to be named.
    fragment: Fragment
    detour: Detour | None = None
    # Why there is no postfix though the spec asks for one: a template that a Go broker took may be beyond us.
    template_error: ValidationError | None = None

    @property
    def stores(self) -> Sequence[str]:
        return self.spec.fragment.stores if self.spec is not None else ()

    @property
    def is_resident(self) -> bool:
        """Whether the journal lives on its brokers alone, for as long as there is one of that name."""
        return self.spec is not None and not self.stores


def destination_of(
    item: Item[FileT], decided: Fragment, current: CurrentSpec | None, *, discard_deleted: bool
) -> Destination:
    """Of what is decided of a spool, given its journal as it is now. Raises if there is none, for now."""
    if current is not None and current.create_revision == item.create_revision:
        if item.is_aside:
            return _named(item, decided, current.spec, _under(".undecided", item), Detour.UNDECIDED)
        return _named(item, decided, current.spec, decided.journal)
    if item.resident is not None and not _last_spec(item).fragment.stores:
        # It never had a place to be set aside in, and went with its journal.
        return Destination(None, decided)
    if discard_deleted:
        return Destination(None, decided, Detour.DISCARDED)
    spec = _last_spec(item)
    if not spec.fragment.stores:
        raise UnavailableError(
            f"{decided.journal} was deleted and its last spec names no store to set its bytes aside in: start the "
            "broker with --broker.discard-deleted, or create the journal again"
        )
    # A journal of that name may exist again, or soon: its offsets are not these.
    return _named(item, decided, spec, _under(".deleted", item), Detour.DELETED)


def _last_spec(item: Item[FileT]) -> JournalSpec:
    return JournalSpec.from_proto(journal_pb2.JournalSpec.FromString(item.file.last_spec))


def _under(folder: str, item: Item[FileT]) -> str:
    return f"{folder}/{item.create_revision}/{item.fragment.journal}"


def _named(
    item: Item[FileT], decided: Fragment, spec: JournalSpec, journal: str, detour: Detour | None = None
) -> Destination:
    template = spec.fragment.path_postfix_template
    if not template or not spec.fragment.stores:
        return Destination(spec, replace(decided, journal=journal), detour)
    data = PostfixData(decided, item.spool.first_append_ns, item.spool.registers, spec)
    try:
        postfix = PostfixTemplate.compile(template).render(data)
        check_path_component(postfix, *POSTFIX_BYTES)
    except ValidationError as error:
        return Destination(spec, replace(decided, journal=journal), detour, error)
    return Destination(spec, replace(decided, journal=journal, path_postfix=postfix), detour)
