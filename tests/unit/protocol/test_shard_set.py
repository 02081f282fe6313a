from __future__ import annotations

import pytest
from google.protobuf.json_format import ParseDict

from protocol import shard_set
from protocol.errors import ValidationError
from protocol.gen import shard_pb2 as pb
from protocol.shard import ShardSpec
from tests.support.golden import Case, case_id, cases

COMMON = "common:\n  max_txn_duration: 1s\n"


def is_at(expected: str, path: tuple[str, ...]) -> bool:
    """Whether a path is the expected one, or leads to a field of it."""
    return not expected or f"{'.'.join(path)}.".startswith(f"{expected}.")


@pytest.mark.parametrize("case", [c for c in cases("yaml", "shard-set") if c["ok"]], ids=case_id)
def test_sets_flatten_as_in_gazette(case: Case) -> None:
    request = shard_set.parse(case["yaml"])
    assert request == pb.ApplyRequest.FromString(bytes.fromhex(case["apply_request_hex"]))
    assert request == ParseDict(case["changes"], pb.ApplyRequest())


@pytest.mark.parametrize("case", [c for c in cases("yaml", "shard-set") if not c["ok"]], ids=case_id)
def test_sets_are_refused_where_gazette_refuses_them(case: Case) -> None:
    if case["fails_at"] == "decode":
        with pytest.raises(ValidationError, match=r"^line "):
            shard_set.decode(case["yaml"])
        return
    assert case["fails_at"] == "validate"
    shard_set.flatten(shard_set.decode(case["yaml"]))
    with pytest.raises(ValidationError, match=r"\(line [0-9]+\)$") as refused:
        shard_set.parse(case["yaml"])
    assert is_at(case["path"], refused.value.path[1:])


def listed(case: Case) -> list[tuple[ShardSpec, int]]:
    return [
        (ShardSpec.from_proto(pb.ShardSpec.FromString(bytes.fromhex(shard["spec_hex"]))), shard["mod_revision"])
        for shard in case["shards"]
    ]


@pytest.mark.parametrize("case", cases("yaml", "shard-hoist"), ids=case_id)
def test_listings_print_as_in_gazette(case: Case) -> None:
    assert shard_set.hoist(listed(case)) == case["yaml"]


@pytest.mark.parametrize("case", cases("yaml", "shard-hoist"), ids=case_id)
def test_listings_flatten_to_what_was_listed(case: Case) -> None:
    assert shard_set.flatten(shard_set.decode(case["yaml"])) == pb.ApplyRequest(
        changes=[
            pb.ApplyRequest.Change(expect_mod_revision=revision, upsert=spec.to_proto())
            for spec, revision in listed(case)
        ]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shard: []", "^line 1: unknown key 'shard' in the document: expected one of common, shards"),
        ("common:\n  delete: true", "^line 2: unknown key 'delete' in common"),
        ("shards:\n- id: x\n  sources:\n  - jurnal: y", "^line 4: unknown key 'jurnal' in an item of sources"),
        ("shards:\n- id: x\n  hot_standbys: -1", "^line 3: hot_standbys: expected a whole number from 0 to 4294967295"),
        ("shards:\n- id: x\n  disable: 1", "^line 3: disable: expected true or false"),
        ("shards:\n- id: x\n  id: y", "^line 3: the key 'id' is given twice in an item of shards"),
    ],
)
def test_an_error_names_the_line_and_the_key(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        shard_set.parse(text)


def test_an_invalid_spec_is_refused_with_the_line_of_its_shard() -> None:
    with pytest.raises(ValidationError, match=r"Changes\[1\]\.Upsert.*\(line 5\)$"):
        shard_set.parse(f"{COMMON}shards:\n- id: shard-000\n- id: x\n")


def test_labels_in_disorder_are_not_put_in_order() -> None:
    text = f"{COMMON}  labels: [{{name: zz}}]\nshards:\n- id: shard-000\n  labels: [{{name: bb}}, {{name: aa}}]\n"
    with pytest.raises(ValidationError, match=r"Changes\[0\]\.Upsert\.LabelSet"):
        shard_set.parse(text)


def test_an_empty_file_is_an_empty_set() -> None:
    assert shard_set.parse("") == pb.ApplyRequest()
