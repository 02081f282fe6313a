from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb
from protocol.identifier import POSTFIX_BYTES, check_path_component
from protocol.journal import FragmentPolicy, JournalSpec, Suspend
from protocol.label import LabelSet
from protocol.postfix_template import PostfixTemplate, check_postfix_template, check_within_subset
from protocol.template.objects import ZERO, PostfixData
from tests.support.golden import Case, case_id, cases
from tests.support.message_types import message_class

HIVE = 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}/hour={{ .Spool.FirstAppendTime.Format "15" }}'

DATA = PostfixData(
    Fragment(
        "acme/orders/part-000;meta",
        1024,
        2048,
        bytes.fromhex("8843d7f92416211de9ebb963ff4ce28125932878"),
        CompressionCodec.ZSTANDARD,
        "s3://bucket/prefix/",
    ),
    1_772_587_965_678_901_230,
    LabelSet.of(("author", "abc"), ("author", "def")),
    JournalSpec(
        "acme/orders/part-000",
        replication=3,
        labels=LabelSet.of(("region", "eu"), ("tier", "a"), ("tier", "b")),
        fragment=FragmentPolicy(
            length=1 << 20,
            compression_codec=CompressionCodec.GZIP,
            stores=("s3://bucket/prefix/", "gs://other/"),
            retention_ns=2_592_000 * 10**9,
            flush_interval_ns=5400 * 10**9,
        ),
        flags=4,
        suspend=Suspend(1, 77),
    ),
)


def accepted(template: str) -> bool:
    try:
        check_postfix_template(template)
    except ValidationError:
        return False
    return True


def rendered(template: str, data: PostfixData = DATA) -> str:
    return PostfixTemplate.compile(template).render(data)


def is_listable(postfix: str) -> bool:
    try:
        check_path_component(postfix, *POSTFIX_BYTES)
    except ValidationError:
        return False
    return True


def unix_ns(text: str) -> int:
    """Of a time such as 2026-01-02T03:04:05.678901234Z: nine digits are more than `datetime` keeps."""
    seconds, _, fraction = text.rstrip("Z").partition(".")
    passed = datetime.fromisoformat(seconds).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * 10**9 + int(fraction.ljust(9, "0"))


def data_of(case: Case) -> PostfixData:
    spool = case["spool"]
    return PostfixData(
        Fragment(
            spool["journal"],
            spool["begin"],
            spool["end"],
            bytes.fromhex(spool["sum"]),
            CompressionCodec[spool["codec"]],
            spool.get("backing_store", ""),
            spool.get("mod_time", 0),
            spool.get("path_postfix", ""),
        ),
        unix_ns(case["first_append_time"]),
        LabelSet.of(*((label["name"], label["value"]) for label in case["registers"])),
        JournalSpec.from_proto(json_format.ParseDict(case["spec"], pb.JournalSpec())),
    )


@pytest.mark.parametrize("case", cases("fragments", "postfix"), ids=case_id)
def test_templates_are_judged_as_in_gazette(case: Case) -> None:
    assert accepted(case["template"]) == case["passes_validation"]


@pytest.mark.parametrize("case", cases("fragments", "postfix"), ids=case_id)
def test_templates_render_as_in_gazette(case: Case) -> None:
    if case.get("postfix") is None:
        with pytest.raises(ValidationError):
            rendered(case["template"], data_of(case))
        return
    postfix = rendered(case["template"], data_of(case))
    assert postfix == case["postfix"]
    assert is_listable(postfix) == case["postfix_listable"]


def templates_in(message: Message) -> Iterator[str]:
    """Every postfix template of a message and of those within."""
    for field, value in message.ListFields():
        if field.name == "path_postfix_template":
            yield value
        elif field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from templates_in(inner)


@pytest.mark.parametrize(
    "case", [case for case in cases("validation") if "postfix template" in case["rule"]], ids=case_id
)
def test_specs_are_refused_for_the_templates_that_gazette_refuses(case: Case) -> None:
    message = message_class(case["type"]).FromString(bytes.fromhex(case["hex"]))
    assert all(map(accepted, templates_in(message))) == case["ok"]


# What Go 1.26 makes of these templates, over objects of the same shape as Gazette's.
RENDERED = [
    (HIVE, "date=2026-03-04/hour=01"),
    (
        '{{ printf "%04d/%02d/%02d" .Spool.FirstAppendTime.Year .Spool.FirstAppendTime.Month '
        ".Spool.FirstAppendTime.Day }}",
        "2026/03/04",
    ),
    ('{{ with .Spool.FirstAppendTime }}{{ .Year }}-{{ .YearDay | printf "%03d" }}{{ end }}', "2026-063"),
    (
        "{{ $t := .Spool.FirstAppendTime.UTC }}{{ $t.Hour }}.{{ $t.Minute }}.{{ $t.Second }}.{{ $t.Nanosecond }}",
        "1.32.45.678901230",
    ),
    ('{{ .Spool.FirstAppendTime.Weekday }}={{ printf "%d" .Spool.FirstAppendTime.Weekday }}', "Wednesday=3"),
    (
        "{{ .Spool.FirstAppendTime.UnixMilli }}/{{ .Spool.FirstAppendTime.UnixNano }}",
        "1772587965678/1772587965678901230",
    ),
    ('region={{ .LabelSet.ValueOf "region" }}/tier={{ index (.LabelSet.ValuesOf "tier") 1 }}', "region=eu/tier=b"),
    (
        "{{ range $i, $label := .Labels }}{{ if $i }}/{{ end }}{{ $label.Name }}={{ $label.Value }}{{ end }}",
        "region=eu/tier=a/tier=b",
    ),
    ('{{ range .LabelSet.ValuesOf "none" }}x{{ else }}no-tier{{ end }}', "no-tier"),
    (
        "{{ range 5 }}{{ if eq . 1 }}{{ continue }}{{ end }}{{ if eq . 3 }}{{ break }}{{ end }}{{ . }}{{ end }}",
        "02",
    ),
    (
        '{{ if .ValueOf "zone" }}zone{{ else if eq (.ValueOf "region") "us" "eu" }}known{{ else }}other{{ end }}',
        "known",
    ),
    ('{{ with .ValueOf "zone" }}{{ . }}{{ else with .ValueOf "region" }}r-{{ . }}{{ end }}', "r-eu"),
    ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ $y := 3 }}{{ $y }}{{ end }}{{ $x }}", "32"),
    (
        "{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}{{ range 2 }}{{ $x }}{{ $x := 9 }}{{ end }}",
        "2111",
    ),
    ('a  {{- /* note */ -}}  b {{ "c" -}} \n d', "ab cd"),
    ('{{ and 0 1 }}{{ or 0 "x" }}{{ not 1 }}{{ and 1 2 }}{{ and nil }}', "0xfalse2<no value>"),
    ('{{ lt 1 2 }}{{ le "a" "b" }}{{ gt 1 2 }}{{ ge 2 2 }}{{ ne 1 2 }}', "truetruefalsetruetrue"),
    ('{{ len .Name }}{{ len "é" }}{{ len (.LabelSet.ValuesOf "tier") }}', "2022"),
    ('{{ slice .Name.String 5 11 }}{{ slice "abc" 2 }}{{ index "abc" 1 }}', "ordersc98"),
    ('{{ print 1 2 "a" 3 4 }}|{{ print }}|{{ println 1 "a" }}', "1 2a3 4||1 a\n"),
    (
        '{{ printf "%x/%X/%08b/%o/%#x/%+d/%6d/%-6d|" 255 255 5 8 255 7 42 42 }}',
        "ff/FF/00000101/10/0xff/+7/    42/42    |",
    ),
    (
        '{{ printf "%q/%s/%.2s/%5s/%-5s|%v" "a\\"b\\n" "x" "abc" "ab" "ab" true }}',
        '"a\\"b\\n"/x/ab/   ab/ab   |true',
    ),
    ('{{ printf "%t%%/%.2f/%07.1f/%v/%v" false 1.005 -2.25 1e6 0.00001 }}', "false%/1.00/-0002.2/1e+06/1e-05"),
    ('{{ printf "%x" .Spool.Sum.ToDigest }}', "8843d7f92416211de9ebb963ff4ce28125932878"),
    ("{{ .Spool.Sum.Part3 }}/{{ .Spool.Sum.IsZero }}", "630401144/false"),
    (
        '{{ .Spool.CompressionCodec }}{{ printf "/%d/" .Spool.CompressionCodec }}'
        "{{ .JournalSpec.Fragment.CompressionCodec.ToExtension }}",
        "ZSTANDARD/3/.gz",
    ),
    (
        "{{ with .JournalSpec.Fragment }}{{ .FlushInterval }}/{{ .FlushInterval.Hours }}/"
        "{{ .Retention.Seconds }}{{ end }}",
        "1h30m0s/1.5/2.592e+06",
    ),
    ("{{ .JournalSpec.Suspend.GetLevel }}/{{ .JournalSpec.Suspend.Offset }}/{{ .Flags.MayWrite }}", "PARTIAL/77/true"),
    (
        '{{ .Spool.Journal.StripMeta }}/{{ urlquery "a b/c" .Name }}',
        "acme/orders/part-000/a+b%2Fcacme%2Forders%2Fpart-000",
    ),
    ('{{ html "<&\'\\">" }}', "&lt;&amp;&#39;&#34;&gt;"),
    ("{{ (.Spool.FirstAppendTime.UTC).Month.String }}/{{ ($).Name }}", "March/acme/orders/part-000"),
    (
        "{{ 0x1F }}/{{ 0b11 }}/{{ 0o17 }}/{{ 017 }}/{{ 1_000 }}/{{ 'a' }}/{{ -3 }}/{{ 1.50 }}/{{ 1e3 }}/{{ 0x1p4 }}",
        "31/3/15/15/1000/97/-3/1.5/1000/16",
    ),
    ('{{ "\\x41\\u00e9\\101\\t" }}{{ `raw\\n\r\n` }}', "AéA\traw\\n\n"),
    (
        '{{ printf "%v %v" (.LabelSet.ValuesOf "tier") .JournalSpec.Fragment.Stores }}',
        "[a b] [s3://bucket/prefix/ gs://other/]",
    ),
    ('{{ 1 | }}{{ "tier" | .LabelSet.ValueOf }}{{ .Name | len | printf "%03d" }}', "1a020"),
    (
        "{{ (and nil).Anything }}/{{ print nil }}/{{ .Name.Validate }}/{{ eq .Name.Validate nil }}",
        "<no value>/<nil>/<nil>/true",
    ),
]


@pytest.mark.parametrize(("template", "postfix"), RENDERED, ids=[template for template, _ in RENDERED])
def test_templates_render_as_in_go(template: str, postfix: str) -> None:
    assert rendered(template) == postfix


@pytest.mark.parametrize(
    "template",
    [
        *("{{", "{{ .Name", "{{ }}", "{{ . Name }}", "{{ .Name. }}", "{{ .name }}", '{{ "open }}', "{{ 'ab' }}"),
        *(
            '{{ "\\q" }}',
            "{{ 1__0 }}",
            "{{ 089 }}",
            "{{ 1e999 }}",
            "{{ 9223372036854775808 }}",
            "{{ 3-3 }}",
            "{{ 0x1i }}",
        ),
        *("{{ -}}", "{{ /* spaced */ }}", "{{/* open }}", "{{ $x }}", "{{ $x = 1 }}", "{{ $x, $y := 1 }}"),
        *("{{ if 1 }}", "{{ if 1 }}{{ else }}{{ else }}{{ end }}", "{{ if 1 }}{{ else with 1 }}{{ end }}"),
        *("{{ break }}", '{{ template "none" }}', '{{ define "a" }}x{{ end }}{{ define "a" }}y{{ end }}'),
        *("{{ 1 | 2 }}", "{{ 1 | .Name }}", "{{ .Name 1 }}", "{{ $ 1 }}", "{{ (1) 2 }}", "{{ print( 1 ) 2( 3 ) }}"),
        *("{{ eq 1 }}", '{{ eq 1 "1" }}', "{{ lt true false }}", "{{ not }}", "{{ len 3 }}", "{{ and }}"),
        *("{{ index .Labels 0 }}", '{{ index "abc" 3 }}', '{{ slice "abc" 2 1 }}', "{{ call 1 }}", "{{ printf 1 }}"),
        *("{{ printf .Name }}", "{{ .LabelSet.ValueOf .Name }}", '{{ .LabelSet.ValueOf "a" "b" }}'),
        *("{{ .Spool.FirstAppendTime.Date }}", "{{ .Spool.FirstAppendTime.Add }}", "{{ .JournalSpec.Suspend.Level }}"),
        *("{{ .Spool.CompressionCodec.ToExtension }}", "{{ .JournalSpec.Validate }}", "{{ nil }}"),
        *("{{ .JournalSpec.Name.SplitMeta }}", '{{ range "abc" }}{{ end }}', "{{ range $i, $n := 3 }}{{ end }}"),
        *("{{ if 1 }}{{ $x := 1 }}{{ end }}{{ if 0 }}{{ $x }}{{ end }}", '{{ index "abc" true }}'),
        # What comes after something that we cannot print is still judged.
        "{{ .Spool }}{{ .Nope }}",
    ],
)
def test_what_go_refuses_is_refused(template: str) -> None:
    assert not accepted(template)


BEYOND = [
    ("{{ .Spool }}", "whole message"),
    ("{{ range .Labels }}{{ . }}{{ end }}", "whole message"),
    ("{{ .Spool.FirstAppendTime.AddDate 0 0 1 }}", r"\.AddDate"),
    ("{{ .Spool.FirstAppendTime.Local }}", r"\.Local"),
    ("{{ .JournalSpec.Suspend.String }}", r"\.String"),
    ('{{ js "a" }}', "js"),
    ("{{ if .Spool.Begin }}{{ js 1 }}{{ end }}", "js"),
    ("{{ if .Spool.Begin }}{{ .Nope }}{{ end }}", r"\.Nope"),
    ("{{ 1i }}{{ 09i }}{{ 1+2i }}", "complex number"),
    ('{{ "\\xff" }}', "not UTF-8"),
    ('{{ printf "%d" "text" }}', "%d"),
    ('{{ printf "%s" 5 }}', "%s"),
    ('{{ printf "%d" }}', "fewer values"),
    ('{{ printf "x" 1 }}', "more values"),
    ('{{ define "a" }}x{{ end }}{{ template "a" }}', "another template"),
    ('{{ block "a" . }}x{{ end }}', "another template"),
    ("{{ eq .Spool.Sum .Spool.Sum }}", "whole objects"),
]


@pytest.mark.parametrize(("template", "what"), BEYOND, ids=[template for template, _ in BEYOND])
def test_what_go_accepts_beyond_our_subset_is_valid_but_not_for_our_apply(template: str, what: str) -> None:
    check_postfix_template(template)
    with pytest.raises(ValidationError, match=f"{what}.*a path postfix may use"):
        check_within_subset(template)


def test_a_field_that_means_two_things_when_persisting_is_not_for_our_apply() -> None:
    check_postfix_template("{{ .Fragment.Length }}")
    with pytest.raises(ValidationError, match="two things"):
        check_within_subset("{{ .Fragment.Length }}")
    assert rendered("{{ .JournalSpec.Fragment.Length }}") == "1048576"


@pytest.mark.parametrize(
    "template", ["", "plain", HIVE, '{{ .LabelSet.ValueOf "region" }}', "{{ range .Labels }}x{{ end }}"]
)
def test_common_templates_are_within_the_subset(template: str) -> None:
    check_within_subset(template)


def test_a_spool_without_an_append_has_the_zero_time() -> None:
    assert rendered(HIVE, ZERO) == "date=0001-01-01/hour=00"


def test_structs_are_true_even_if_empty_and_lists_are_not() -> None:
    assert rendered("{{ if .LabelSet }}set{{ end }}{{ if .Labels }}labels{{ end }}", ZERO) == "set"


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        ("x" * (16 * 1024 + 1), "16384 bytes"),
        ("\ud800", "UTF-8"),
        ("{{ " + "(" * 60 + "1" + ")" * 60 + " }}", "50 deep"),
        ("{{ if 1 }}" * 60 + "{{ end }}" * 60, "50 deep"),
        ("{{ if 0 }}" + "{{ else if 0 }}" * 60 + "{{ end }}", "50 deep"),
        ("{{ range 100000 }}{{ range 100000 }}{{ end }}{{ end }}", "10000 steps"),
        ('{{ $x := "0123456789" }}' + '{{ $x = printf "%s%s" $x $x }}' * 50, "65536 characters"),
        ('{{ $x := printf "%60000d" 1 }}{{ print $x $x }}', "65536 characters"),
        ('{{ $x := printf "%60000d" 1 }}{{ println $x $x }}', "65536 characters"),
        ('{{ printf "%999999d" 1 }}', "65536 characters"),
        ('{{ printf "%60000d" 1 }}{{ printf "%60000d" 1 }}', "65536 characters"),
        ("{{ " + "9" * 16_000 + " }}", "not a number"),
        ("{{ 0x1p" + "9" * 16_000 + " }}", "not a number"),
    ],
    ids=lambda value: value[:24],
)
def test_hostile_templates_are_refused_before_they_cost_much(template: str, rule: str) -> None:
    for judge in (check_postfix_template, check_within_subset, rendered):
        with pytest.raises(ValidationError, match=re.escape(rule)):
            judge(template)


@pytest.mark.parametrize("template", ["{{ " + "x" * 9000, "{{ ." + "x" * 9000 + " }}", "{{ " + "x" * 9000 + " }}"])
def test_errors_do_not_echo_long_input(template: str) -> None:
    with pytest.raises(ValidationError) as refused:
        check_postfix_template(template)
    assert len(str(refused.value)) < 200
