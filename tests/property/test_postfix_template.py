from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ValidationError
from protocol.fragment import Fragment
from protocol.label import LabelSet
from protocol.postfix_template import PostfixTemplate, check_postfix_template, check_within_subset
from protocol.template.go_time import ZERO_NS, UtcTime
from protocol.template.objects import ZERO, PostfixData

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

times = st.integers(ZERO_NS, 253_402_300_800 * 10**9 - 1)
integers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(max_size=40)

# Pieces that make templates when shuffled, and near misses of templates more often.
pieces = st.sampled_from(
    [
        *(
            "{{",
            "}}",
            "{{ ",
            " }}",
            "{{- ",
            " -}}",
            " ",
            "(",
            ")",
            "|",
            ",",
            ":=",
            "=",
            "/*",
            "*/",
            "-",
            "\n",
            "é",
            "²",
        ),
        *("if ", "else ", "end", "range ", "with ", "template ", "define ", "block ", "break", "continue", "nil"),
        *(".", "$", "$x", ".Spool", ".Begin", ".FirstAppendTime", ".Format ", ".Name", ".Labels", ".ValueOf ", ".Nope"),
        *(".JournalSpec", ".Fragment", ".FlushInterval", ".Suspend", ".Sum", ".ToDigest", ".Stores", ".Registers"),
        *(
            "and ",
            "or ",
            "not ",
            "eq ",
            "lt ",
            "len ",
            "index ",
            "slice ",
            "print ",
            "printf ",
            "html ",
            "call ",
            "js ",
        ),
        *("0", "1", "-3", "1.5", "1e3", "0x1f", "1i", "99999999999999999999", "'a'", '"a"', '"%d"', '"%65000s"', "`b`"),
        *('"2006-01-02"', '"\\xff"', "true", "text", "{{ range 99999 }}", "{{ $x := 1 }}", "{{ if 1 }}", "{{ end }}"),
    ]
)
templates = st.one_of(st.lists(pieces, max_size=12).map("".join), texts)


def is_refused(template: str) -> bool:
    try:
        check_postfix_template(template)
    except ValidationError:
        return True
    return False


@given(times)
def test_a_full_layout_agrees_with_datetime(unix_ns: int) -> None:
    seconds, nanoseconds = divmod(unix_ns, 10**9)
    moment = EPOCH + timedelta(seconds=seconds)
    expected = f"{moment.replace(tzinfo=None).isoformat()}.{nanoseconds:09d}"
    assert UtcTime(unix_ns).format("2006-01-02T15:04:05.000000000") == expected


@given(times)
def test_names_and_twelve_hours_agree_with_datetime(unix_ns: int) -> None:
    moment = EPOCH + timedelta(seconds=unix_ns // 10**9)
    written = UtcTime(unix_ns).format("Monday Jan 02 002 03 PM")
    assert written == moment.strftime("%A %b %d %j %I %p")


# Every element of a layout holds a digit, but for these.
WORDS = ("Jan", "Mon", "MST", "PM", "pm")
without_digits = st.text(st.characters(exclude_characters="0123456789"), max_size=40)


@given(times, without_digits.filter(lambda text: not any(word in text for word in WORDS)))
def test_text_that_is_no_layout_is_left_alone(unix_ns: int, text: str) -> None:
    assert UtcTime(unix_ns).format(text) == text


@given(times, st.lists(st.sampled_from(["2006", "01", "02", "15", "04", "05", "Jan", "Mon"]), max_size=6))
def test_a_layout_is_written_element_by_element(unix_ns: int, elements: list[str]) -> None:
    time = UtcTime(unix_ns)
    assert time.format("/".join(elements)) == "/".join(map(time.format, elements))


@given(templates)
def test_no_input_is_answered_by_anything_but_a_validation_error(template: str) -> None:
    refused = is_refused(template)
    try:
        check_within_subset(template)
        PostfixTemplate.compile(template).render(ZERO)
    except ValidationError:
        return
    assert not refused, "what we evaluate, Go accepts"


@given(texts.filter(lambda text: "{{" not in text))
def test_plain_text_stands_for_itself(text: str) -> None:
    check_within_subset(text)
    assert PostfixTemplate.compile(text).render(ZERO) == text


@given(texts)
def test_any_text_can_be_quoted(text: str) -> None:
    quoted = "".join(f"\\U{ord(char):08x}" for char in text)
    assert PostfixTemplate.compile(f'{{{{ "{quoted}" }}}}').render(ZERO) == text
    printed = PostfixTemplate.compile(f'{{{{ printf "%q" "{quoted}" }}}}').render(ZERO)
    assert PostfixTemplate.compile(f"{{{{ {printed} }}}}").render(ZERO) == text


@given(integers, st.integers(0, 30), st.sampled_from("dxXob"))
def test_padded_integers_print_as_in_python(value: int, width: int, verb: str) -> None:
    data = PostfixData(Fragment("", value, value, bytes(20), ZERO.fragment.codec), None, LabelSet(), ZERO.spec)
    template = PostfixTemplate.compile(f'{{{{ printf "%0{width}{verb}|%{width}{verb}" .Spool.Begin .Spool.Begin }}}}')
    assert template.render(data) == f"{value:0{width}{verb}}|{value:{width}{verb}}"


@given(st.lists(st.tuples(texts, texts), max_size=5), texts)
def test_labels_are_found_by_name(pairs: list[tuple[str, str]], name: str) -> None:
    labels = LabelSet.of(*pairs)
    data = PostfixData(ZERO.fragment, None, labels, ZERO.spec)
    every = PostfixTemplate.compile("{{ range .Spool.Registers.Labels }}{{ .Name }}={{ .Value }};{{ end }}")
    assert every.render(data) == "".join(f"{label.name}={label.value};" for label in labels)
    quoted = "".join(f"\\U{ord(char):08x}" for char in name)
    one = PostfixTemplate.compile(f'{{{{ .Spool.Registers.ValueOf "{quoted}" }}}}')
    assert one.render(data) == labels.value_of(name)
