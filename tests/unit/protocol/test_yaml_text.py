from __future__ import annotations

import pytest

from protocol.yaml_text import Value, block

TEMPLATE = 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}/hour={{ .Spool.FirstAppendTime.Format "15" }}'


def printed(value: Value) -> str:
    return "\n".join(block({"x": value}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("a=b", "a=b"),
        ("s3://bucket/prefix/", "s3://bucket/prefix/"),
        ("5m0s", "5m0s"),
        ("<<", "<<"),
        ("", '""'),
        ("yes", '"yes"'),
        ("y", '"y"'),
        ("Off", '"Off"'),
        ("null", '"null"'),
        ("~", '"~"'),
        ("12", '"12"'),
        ("1_000", '"1_000"'),
        ("0x1F", '"0x1F"'),
        ("0o17", '"0o17"'),
        ("1e3", '"1e3"'),
        ("+1", '"+1"'),
        (".5", '".5"'),
        (".inf", '".inf"'),
        ("1e400", "1e400"),
        ("2026-01-02", '"2026-01-02"'),
        ("2026-1-2T3:4:5Z", '"2026-1-2T3:4:5Z"'),
        ("2026-01-02 03:04:05.5", '"2026-01-02 03:04:05.5"'),
        ("2026-02-30", "2026-02-30"),
        ("2026-01-02T03:04:05", "2026-01-02T03:04:05"),
        ("2026-01-02T25:04:05Z", "2026-01-02T25:04:05Z"),
        ("2026-01-02T03:60:05Z", "2026-01-02T03:60:05Z"),
        ("0000-02-29", '"0000-02-29"'),
        ("12:30:45", '"12:30:45"'),
        ("-", "'-'"),
        ("%", "'%'"),
        (" lead", "' lead'"),
        ("trail ", "'trail '"),
        ("a: b", "'a: b'"),
        ("a:b", "a:b"),
        ("end:", "'end:'"),
        ("x # y", "'x # y'"),
        ("x#y", "x#y"),
        ("--- x", "'--- x'"),
        ("it's", "it's"),
        ("'quoted'", "'''quoted'''"),
        ('"quoted"', "'\"quoted\"'"),
        ("{{ .X }}", "'{{ .X }}'"),
        ("{{ it's }}", "'{{ it''s }}'"),
        ("tab\there", '"tab\\there"'),
        ("漢字é", "漢字é"),
        ("😀", '"\\U0001F600"'),
        ("bell\x07", '"bell\\a"'),
        ("del\x7f", '"del\\x7F"'),
        ("nel\x85", '"nel\\N"'),
        ("bom\ufeff", '"bom\\uFEFF"'),
        ("a\u2028b", '"a\\Lb"'),
        ('\r"\\', '"\\r\\"\\\\"'),
    ],
)
def test_a_text_is_printed_in_the_lightest_form_that_holds_it(text: str, expected: str) -> None:
    assert printed(text) == f"x: {expected}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("multi\nline", "x: |-\n  multi\n  line"),
        ("one\n", "x: |\n  one"),
        ("two\n\n", "x: |+\n  two\n"),
        ("\n", "x: |2+\n"),
        (" lead\nline", "x: |2-\n   lead\n  line"),
        ("a\n\nb", "x: |-\n  a\n\n  b"),
        ("blank \nbefore", 'x: "blank \\nbefore"'),
        ("blank at\nend ", 'x: "blank at\\nend "'),
    ],
)
def test_a_text_of_several_lines_is_a_block_where_it_can(text: str, expected: str) -> None:
    assert printed(text) == expected


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("path_postfix_template", TEMPLATE, f"{TEMPLATE.replace('hour={{ ', 'hour={{@', 1)}"),
        ("x", "word " * 20 + "end", "word " * 15 + "word@" + "word " * 4 + "end"),
        ("x", "# " + "word " * 20 + "end", "'# " + "word " * 15 + "word@" + "word " * 4 + "end'"),
        ("x", "\t" + "word " * 20 + "end", '"\\t' + "word " * 15 + "word@" + "word " * 4 + 'end"'),
        ("x", "\t" + "a" * 80 + "  b", '"\\t' + "a" * 80 + '@\\ b"'),
        ("x", "a" * 80 + "  b", "a" * 80 + "  b"),
    ],
)
def test_a_long_text_is_folded_at_a_blank_past_column_80(key: str, text: str, expected: str) -> None:
    lines = "\n".join(block({key: text}))
    assert lines == f"{key}: " + expected.replace("@", "\n  ")


def test_blocks_are_indented_and_lists_are_not() -> None:
    value: Value = [{"a": 1, "b": {"c": True, "d": []}}, "text", {}, 7, {"e": {}, "f": ["g"]}]
    assert printed(value) == ("x:\n- a: 1\n  b:\n    c: true\n    d: []\n- text\n- {}\n- 7\n- e: {}\n  f:\n  - g")
