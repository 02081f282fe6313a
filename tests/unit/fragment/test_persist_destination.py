from __future__ import annotations

import pytest

from fragment.persist_destination import CurrentSpec, Destination, Detour, destination_of
from fragment.persist_item import Item
from protocol.errors import UnavailableError, ValidationError
from protocol.journal import JournalSpec
from tests.support.completed_spools import EPOCH, NO_STORES, Files, PersistItem, handed, spec

HIVE = 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}'


def written(under: JournalSpec) -> PersistItem:
    completed = handed(b"hello", written_under=under)
    return Item(completed.spool, completed.file, EPOCH.create_revision)


def going(item: PersistItem, current: CurrentSpec | None, *, discard_deleted: bool = False) -> Destination:
    return destination_of(item, item.fragment, current, discard_deleted=discard_deleted)


def now(current: JournalSpec, create_revision: int = EPOCH.create_revision) -> CurrentSpec:
    return CurrentSpec(current, create_revision)


def test_stores_are_those_of_the_spec_as_it_is_now() -> None:
    item = written(spec("file:///one/"))
    there = going(item, now(spec("file:///two/", "file:///three/")))
    assert there == Destination(spec("file:///two/", "file:///three/"), item.fragment)
    assert there.stores == ("file:///two/", "file:///three/")
    assert not there.is_resident


def test_a_postfix_is_that_of_the_spec() -> None:
    item = written(spec())
    there = going(item, now(spec(template=HIVE)))
    assert there.fragment.content_path == f"a/b/date=2026-01-02/{item.fragment.content_name}"


def test_a_template_beyond_us_gives_no_postfix_and_says_so() -> None:
    item = written(spec())
    there = going(item, now(spec(template="a b/{{ .Spool.Begin }}")))
    assert there.fragment == item.fragment
    assert isinstance(there.template_error, ValidationError)


def test_bytes_of_a_deleted_journal_are_set_aside_not_thrown_away() -> None:
    item = written(spec())
    there = going(item, None)
    assert (there.stores, there.detour) == (("file:///one/",), Detour.DELETED)
    assert there.fragment.content_path == f".deleted/5/a/b/{item.fragment.content_name}"


def test_what_is_set_aside_has_the_postfix_of_its_own_journal() -> None:
    path = going(written(spec(template=HIVE)), None).fragment.content_path
    assert path.startswith(".deleted/5/a/b/date=2026-01-02/")


def test_bytes_of_an_earlier_journal_of_that_name_do_not_mix_with_the_new_one() -> None:
    there = going(written(spec()), now(spec("file:///two/"), create_revision=99))
    assert (there.stores, there.fragment.journal) == (("file:///one/",), ".deleted/5/a/b")


def test_bytes_of_a_deleted_journal_go_if_the_operator_said_so() -> None:
    there = going(written(spec()), None, discard_deleted=True)
    assert (there.stores, there.is_resident, there.detour) == ((), False, Detour.DISCARDED)


def test_to_discard_nothing_need_be_known_of_the_spec() -> None:
    completed = handed(b"hello")
    item = Item(completed.spool, Files(b"\xff"), EPOCH.create_revision)
    assert going(item, None, discard_deleted=True).detour is Detour.DISCARDED


def test_bytes_of_a_deleted_journal_wait_if_there_is_no_store_to_set_them_aside_in() -> None:
    with pytest.raises(UnavailableError, match=r"--broker\.discard-deleted"):
        going(written(NO_STORES), None)


def test_what_may_not_be_part_of_its_journal_is_set_aside() -> None:
    item = written(spec())
    item.is_aside = True
    there = going(item, now(spec()))
    assert (there.fragment.journal, there.detour) == (".undecided/5/a/b", Detour.UNDECIDED)


def test_without_stores_a_journal_lives_on_its_brokers_and_goes_with_its_deletion() -> None:
    item = written(NO_STORES)
    assert going(item, now(NO_STORES)).is_resident
    item.resident = item.fragment
    gone = going(item, None)
    assert (gone.stores, gone.is_resident, gone.detour) == ((), False, None)
