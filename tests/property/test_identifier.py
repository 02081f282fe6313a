from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ValidationError
from protocol.identifier import (
    check_journal,
    check_path_component,
    check_path_symbols,
    check_shard_id,
    check_token,
    clean_path,
)

TEXTS = st.text(max_size=40) | st.text("ab/.;=%-_ é\x00#", max_size=12) | st.text(st.characters(), max_size=4)


@given(TEXTS)
def test_the_verdict_on_any_name_is_clean(text: str) -> None:
    for check in (check_journal, check_shard_id):
        with contextlib.suppress(ValidationError):
            check(text)
    for check_within in (check_token, check_path_symbols, check_path_component):
        with contextlib.suppress(ValidationError):
            check_within(text, 0, 512)


@given(TEXTS)
def test_a_valid_journal_name_is_made_of_clean_parts_that_hold_no_separator_of_etcd_keys(text: str) -> None:
    try:
        check_journal(text)
    except ValidationError:
        return
    name, _, meta = text.partition(";")
    assert all(ord(symbol) > ord("#") for symbol in text)
    assert clean_path(name) == name
    assert not name.startswith("/")
    assert ";" not in meta


@given(st.text("ab/.", max_size=16))
def test_cleaning_a_path_twice_is_cleaning_it_once(path: str) -> None:
    assert clean_path(clean_path(path)) == clean_path(path)
