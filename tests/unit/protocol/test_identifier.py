from __future__ import annotations

import pytest

from protocol.errors import ValidationError
from protocol.identifier import (
    check_journal,
    check_path_component,
    check_shard_id,
    check_token,
    clean_path,
    strip_meta,
)
from tests.support.golden import Case, case_id, cases

CHECKS = {"text Journal": check_journal, "text ShardID": check_shard_id}


@pytest.mark.parametrize("case", [case for case in cases("validation") if case["type"] in CHECKS], ids=case_id)
def test_a_name_is_judged_as_gazette_judges_it(case: Case) -> None:
    try:
        name = bytes.fromhex(case["hex"]).decode()
    except UnicodeDecodeError:
        assert not case["ok"]  # No text that reaches us can hold these bytes.
        return
    if case["ok"]:
        CHECKS[case["type"]](name)
    else:
        with pytest.raises(ValidationError):
            CHECKS[case["type"]](name)


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        ("", "."),
        ("/", "/"),
        ("//", "/"),
        ("a//b/./c/../d/", "a/b/d"),
        ("../../a", "../../a"),
        ("/../a", "/a"),
        ("a/../..", ".."),
    ],
)
def test_a_path_is_cleaned_as_go_cleans_it(path: str, clean: str) -> None:
    assert clean_path(path) == clean


def test_the_meta_suffix_begins_at_the_first_semicolon() -> None:
    assert strip_meta("acme/orders;a;b") == "acme/orders"
    assert strip_meta("acme/orders") == "acme/orders"


def test_lengths_count_bytes() -> None:
    check_token("é", 2, 2)
    with pytest.raises(ValidationError, match="expected 1 to 1 bytes"):
        check_token("é", 1, 1)


def test_an_error_shows_no_more_than_a_line_of_what_it_refuses() -> None:
    with pytest.raises(ValidationError) as refused:
        check_path_component("x" * 100_000, 1, 512)
    assert len(str(refused.value)) < 200
