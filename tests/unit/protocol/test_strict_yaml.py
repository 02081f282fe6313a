from __future__ import annotations

from enum import IntEnum

import pytest

from protocol.errors import ValidationError
from protocol.strict_yaml import ALIASED_MAX, DEPTH_MAX, INT32, INT64, UINT32, Record, load


class Colour(IntEnum):
    NONE = 0
    RED = 1


def record(value: str) -> Record:
    return Record(load(f"x: {value}"), ("x",))


@pytest.mark.parametrize("text", ["yes", "1.50", "0x1F", "2026-01-02", "12", "[a", "null"])
def test_a_text_keeps_its_source(text: str) -> None:
    assert record(f"'{text}'").text("x") == text
    if text not in ("[a", "null"):
        assert record(text).text("x") == text


@pytest.mark.parametrize("null", ["", "~", "null", "Null", "NULL", "!!null null", "# nothing"])
def test_a_null_leaves_every_type_unset(null: str) -> None:
    unset = record(null)
    assert "x" not in unset
    assert unset.text("x") == ""
    assert unset.texts("x") == ()
    assert unset.integer("x", INT32) == 0
    assert unset.duration_ns("x") == 0
    assert unset.boolean("x") is None
    assert unset.member("x", Colour) is None
    assert unset.member_or_number("x", Colour, INT32) == 0
    assert unset.record("x", ("y",)).text("y") == ""


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3", 3),
        ("3.0", 3),
        ("3.7", 3),
        ("-3.7", -3),
        ("1e6", 1_000_000),
        ("0x1F", 31),
        ("-0x10", -16),
        ("010", 8),
        ("0o17", 15),
        ("09", 9),
        ("0b101", 5),
        ("1_000", 1000),
        ("+5", 5),
        (".5", 0),
        ("1e-400", 0),
        ("!!int 3", 3),
        ("!!int '3'", 3),
        ("!!float 3", 3),
        ("!!float 3.7", 3),
        ("2147483647", 2147483647),
    ],
)
def test_numbers_read_as_in_gazettes_tools(text: str, number: int) -> None:
    assert record(text).integer("x", INT32) == number


@pytest.mark.parametrize(
    "text",
    [
        '"3"',
        "'3'",
        "!!str 3",
        "! 3",
        "three",
        "2147483648",
        "1e400",
        ".inf",
        "-.inf",
        ".nan",
        "yes",
        "0x",
        "1e",
        "3 4",
        "[3]",
        "{}",
    ],
)
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match=r"^line 1: x: expected a whole number from -2147483648"):
        record(text).integer("x", INT32)


@pytest.mark.parametrize(("bounds", "text"), [(UINT32, "-1"), (UINT32, "4294967296"), (INT64, "9223372036854775808")])
def test_a_number_out_of_bounds_is_refused(bounds: tuple[int, int], text: str) -> None:
    with pytest.raises(ValidationError, match="expected a whole number"):
        record(text).integer("x", bounds)
    assert record(str(bounds[1])).integer("x", bounds) == bounds[1]


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("5m", 300 * 10**9),
        ('"5m"', 300 * 10**9),
        ("300", 300),
        ("60.5", 60),
        ("1e9", 10**9),
        ("-1s", -(10**9)),
        ("0", 0),
    ],
)
def test_a_duration_is_a_text_or_nanoseconds(text: str, nanoseconds: int) -> None:
    assert record(text).duration_ns("x") == nanoseconds


@pytest.mark.parametrize("text", ['""', "1:30", '"300"', "yes", "[5m]", "5 m", "2026-01-02"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match=r"^line 1: x: expected a"):
        record(text).duration_ns("x")


@pytest.mark.parametrize("text", ["y", "Yes", "TRUE", "on"])
def test_many_words_are_true(text: str) -> None:
    assert record(text).boolean("x") is True


@pytest.mark.parametrize("text", ["n", "No", "FALSE", "off"])
def test_many_words_are_false(text: str) -> None:
    assert record(text).boolean("x") is False


def test_a_choice_goes_by_name_and_where_allowed_by_number() -> None:
    assert record("RED").member("x", Colour) is Colour.RED
    assert record("RED").member_or_number("x", Colour, INT32) == 1
    assert record("77").member_or_number("x", Colour, INT32) == 77
    for text in ("red", "1", '"1"', "[RED]"):
        with pytest.raises(ValidationError, match="expected one of NONE, RED"):
            record(text).member("x", Colour)
    with pytest.raises(ValidationError, match="expected one of NONE, RED"):
        record('"1"').member_or_number("x", Colour, INT32)


@pytest.mark.parametrize(
    "text",
    [
        "!!binary aGk=",
        "!!int 3.7",
        "!!int 1.0",
        "!!int 2026-01-02",
        "!!bool 1",
        "!!null x",
        "!!seq 3",
        "!!map 3",
        "!!float x",
        "!!timestamp 2026-01-02",
        "!local x",
        "!!map [a]",
        "!!seq {a: b}",
        "!!set {a: b}",
        "[1, !!binary aGk=]",
    ],
)
def test_a_tag_that_does_not_hold_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match=r"^line 2: x: the tag !!?[a-z]+ does not hold here"):
        load(f"y: 1\nx: {text}")


def test_a_tag_that_does_not_hold_is_refused_at_a_key_too() -> None:
    with pytest.raises(ValidationError, match=r"^line 1: the tag !!binary does not hold here"):
        load("!!binary eA==: 1")


def test_tags_that_hold_change_nothing() -> None:
    tagged = load("!!map {!!str x: !!seq [!!str 3, !!null '', ! 4, !!int 5]}")
    assert Record(tagged, ("x",)).texts("x") == ("3", "", "4", "5")
    assert record("!!bool 'yes'").boolean("x") is True


@pytest.mark.parametrize("null", ["Null", "NULL"])
def test_a_null_in_capitals_is_told_apart(null: str) -> None:
    assert record(null).is_zeroed("x")
    assert not record(f"!!null {null}").is_zeroed("x")
    assert not record("null").is_zeroed("x")
    assert not record(f"'{null}'").is_zeroed("x")


def test_nulls_in_a_list_are_empty_texts() -> None:
    assert record("[a, ~, 1.50, '']").texts("x") == ("a", "", "1.50", "")


def test_only_the_first_document_is_read() -> None:
    assert Record(load("---\nx: 1\n---\n{]"), ("x",)).integer("x", INT32) == 1
    assert Record(load("x: 1\n...\n{]"), ("x",)).integer("x", INT32) == 1


def test_nesting_is_bounded() -> None:
    load("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    for text in ("[" * 100_000, "{a: " * 100_000, "".join(f"{' ' * at}-\n" for at in range(DEPTH_MAX + 1)) + "x"):
        with pytest.raises(ValidationError, match=r"^line [0-9]+: nested deeper than 1000 levels"):
            load(text)


def test_aliases_cannot_be_nested_into_a_bomb() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(ValidationError, match=f"the aliases up to here stand for over {ALIASED_MAX} nodes"):
        load("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: &a [*a]", r"^line 1: the alias \*a stands inside of what it names"),
        ("x: &a 1\ny: &a\n  z: *a", r"^line 3: the alias \*a stands inside of what it names"),
        ("x: *a", "^line 1: no anchor &a comes before its alias"),
        ("x: 1\ny: a\tb\x07", "^line 2, column 7: YAML forbids the character"),
        ("é: 1\n\ud800", "^line 2, column 1: YAML forbids the character"),
        ("x: 1\n\ty: 2", "^line 2, column 1: cannot be read as YAML"),
        ("x: [1, 2\n", "^line 2, column 1: cannot be read as YAML"),
        ("%YAML 3.0\n---\nx: 1", "^line 1, column 1: cannot be read as YAML"),
        ("x: @", "^line 1, column 4: cannot be read as YAML"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        load(text)


def test_an_alias_is_the_node_it_names() -> None:
    node = load("x: &a {y: 1}\nz: *a")
    assert Record(node, ("x", "z")).record("z", ("y",)).integer("y", INT32) == 1


def test_errors_do_not_echo_without_bound() -> None:
    for text in (f"{'k' * 100_000}: 1", f"x: *{'a' * 100_000}", f"x: {'v' * 100_000}"):
        with pytest.raises(ValidationError) as refused:
            Record(load(text), ("x",)).integer("x", INT32)
        assert len(str(refused.value)) < 500
