from __future__ import annotations

import pytest
from google.protobuf.json_format import ParseDict

from protocol.errors import ValidationError
from protocol.gen import shard_pb2 as pb
from protocol.shard import ReplicaCode, ReplicaStatus, ShardSpec
from tests.support.golden import Case, case_id, cases


def spec_of(case: Case) -> ShardSpec:
    return ShardSpec.from_proto(ParseDict(case, pb.ShardSpec()))


def status_of(case: Case) -> ReplicaStatus:
    return ReplicaStatus.from_proto(ParseDict(case, pb.ReplicaStatus()))


def of_type(name: str, wanted: str) -> list[Case]:
    return [case for case in cases(name) if case["type"] == wanted]


@pytest.mark.parametrize("case", cases("labels", "shard-spec-algebra"), ids=case_id)
def test_the_algebra_of_shard_specs_is_that_of_gazette(case: Case) -> None:
    left, right = spec_of(case["left"]), spec_of(case["right"])
    assert left.union(right) == spec_of(case["union"])
    assert left.intersect(right) == spec_of(case["intersect"])
    assert left.subtract(right) == spec_of(case["subtract"])


@pytest.mark.parametrize("case", cases("etcd-keys", "hint-keys"), ids=case_id)
def test_hints_and_logs_are_named_as_in_gazette(case: Case) -> None:
    spec = ShardSpec(
        case["shard"],
        recovery_log_prefix=case["recovery_log_prefix"],
        hint_prefix=case["hint_prefix"],
        hint_backups=case["hint_backups"],
    )
    assert spec.hint_primary_key == case["primary_key"]
    assert spec.hint_backup_keys == case["backup_keys"]
    assert spec.recovery_log == case["recovery_log"]


@pytest.mark.parametrize("case", cases("etcd-keys", "status-reduce"), ids=case_id)
def test_a_status_update_folds_into_the_current_one(case: Case) -> None:
    assert status_of(case["current"]).reduce(status_of(case["update"])) == status_of(case["result"])


@pytest.mark.parametrize(
    "case", [*of_type("messages", "consumer.ShardSpec"), *of_type("validation", "consumer.ShardSpec")], ids=case_id
)
def test_specs_survive_the_wire_to_the_byte(case: Case) -> None:
    if case.get("bad_utf8"):
        pytest.skip("the bytes are no message: the parser refuses them")
    message = pb.ShardSpec.FromString(bytes.fromhex(case["hex"]))
    again = ShardSpec.from_proto(message).to_proto()
    assert again.SerializeToString(deterministic=True).hex() == case["hex"]


@pytest.mark.parametrize("case", of_type("messages", "consumer.ReplicaStatus"), ids=case_id)
def test_statuses_survive_the_wire(case: Case) -> None:
    message = pb.ReplicaStatus.FromString(bytes.fromhex(case["hex"]))
    if message.code not in map(int, ReplicaCode):
        with pytest.raises(ValidationError, match=r"^Code: no replica status has the number"):
            ReplicaStatus.from_proto(message)
        return
    assert ReplicaStatus.from_proto(message).to_proto() == message


@pytest.mark.parametrize(
    ("hot_standbys", "disable", "expected"), [(0, False, 1), (2, False, 3), (7, False, 4), (2, True, 0)]
)
def test_a_shard_has_a_primary_and_standbys_up_to_the_cap(hot_standbys: int, disable: bool, expected: int) -> None:
    spec = ShardSpec("shard-000", hot_standbys=hot_standbys, disable=disable)
    assert spec.desired_replication(max_hot_standbys=3) == expected
