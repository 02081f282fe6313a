from __future__ import annotations

import google_crc32c
import pytest
from google.protobuf.json_format import ParseDict

from consumer.recovery_log import operation
from protocol.gen import recorded_op_pb2 as pb
from tests.support.golden import Case, case_id, cases


@pytest.mark.parametrize("case", cases("recoverylog", "op-encoding"), ids=case_id)
def test_operations_are_framed_and_chained_as_in_gazette(case: Case) -> None:
    recorded = ParseDict(case["op"], pb.RecordedOp())
    assert operation.encode(recorded).hex() == case["frame"]
    assert operation.checksum_after(recorded) == case["checksum_after"]


@pytest.mark.parametrize("case", cases("recoverylog", "fence"), ids=case_id)
def test_a_fence_names_its_author_in_base_32(case: Case) -> None:
    expected = [(label["name"], label["value"]) for label in case["labels"]]
    assert [(name, value) for name, value, _ in operation.fence(case["author"])] == expected


def test_the_vectors_of_the_reference() -> None:
    assert google_crc32c.value(b"123456789") == 0xE3069283
    no_op = pb.RecordedOp(seq_no=1, author=0x1234)
    assert no_op.SerializeToString().hex() == "08011d34120000"
    assert operation.checksum_after(no_op) == 0xF29CFCBB
    assert operation.fence(305441741).value_of("author") == "939aud"
