from __future__ import annotations

import pytest
from google.protobuf.json_format import ParseDict

from protocol import journal_tree, spec_file
from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.journal import FragmentPolicy, JournalSpec, Suspend
from protocol.label import LabelSet
from tests.support.golden import Case, case_id, cases

SHARED = """
replication: 3
labels:
- name: tier
  value: gold
fragment:
  length: 1048576
  compression_codec: GZIP
  stores:
  - s3://bucket/
  refresh_interval: 5m0s
"""


def stage_and_error(text: str) -> tuple[str, ValidationError]:
    """Where a file is refused, told by which of the steps of ``parse`` fails."""
    try:
        nodes = journal_tree.decode(text)
    except ValidationError as error:
        return "decode", error
    try:
        journal_tree.check(nodes)
    except ValidationError as error:
        return "tree", error
    with pytest.raises(ValidationError) as refused:
        journal_tree.parse(text)
    return "validate", refused.value


def is_at(expected: str, path: tuple[str, ...]) -> bool:
    """Whether a path is the expected one, or leads to a field of it."""
    return not expected or f"{'.'.join(path)}.".startswith(f"{expected}.")


@pytest.mark.parametrize("case", [c for c in cases("yaml", "journal-tree") if c["ok"]], ids=case_id)
def test_trees_flatten_as_in_gazette(case: Case) -> None:
    request = journal_tree.parse(case["yaml"])
    assert request == pb.ApplyRequest.FromString(bytes.fromhex(case["apply_request_hex"]))
    assert request == ParseDict(case["changes"], pb.ApplyRequest())


@pytest.mark.parametrize("case", [c for c in cases("yaml", "journal-tree") if not c["ok"]], ids=case_id)
def test_trees_are_refused_where_gazette_refuses_them(case: Case) -> None:
    stage, error = stage_and_error(case["yaml"])
    assert stage == case["fails_at"]
    assert is_at(case["path"], error.path[1:] if stage == "validate" else error.path)
    assert "line " in error.rule
    with pytest.raises(ValidationError):
        journal_tree.parse(case["yaml"])


def listed(case: Case) -> list[tuple[JournalSpec, int]]:
    return [
        (
            JournalSpec.from_proto(pb.JournalSpec.FromString(bytes.fromhex(journal["spec_hex"]))),
            journal["mod_revision"],
        )
        for journal in case["journals"]
    ]


@pytest.mark.parametrize("case", cases("yaml", "journal-hoist"), ids=case_id)
def test_listings_print_as_in_gazette(case: Case) -> None:
    assert journal_tree.hoist(listed(case)) == case["yaml"]


@pytest.mark.parametrize("case", cases("yaml", "journal-hoist"), ids=case_id)
def test_listings_flatten_to_what_was_listed(case: Case) -> None:
    request = journal_tree.flatten(journal_tree.decode(case["yaml"]))
    assert request == pb.ApplyRequest(
        changes=[
            pb.ApplyRequest.Change(expect_mod_revision=revision, upsert=spec.to_proto())
            for spec, revision in listed(case)
        ]
    )
    if case["applies_again"]:
        assert journal_tree.parse(case["yaml"]) == request
    else:
        with pytest.raises(ValidationError):
            journal_tree.parse(case["yaml"])


def spec(name: str, max_append_rate: int = 0) -> JournalSpec:
    policy = FragmentPolicy(1 << 20, CompressionCodec.GZIP, ("s3://bucket/",), 300 * 10**9)
    return JournalSpec(name, 3, LabelSet.of(("tier", "gold")), policy, max_append_rate=max_append_rate)


def test_a_listing_says_everything_once() -> None:
    journals = [(spec("acme/a1"), 5), (spec("acme/b/c2"), 6), (spec("acme/b/d3", max_append_rate=10), 7)]
    assert journal_tree.hoist(journals) == (
        f"name: acme/{SHARED}"
        "children:\n"
        "- name: acme/a1\n"
        "  revision: 5\n"
        "- name: acme/b/\n"
        "  children:\n"
        "  - name: acme/b/c2\n"
        "    revision: 6\n"
        "  - name: acme/b/d3\n"
        "    max_append_rate: 10\n"
        "    revision: 7\n"
    )


def test_suspension_stays_with_its_journal_even_if_all_share_it() -> None:
    suspended = [JournalSpec(f"acme/{name}", 3, suspend=Suspend(offset=5)) for name in ("one", "two")]
    text = journal_tree.hoist((each, 1) for each in suspended)
    assert text.count("suspend:") == 2
    assert text.index("children:") < text.index("suspend:")


def test_a_suspension_without_content_is_still_printed() -> None:
    assert "suspend: {}\n" in journal_tree.hoist([(JournalSpec("acme/one", suspend=Suspend()), 1)])


def test_numbers_without_a_name_are_printed_as_numbers() -> None:
    text = journal_tree.hoist([(JournalSpec("acme/one", flags=9, suspend=Suspend(level=7)), 1)])
    assert text == "name: acme/one\nflags: 9\nsuspend:\n  level: 7\nrevision: 1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: acme/one\nlenght: 3", r"^line 2: unknown key 'lenght' in a node of the tree: expected one of comment"),
        ("name: acme/\nchildren:\n- nmae: acme/x", "^line 3: unknown key 'nmae' in a node of the tree"),
        ("fragment:\n  length: 1\n  length: 2", "^line 3: the key 'length' is given twice in fragment"),
        ("labels:\n- name: aa\n  vlaue: x", "^line 3: unknown key 'vlaue' in an item of labels"),
        ("name: x\nreplication: three", "^line 2: replication: expected a whole number .* 'three'"),
        ("name: x\nreplication: [3]", "^line 2: replication: expected a whole number .* a list"),
        ("name: {a: b}", "^line 1: name: expected a text .* a mapping"),
        ("name: x\ndelete: maybe", "^line 2: delete: expected true or false"),
        ("fragment:\n  refresh_interval: 5 minutes", "^line 2: refresh_interval: expected a duration such as"),
        ("fragment:\n  compression_codec: LZ4", "^line 2: compression_codec: expected one of INVALID, NONE, GZIP"),
        ("fragment: s3://x/", "^line 1: expected fragment to be a mapping"),
        ("children: {}", "^line 1: children: expected a list"),
        ("name: 'x\n", "^line 2, column 1: cannot be read as YAML"),
        ("name: [x\nfoo: y", "^line 2, column 4: cannot be read as YAML"),
        ("<<: {name: x}", "^line 1: the merge key << is not supported"),
        ("? [a]\n: b", "^line 1: a key must be a word"),
    ],
)
def test_an_error_names_the_line_and_the_key(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        journal_tree.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name: acme/\nchildren:\n- name: acme/x1\n- name: other/x",
            "^line 4: name 'other/x': expected a name that begins",
        ),
        ("children:\n- name: b123\n- name: a123", "^line 3: name 'a123': expected names in ascending order"),
        ("name: acme/\nrevision: 3\nchildren:\n- name: acme/x1", "^line 1: name 'acme/': a directory has no revision"),
        ("name: acme/\nchildren:\n- name: acme/x/", "^line 3: name 'acme/x/': a directory needs children"),
        ("name: acme/x1\nchildren:\n- name: acme/x12", "^line 1: name 'acme/x1': a journal has no children"),
        ("children:\n- name: a b c", r"^Name: expected letters.*\(line 2\)"),
        ("children:\n-", "^line 2: name '': a directory needs children"),
        ("", "^line 1: name '': a directory needs children"),
    ],
)
def test_what_is_no_tree_is_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        journal_tree.parse(text)


def test_an_invalid_spec_is_refused_with_the_line_of_its_journal() -> None:
    text = f"name: acme/{SHARED}children:\n- name: acme/x1\n- name: acme/x2\n  replication: 9\n"
    with pytest.raises(ValidationError, match=r"Changes\[1\]\.Upsert.*\(line 14\)$"):
        journal_tree.parse(text)


@pytest.mark.parametrize("labels", ["[{name: bb}, {name: aa}]", "[{name: aa}, {name: aa}]"])
@pytest.mark.parametrize("given_to", ["directory", "journal"])
def test_labels_in_disorder_are_not_put_in_order(labels: str, given_to: str) -> None:
    at_root, at_leaf = (labels, "[{name: zz}]") if given_to == "directory" else ("[{name: zz}]", labels)
    shared = SHARED.replace("labels:\n- name: tier\n  value: gold", f"labels: {at_root}")
    stage, error = stage_and_error(f"name: acme/{shared}children:\n- name: acme/x1\n  labels: {at_leaf}\n")
    assert (stage, error.path[:4]) == ("validate", ("ApplyRequest", "Changes[0]", "Upsert", "Labels"))


def test_stores_written_as_none_are_not_inherited_further_down() -> None:
    text = f"""name: acme/{SHARED}children:
- name: acme/a/
  fragment:
    stores: []
  children:
  - name: acme/a/one
  - name: acme/a/two
    fragment:
      stores: [gs://own/]
- name: acme/b
"""
    stores = [list(change.upsert.fragment.stores) for change in journal_tree.parse(text).changes]
    assert stores == [[], ["gs://own/"], ["s3://bucket/"]]


def test_a_directory_may_stand_within_one_of_the_same_name() -> None:
    text = f"name: acme/{SHARED}children:\n- name: acme/\n  children:\n  - name: acme/x\n"
    assert [change.upsert.name for change in journal_tree.parse(text).changes] == ["acme/x"]


def test_a_tree_as_deep_as_a_name_has_room_for_is_no_problem() -> None:
    journals = [(spec("acme/" + "a/" * depth + "b"), depth + 1) for depth in range(253)]
    names = [journal.name for journal, _ in journals]
    text = journal_tree.hoist(sorted(journals, key=lambda journal: journal[0].name))
    assert text.count("children:") == 252
    assert sorted(change.upsert.name for change in journal_tree.parse(text).changes) == sorted(names)


def test_aliases_stand_for_what_they_name() -> None:
    text = (
        f"name: acme/{SHARED}children:\n- name: acme/x1\n  labels: &l [{{name: aa}}]\n- name: acme/x2\n  labels: *l\n"
    )
    one, two = journal_tree.parse(text).changes
    assert one.upsert.labels == two.upsert.labels
    assert [label.name for label in two.upsert.labels.labels] == ["aa", "tier"]


@pytest.mark.parametrize(
    ("null", "deleted"), [("Null", False), ("NULL", False), ("null", True), ("~", True), ("", True)]
)
def test_a_null_in_capitals_deletes_not(null: str, deleted: bool) -> None:
    text = f"name: acme/\ndelete: true{SHARED}children:\n- name: acme/x1\n  delete: {null}\n"
    (change,) = journal_tree.flatten(journal_tree.decode(text)).changes
    assert (change.delete == "acme/x1") is deleted


@pytest.mark.parametrize(("null", "present"), [("Null", True), ("null", False)])
def test_a_null_in_capitals_is_a_suspension_without_content(null: str, present: bool) -> None:
    (change,) = journal_tree.parse(f"name: acme/x1{SHARED}suspend: {null}\n").changes
    assert change.upsert.HasField("suspend") is present


def test_labels_pass_through_directories_to_journals_with_and_without_their_own() -> None:
    text = f"""name: acme/{SHARED}children:
- name: acme/a/
  labels: [{{name: aa}}]
  children:
  - name: acme/a/one
    labels: [{{name: tier, value: blue}}]
  - name: acme/a/two
- name: acme/b
"""
    labels = [
        [(label.name, label.value) for label in change.upsert.labels.labels]
        for change in journal_tree.parse(text).changes
    ]
    assert labels == [[("aa", ""), ("tier", "blue")], [("aa", ""), ("tier", "gold")], [("tier", "gold")]]


def test_labels_that_are_inherited_unchanged_are_merged_once() -> None:
    held = spec_file.HeldLabels(LabelSet.of(("aa", ""), ("tier", "gold")))
    assert held.given_to(LabelSet()) is held
    assert held.message is held.given_to(LabelSet()).message


def test_a_journal_with_children_flattens_even_though_no_check_lets_it_pass() -> None:
    nodes = journal_tree.decode("name: acme/x1\nchildren:\n- name: acme/x12\n")
    assert len(journal_tree.flatten(nodes).changes) == 2
