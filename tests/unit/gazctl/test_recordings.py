"""What Gazette's gazctl printed, printed by ours from the same answers of brokers, to the character."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner
from google.protobuf import json_format, text_format

from gazctl.attach_uuids import attach_uuids
from gazctl.journals.apply_command import apply
from gazctl.journals.edit_command import header
from gazctl.journals.fragments_command import table_of
from gazctl.journals.list_command import list_command, printed
from gazctl.output import json_text, proto_text
from protocol import json_form
from protocol.gen import journal_pb2 as pb
from tests.support.golden import GOLDEN, Case


def recorded(name: str) -> list[Case]:
    path = GOLDEN / "live" / "cli" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def by_name(name: str) -> dict[str, Case]:
    return {case["name"]: case for case in recorded(name)}


LISTS = by_name("journals-list")
FRAGMENTS = by_name("journals-fragments")


def listed(stdout: str) -> pb.ListResponse:
    return json_format.ParseDict(json.loads(stdout), pb.ListResponse())


def printed_for(argv: list[str], message: pb.ListResponse) -> str:
    """As the flags of a recording ask for it."""
    flags = [flag for flag in argv[3:] if not flag.startswith("--broker.address")]
    given = dict(list_command.make_context("list", flags).params)
    return printed(message, given)


ALL = {name: case for name, case in LISTS.items() if case["exit"] == 0 and not name.startswith("list selector")}
OF_NONE = ("list none yaml", "list none table", "list none json")


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("list one yaml", *OF_NONE)])
def test_journals_are_listed_as_gazette_lists_them(name: str) -> None:
    case = ALL[name]
    message = listed(LISTS["list json"]["stdout"])
    ours = printed_for(case["argv"], message)
    if "json" in case["argv"]:
        # It is a line of its own here.
        assert json.loads(ours) == json.loads(case["stdout"])
        assert ours == case["stdout"] + "\n"
    else:
        assert ours == case["stdout"]


@pytest.mark.parametrize("name", OF_NONE)
def test_an_empty_listing_looks_as_gazettes(name: str) -> None:
    ours = printed_for(ALL[name]["argv"], listed(LISTS["list none json"]["stdout"]))
    assert ours.rstrip("\n") == ALL[name]["stdout"].rstrip("\n")


def test_a_single_journal_has_no_directory_above_it() -> None:
    message = listed(LISTS["list json"]["stdout"])
    only = [journal for journal in message.journals if journal.spec.name == "golden/hive"]
    assert printed_for(LISTS["list one yaml"]["argv"], pb.ListResponse(journals=only)) == ALL["list one yaml"]["stdout"]


def fragment_lines(name: str) -> list[Any]:
    return [json.loads(line) for line in FRAGMENTS[name]["stdout"].splitlines()]


def fragments_of(name: str) -> list[pb.FragmentsResponse._Fragment]:
    return list(json_format.ParseDict({"fragments": fragment_lines(name)}, pb.FragmentsResponse()).fragments)


@pytest.mark.parametrize("name", ["fragments json", "fragments with URLs json", "fragments two journals"])
def test_fragments_are_json_lines_as_gazettes(name: str) -> None:
    ours = [json_text(json_form.plain(each)) for each in fragments_of(name)]
    assert ours == FRAGMENTS[name]["stdout"].splitlines()


@pytest.mark.parametrize(
    ("table", "source", "with_urls"),
    [("fragments table", "fragments json", False), ("fragments with URLs table", "fragments with URLs json", True)],
)
def test_a_table_of_fragments_looks_as_gazettes(table: str, source: str, with_urls: bool) -> None:
    found = fragments_of(source)
    # The recording was made 22 minutes after the first of them, and 20 after the last.
    now_s = max(each.spec.mod_time for each in found) + 20 * 60 + 1
    assert table_of(found, with_urls, now_s) + "\n" == FRAGMENTS[table]["stdout"]


def test_no_fragments_are_an_empty_table() -> None:
    assert table_of([], False, 0.0) + "\n" == FRAGMENTS["fragments no match"]["stdout"]


def test_fragments_are_printed_as_proto_text_as_gazette_prints_them() -> None:
    stdout = FRAGMENTS["fragments proto"]["stdout"]
    assert proto_text(text_format.Parse(stdout, pb.FragmentsResponse())) == stdout


APPLIES = [case for case in recorded("journals-apply") if case["exit"] is not None]


@pytest.mark.parametrize(
    "case", [case for case in APPLIES if "--dry-run" in case["argv"]], ids=lambda case: case["name"]
)
def test_a_dry_run_shows_the_request_as_gazette_does(case: Case) -> None:
    ran = CliRunner().invoke(apply, ["--specs=-", "--dry-run"], input=case["stdin"])
    assert ran.exit_code == 0
    assert ran.stdout == case["stdout"]


WRONG_FILES = [case for case in APPLIES if case["exit"] == 1 and "conflict" not in case["name"]]


@pytest.mark.parametrize("case", WRONG_FILES, ids=lambda case: case["name"])
def test_what_gazette_does_not_apply_we_do_not_either(case: Case) -> None:
    specs = next(flag for flag in case["argv"] if flag.startswith("--specs"))
    ran = CliRunner().invoke(apply, [specs, "--broker.address=http://127.0.0.1:1"], input=case.get("stdin", ""))
    assert ran.exit_code == 1
    assert ran.stdout == ""
    assert "127.0.0.1" not in ran.stderr, "it is found out before a broker is asked"


BEYOND = """
name: acme/a
replication: 1
revision: REVISION
fragment: {length: 1048576, compression_codec: GZIP, stores: ["file:///"], refresh_interval: 1m0s,
  path_postfix_template: '{{ js "a" }}'}
"""


@pytest.mark.parametrize("mode", ["--dry-run", "--broker.address=http://127.0.0.1:1"])
def test_a_template_that_no_broker_would_take_is_refused_before_one_is_asked(mode: str) -> None:
    ran = CliRunner().invoke(apply, [mode], input=BEYOND.replace("REVISION", "0"))
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert "fragment.path_postfix_template of acme/a: calls js; a path postfix may use" in ran.stderr
    assert "127.0.0.1" not in ran.stderr


def test_a_template_that_may_be_there_already_is_for_brokers_to_judge() -> None:
    ran = CliRunner().invoke(apply, ["--dry-run"], input=BEYOND.replace("REVISION", "-1"))
    assert ran.exit_code == 0
    assert "path_postfix_template" in ran.stdout
    assert "Brokers refuse it, unless the journal has this template already." in ran.stderr


def test_the_editors_header_is_gazettes() -> None:
    seen = {case["name"]: case["stdout"] for case in recorded("journals-edit") if not case["argv"]}
    first, second = seen["file the editor saw: seen-0.yaml"], seen["file the editor saw: seen-1.yaml"]
    assert first.startswith(header("") + "name:")
    problem = "Changes[0].Upsert: invalid Replication (9; expected 1 <= Replication <= 5)"
    assert second.startswith(header(problem) + "name:")


UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
ATTACHED = [case for case in recorded("misc") if case["argv"][1] == "attach-uuids"]


@pytest.mark.parametrize("case", ATTACHED, ids=lambda case: case["name"])
def test_uuids_are_attached_as_gazette_attaches_them(case: Case) -> None:
    ran = CliRunner().invoke(attach_uuids, case["argv"][2:], input=case["stdin"])
    assert ran.exit_code == case["exit"]
    assert UUID.sub("<uuid>", ran.stdout) == UUID.sub("<uuid>", case["stdout"])
    found = [uuid for line in ran.stdout.splitlines() for uuid in UUID.findall(line)]
    assert len(set(found)) == len(found)
    assert {uuid[19:] for uuid in found} == {uuid[19:] for uuid in found[:1]}, "of one producer, outside transactions"
