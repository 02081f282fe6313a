from __future__ import annotations

import pytest

from allocator.keys import (
    Assignment,
    Entity,
    InvalidKeyError,
    Item,
    Member,
    assignment_key,
    assignments_prefix,
    decoder,
    item_key,
    member_key,
)
from allocator.keyspace import check_prefix
from tests.support.golden import Case, case_id, cases


def root_of(case: Case) -> str:
    """The vectors call one root "root" and were computed under "base"."""
    return "base" if case["root"] == "root" else str(case["root"])


@pytest.mark.parametrize("case", cases("etcd-keys", "item-key"), ids=case_id)
def test_keys_of_items_are_those_of_gazette(case: Case) -> None:
    if not case["ok"]:
        with pytest.raises(InvalidKeyError):
            item_key(root_of(case), case["item"])
        with pytest.raises(InvalidKeyError):
            assignments_prefix(root_of(case), case["item"])
        return
    assert item_key(root_of(case), case["item"]) == case["key"]
    assert assignments_prefix(root_of(case), case["item"]) == case["assignments_prefix"]
    assert decode(root_of(case), case["key"]) == Item(case["item"], b"raw")


@pytest.mark.parametrize("case", cases("etcd-keys", "member-key"), ids=case_id)
def test_keys_of_members_are_those_of_gazette(case: Case) -> None:
    if not case["ok"]:
        with pytest.raises(InvalidKeyError):
            member_key(root_of(case), case["zone"], case["suffix"])
        return
    assert member_key(root_of(case), case["zone"], case["suffix"]) == case["key"]
    member = decode(root_of(case), case["key"])
    assert member == Member(f"{case['zone']}#{case['suffix']}", b"raw")
    assert isinstance(member, Member)
    assert member.zone == case["zone"]


@pytest.mark.parametrize("case", cases("etcd-keys", "assignment-key"), ids=case_id)
def test_keys_of_assignments_are_those_of_gazette(case: Case) -> None:
    parts = (root_of(case), case["item"], case["zone"], case["suffix"], case["slot"])
    if not case["ok"]:
        with pytest.raises(InvalidKeyError):
            assignment_key(*parts)
        return
    assert assignment_key(*parts) == case["key"]
    member = f"{case['zone']}#{case['suffix']}"
    assert decode(root_of(case), case["key"]) == Assignment(case["item"], member, case["slot"], b"raw")


@pytest.mark.parametrize("case", cases("etcd-keys", "root"), ids=case_id)
def test_the_roots_accepted_are_those_of_gazette(case: Case) -> None:
    if case["ok"]:
        check_prefix(case["root"])
    else:
        with pytest.raises(ValueError, match="clean path"):
            check_prefix(case["root"])


# Values are the business of those who own them; these are refused for their key.
BAD_KEYS = {
    "separator in item key",
    "one part",
    "three parts",
    "five parts",
    "unknown branch",
    "sibling root",
    "no slash",
}
BAD_KEYS |= {"slot not a number", "slot empty", "slot with underscore"}


@pytest.mark.parametrize("case", [c for c in cases("etcd-keys", "decode") if c["rule"] in BAD_KEYS], ids=case_id)
def test_keys_that_gazette_refuses_are_refused(case: Case) -> None:
    assert not case["ok"]
    with pytest.raises(InvalidKeyError):
        decode(case["root"], case["key"])


@pytest.mark.parametrize("case", [c for c in cases("etcd-keys", "decode") if c["ok"]], ids=case_id)
def test_keys_are_taken_apart_as_in_gazette(case: Case) -> None:
    expected, entity = case["decoded"], decode(case["root"], case["key"])
    if isinstance(entity, Item):
        assert (expected["entity"], expected["id"]) == ("item", entity.id)
        return
    member = f"{expected['zone']}#{expected['suffix']}"
    if isinstance(entity, Member):
        assert (expected["entity"], member) == ("member", entity.id)
    else:
        found = ("assignment", entity.item, entity.member, entity.slot)
        assert (expected["entity"], expected["item"], member, expected["slot"]) == found


def decode(root: str, key: str) -> Entity[bytes, bytes, bytes]:
    return decoder(root, lambda _id, raw: raw, lambda _zone, _suffix, raw: raw, lambda raw: raw)(key, b"raw")


@pytest.mark.parametrize("slot", ["+1", "-1", "007", "0", "-0", "0" * 30 + "7", str(2**63 - 1), str(-(2**63))])
def test_a_slot_is_a_number_however_it_is_written(slot: str) -> None:
    decoded = decode("/root", f"/root/assign/item#zone#suffix#{slot}")
    assert decoded == Assignment("item", "zone#suffix", int(slot), b"raw")


@pytest.mark.parametrize("slot", [" 1", "1 ", "1.0", "0x1", "--1", "\u0661", "\u00b2", "1" * 5000, "+", ""])
def test_a_slot_that_only_python_would_read_is_refused(slot: str) -> None:
    with pytest.raises(InvalidKeyError):
        decode("/root", f"/root/assign/item#zone#suffix#{slot}")


@pytest.mark.parametrize("slot", [2**63, -(2**63) - 1, 10**19 - 1, 10**30])
def test_a_slot_of_more_than_64_bits_is_refused_as_by_gazette(slot: int) -> None:
    with pytest.raises(InvalidKeyError, match=r"64 bits|whole number"):
        decode("/root", f"/root/assign/item#zone#suffix#{slot}")


def test_values_are_decoded_with_what_their_key_says() -> None:
    seen: list[object] = []

    def note(*args: object) -> bytes:
        seen.append(args)
        return b""

    decoded = decoder("/root", note, note, note)
    for key in ("/root/items/a/b", "/root/members/zone#suffix", "/root/assign/a/b#zone#suffix#2"):
        decoded(key, b"raw")
    assert seen == [("a/b", b"raw"), ("zone", "suffix", b"raw"), (b"raw",)]


def test_what_a_value_is_refused_for_is_passed_on() -> None:
    def refuse(*_: object) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        decoder("/root", refuse, refuse, refuse)("/root/items/a", b"")


def test_assignments_share_the_text_of_their_member() -> None:
    read = decoder("/root", lambda _id, raw: raw, lambda _zone, _suffix, raw: raw, lambda raw: raw)
    one, other = (read(f"/root/assign/{item}#zone#suffix#0", b"") for item in ("a", "b"))
    assert isinstance(one, Assignment)
    assert isinstance(other, Assignment)
    assert one.member is other.member
