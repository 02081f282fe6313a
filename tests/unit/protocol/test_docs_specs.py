"""The page for users, docs/specs.md, held against the code: its examples are run and its limits tried."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import jwt
import pytest

from protocol import duration, journal_tree, shard_set
from protocol.auth import LEEWAY_S, Capability, Keys
from protocol.codec import CompressionCodec
from protocol.errors import PermissionDeniedError, ValidationError
from protocol.fragment import Fragment
from protocol.journal import JournalSpec
from protocol.label import LabelSet
from protocol.postfix_template import SUBSET, PostfixTemplate, check_postfix_template, check_within_subset
from protocol.selector import LabelSelector
from protocol.template.objects import PostfixData

PAGE = (Path(__file__).parents[3] / "docs" / "specs.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no {language} block"
    return found


def table(header: str) -> list[list[str]]:
    """The rows of the table with this header line, each cell without its backticks if it is all code."""
    _, found, rest = PAGE.partition(f"{header}\n")
    assert found, f"the page has no table {header}"
    rows = []
    for line in rest.splitlines()[1:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows.append([cell[1:-1] if re.fullmatch("`[^`]*`", cell) else cell for cell in cells])
    assert rows
    return rows


def labels(text: str) -> LabelSet:
    pairs = [pair.partition("=") for pair in text.split(", ")]
    return LabelSet.of(*((name, value) for name, _, value in pairs))


JOURNALS = [block for block in blocks("yaml") if not block.startswith("common:")]
SHARDS = [block for block in blocks("yaml") if block.startswith("common:")]
WRITTEN, PUSHED_DOWN, HOISTED = JOURNALS
LIMITS = {row[0]: row[1] for row in table("| field | unit and limits | inherited |")}


@pytest.mark.parametrize(("selector", "matching", "other"), table("| selector | matches | does not match |"))
def test_selectors_match_as_the_page_says(selector: str, matching: str, other: str) -> None:
    parsed = LabelSelector.parse(selector)
    assert parsed.matches(labels(matching))
    assert not parsed.matches(labels(other))
    assert LabelSelector.parse(str(parsed)) == parsed


@pytest.mark.parametrize("selector", [row[0] for row in table("| selector | because |")])
def test_selectors_are_refused_as_the_page_says(selector: str) -> None:
    with pytest.raises(ValidationError):
        LabelSelector.parse(selector)


@pytest.mark.parametrize("text", JOURNALS)
def test_journals_of_the_page_can_be_applied(text: str) -> None:
    assert journal_tree.parse(text).changes


@pytest.mark.parametrize("text", SHARDS)
def test_shards_of_the_page_can_be_applied(text: str) -> None:
    assert [change.upsert.id for change in shard_set.parse(text).changes] == ["orders-000", "orders-001"]


def upserts(text: str) -> list[JournalSpec]:
    return [JournalSpec.from_proto(change.upsert) for change in journal_tree.parse(text).changes]


def test_the_page_pushes_down_and_hoists_as_the_code_does() -> None:
    specs = upserts(WRITTEN)
    assert journal_tree.hoist([(specs[2], 0)]) == PUSHED_DOWN
    assert journal_tree.hoist((spec, 7) for spec in specs) == HOISTED
    assert upserts(HOISTED) == specs


def test_the_page_names_every_field() -> None:
    record = {name for name in LIMITS if "." not in name} | {"fragment"}
    with pytest.raises(ValidationError) as refused:
        journal_tree.decode("nothing: 1")
    assert set(refused.value.rule.partition("expected one of ")[2].split(", ")) == record
    with pytest.raises(ValidationError) as refused:
        journal_tree.decode("fragment: {nothing: 1}")
    fields = {name.removeprefix("fragment.") for name in LIMITS if "." in name}
    assert set(refused.value.rule.partition("expected one of ")[2].split(", ")) == fields


def with_field(field: str, value: str) -> str:
    """The journal of the page that has everything, with another value of one field."""
    spec = JournalSpec.from_proto(journal_tree.parse(PUSHED_DOWN).changes[0].upsert)
    text = journal_tree.hoist([(spec, 0)])
    key = field.removeprefix("fragment.")
    indent = "  " if "." in field else ""
    without = re.sub(rf"^{indent}{key}:.*\n(?:{indent}- .*\n)*", "", text, flags=re.MULTILINE)
    anchor = "fragment:\n" if indent else ""
    return without.replace(anchor, f"{anchor}{indent}{key}: {value}\n", 1) if anchor else f"{key}: {value}\n{without}"


@pytest.mark.parametrize(
    ("field", "stated", "allowed", "refused"),
    [
        ("name", "4 to 512 bytes", ["acme", "a" * 512], ["acm", "a" * 513, "/acme", "acme//x", "ac me"]),
        ("replication", "1 to 5", ["1", "5"], ["0", "6"]),
        ("fragment.length", "1024 to 17179869184", ["1024", "17179869184"], ["1023", "17179869185"]),
        ("fragment.refresh_interval", "1s to 24h", ["1s", "24h"], ["999ms", "24h1ns", "300"]),
        ("fragment.retention", "zero or less", ["-1s", "0", "720h"], []),
        ("fragment.flush_interval", "1m or more", ["0", "1m"], ["59s"]),
        ("max_append_rate", "not negative", ["0"], ["-1"]),
        ("flags", "`O_RDWR`, `O_RDONLY`, `O_WRONLY`", ["O_RDWR", "O_RDONLY", "O_WRONLY"], ["3", "RDWR"]),
        ("fragment.compression_codec", "`NONE`", [c.name for c in CompressionCodec if c], ["INVALID", "1"]),
        ("fragment.stores", "end in a slash", ["[gs://b/x/]", "[]"], ["[gs://b/x]"]),
        ("delete", "needs a `revision`", ["false"], ["true"]),
        ("revision", "-1, whatever", ["0", "-1", "7"], ["-2"]),
    ],
)
def test_limits_are_as_the_page_says(field: str, stated: str, allowed: list[str], refused: list[str]) -> None:
    assert stated in LIMITS[field]
    for value in allowed:
        assert journal_tree.parse(with_field(field, value)).changes
    for value in refused:
        with pytest.raises(ValidationError):
            journal_tree.parse(with_field(field, value))


def test_every_codec_is_on_the_page() -> None:
    assert re.findall(r"`([A-Z_]+)`", LIMITS["fragment.compression_codec"]) == [c.name for c in CompressionCodec if c]


@pytest.mark.parametrize("value", ["!!int 3.7", "{<<: 1}"])
def test_what_the_page_calls_an_error_is_one(value: str) -> None:
    with pytest.raises(ValidationError, match="line"):
        journal_tree.parse(with_field("replication", value))


@pytest.mark.parametrize(("written", "listed"), table("| written | listed as |"))
def test_durations_are_listed_as_the_page_says(written: str, listed: str) -> None:
    assert duration.to_text(duration.parse(written)) == listed


def test_there_are_no_days() -> None:
    with pytest.raises(ValidationError):
        duration.parse("1d")


DATA = PostfixData(
    Fragment("acme/orders/part-000", 0, 4096, bytes(20), CompressionCodec.ZSTANDARD),
    1_700_000_000 * 10**9,
    LabelSet(),
    JournalSpec("acme/orders/part-000", labels=LabelSet.of(("region", "eu"))),
)


def test_templates_of_the_page_render_as_it_says() -> None:
    rendered = []
    for text in blocks("template"):
        template = text.rstrip("\n")
        check_postfix_template(template)
        check_within_subset(template)
        rendered.append(PostfixTemplate.compile(template).render(DATA))
    assert rendered == ["date=2023-11-14/hour=22", "region=eu/codec=ZSTANDARD"]
    assert f"`{rendered[0]}`" in PAGE


def test_the_page_states_the_subset_of_templates() -> None:
    plain = " ".join(PAGE.replace("`", "").split())
    assert SUBSET.removeprefix("a path postfix may use ") in plain


def test_capabilities_are_as_the_page_says() -> None:
    rows = table("| capability | `cap` | for |")
    assert {name: int(bits) for name, bits, _ in rows} == {
        name: flag.value for name, flag in Capability.__members__.items()
    }


def test_the_claims_of_the_page_grant_what_it_says() -> None:
    (text,) = blocks("json")
    secret = bytes(range(32))
    token = jwt.encode(json.loads(text), secret, "HS256")
    keys = Keys.parse(base64.b64encode(secret).decode())
    granted = keys.verify(f"Bearer {token}", Capability.READ | Capability.LIST, now_s=1_900_000_000)
    assert granted.selector == LabelSelector.parse("name:prefix=acme/")
    assert granted.capability == Capability.READ | Capability.LIST
    with pytest.raises(PermissionDeniedError):
        keys.verify(f"Bearer {token}", Capability.APPEND, now_s=1_900_000_000)
    assert f"differ by {LEEWAY_S} seconds" in PAGE


def test_the_caution_about_the_key_that_is_none_is_true() -> None:
    with pytest.raises(ValidationError):
        Keys.parse("AA==")
    keys = Keys.parse("AA== c2VjcmV0")
    assert keys.allow_missing
    assert keys.verify(None, Capability.ALL, now_s=1_900_000_000).selector == LabelSelector()
    assert any("shorter than 32" in weakness for weakness in keys.weaknesses())
