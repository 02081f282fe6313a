from __future__ import annotations

import pytest
from google.protobuf.json_format import ParseDict

from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.journal import Flag, FragmentPolicy, JournalSpec, Suspend, SuspendLevel
from protocol.label import LabelSet
from tests.support.golden import Case, case_id, cases

# The cap of a broker that is told nothing else.
MAX_REPLICATION = 9


def spec_of(case: Case) -> JournalSpec:
    return JournalSpec.from_proto(ParseDict(case, pb.JournalSpec()))


def of_type(name: str, wanted: str) -> list[Case]:
    return [case for case in cases(name) if case["type"] == wanted]


@pytest.mark.parametrize("case", cases("labels", "journal-spec-algebra"), ids=case_id)
def test_the_algebra_of_journal_specs_is_that_of_gazette(case: Case) -> None:
    left, right = spec_of(case["left"]), spec_of(case["right"])
    assert left.union(right) == spec_of(case["union"])
    assert left.intersect(right) == spec_of(case["intersect"])
    assert left.subtract(right) == spec_of(case["subtract"])


@pytest.mark.parametrize("case", [case for case in cases("validation") if "desired_replication" in case], ids=case_id)
def test_suspension_lowers_the_replication(case: Case) -> None:
    spec = JournalSpec.from_proto(pb.JournalSpec.FromString(bytes.fromhex(case["hex"])))
    assert spec.desired_replication(MAX_REPLICATION) == case["desired_replication"]


@pytest.mark.parametrize(
    ("level", "expected"), [(SuspendLevel.NONE, 2), (SuspendLevel.PARTIAL, 1), (SuspendLevel.FULL, 0)]
)
def test_the_cap_of_the_cluster_bounds_the_replication(level: SuspendLevel, expected: int) -> None:
    spec = JournalSpec("acme/one", replication=3, suspend=Suspend(level, 10))
    assert spec.desired_replication(max_replication=2) == expected
    assert JournalSpec("acme/one", replication=3).desired_replication(max_replication=2) == 2


@pytest.mark.parametrize("case", of_type("validation", "enum protocol.JournalSpec.Flag"), ids=case_id)
def test_flags_permit_what_they_do_in_gazette(case: Case) -> None:
    if "may_read" not in case:
        pytest.skip("the vector has no access, only whether the number is valid")
    spec = JournalSpec("acme/one", flags=case["value"])
    assert (spec.may_read, spec.may_write) == (case["may_read"], case["may_write"])


@pytest.mark.parametrize(
    "case",
    [*of_type("messages", "protocol.JournalSpec"), *of_type("validation", "protocol.JournalSpec")],
    ids=case_id,
)
def test_specs_survive_the_wire_to_the_byte(case: Case) -> None:
    if case.get("bad_utf8"):
        pytest.skip("the bytes are no message: the parser refuses them")
    message = pb.JournalSpec.FromString(bytes.fromhex(case["hex"]))
    if message.fragment.compression_codec not in map(int, CompressionCodec):
        with pytest.raises(ValidationError, match=r"^Fragment\.CompressionCodec: no codec has the number"):
            JournalSpec.from_proto(message)
        return
    again = JournalSpec.from_proto(message).to_proto()
    assert again.SerializeToString(deterministic=True).hex() == case["hex"]


def test_what_go_always_writes_is_always_written() -> None:
    message = JournalSpec("acme/one").to_proto()
    assert message.HasField("labels")
    assert message.HasField("fragment")
    assert message.fragment.HasField("retention")
    assert not message.HasField("suspend")


def test_journals_share_what_is_equal_in_them() -> None:
    def message(name: str) -> pb.JournalSpec:
        policy = FragmentPolicy(1 << 20, CompressionCodec.GZIP, ("s3://bucket/",), 10**9)
        return JournalSpec(name, 3, LabelSet.of(("tier", "gold")), policy).to_proto()

    one, two = (JournalSpec.from_proto(message(name)) for name in ("acme/one", "acme/two"))
    assert one.fragment is two.fragment
    assert one.labels is two.labels


def test_long_parts_are_not_kept_for_sharing() -> None:
    long = FragmentPolicy(stores=("s3://bucket/",) * 1000)
    labels = LabelSet.of(*((f"label-{at:03d}", "value") for at in range(200)))
    message = JournalSpec("acme/one", labels=labels, fragment=long).to_proto()
    one, two = JournalSpec.from_proto(message), JournalSpec.from_proto(message)
    assert one == two
    assert one.fragment is not two.fragment
    assert one.labels is not two.labels


def test_a_partial_spec_takes_from_its_parent_what_it_does_not_set() -> None:
    parent = JournalSpec("acme/", 3, fragment=FragmentPolicy(length=1024, stores=("s3://a/",)), flags=Flag.O_RDONLY)
    child = JournalSpec("acme/one", 2, fragment=FragmentPolicy(stores=("s3://b/",)), suspend=Suspend(offset=5))
    assert child.union(parent) == JournalSpec(
        "acme/one",
        2,
        fragment=FragmentPolicy(length=1024, stores=("s3://b/",)),
        flags=Flag.O_RDONLY,
        suspend=Suspend(offset=5),
    )
    assert parent.union(child).suspend is None
