from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message

from protocol import journal_validation, shard_validation
from protocol.errors import ValidationError
from protocol.fragment import HEAD_MAX
from protocol.gen import epoch_pb2, head_pb2, recorded_op_pb2
from protocol.gen import journal_pb2 as pb
from protocol.gen import shard_pb2 as spb
from protocol.validation import validate
from tests.support.golden import Case, case_id, cases
from tests.support.message_types import message_class
from tests.support.unnamed_fields import OF_THE_WHOLE, field_of

MESSAGES = [case for case in cases("validation") if not case["type"].startswith(("text ", "enum "))]
ENUMS = [case for case in cases("validation") if case["type"].startswith("enum ")]

ENUM_CHECKS: dict[str, Callable[[int], None]] = {
    "enum protocol.Status": journal_validation.check_status,
    "enum protocol.CompressionCodec": journal_validation.check_codec,
    "enum protocol.JournalSpec.Flag": journal_validation.check_flags,
    "enum protocol.JournalSpec.Suspend.Level": journal_validation.check_suspend_level,
    "enum protocol.AppendRequest.Suspend": journal_validation.check_append_suspend,
    "enum consumer.Status": shard_validation.check_status,
    "enum consumer.ReplicaStatus.Code": shard_validation.check_replica_code,
}


@pytest.mark.parametrize("case", MESSAGES, ids=case_id)
def test_a_message_is_judged_as_gazette_judges_it(case: Case) -> None:
    """Of several faults we report the same one, and name its field at least as closely."""
    try:
        message = message_class(case["type"]).FromString(bytes.fromhex(case["hex"]))
    except DecodeError:
        assert case["bad_utf8"]
        assert not case["ok"]
        return
    if case["ok"]:
        validate(message)
        return
    with pytest.raises(ValidationError) as refused:
        validate(message)
    name, *path = refused.value.path
    assert case["type"] == f"{message.DESCRIPTOR.file.package}.{name}"
    assert is_at(case["path"] or field_of(case), path)
    assert path or case["type"] in OF_THE_WHOLE
    assert len(refused.value.rule) < 1000


def is_at(expected: str, path: list[str]) -> bool:
    """Whether a path is the expected one, or leads to a field or to an element of it."""
    return not expected or f"{'.'.join(path)}.".startswith((f"{expected}.", f"{expected}["))


@pytest.mark.parametrize("case", ENUMS, ids=case_id)
def test_a_number_of_an_enum_is_judged_as_gazette_judges_it(case: Case) -> None:
    check = ENUM_CHECKS[case["type"]]
    if case["ok"]:
        check(case["value"])
    else:
        with pytest.raises(ValidationError):
            check(case["value"])


def valid(type_name: str) -> Message:
    """The first valid vector of a type."""
    case = next(case for case in MESSAGES if case["type"] == type_name and case["rule"] == "valid" and case["ok"])
    return message_class(type_name).FromString(bytes.fromhex(case["hex"]))


def journal_spec() -> pb.JournalSpec:
    change = valid("protocol.ApplyRequest.Change")
    assert isinstance(change, pb.ApplyRequest.Change)
    return change.upsert


def broker_spec(**ours: object) -> pb.BrokerSpec:
    spec = valid("protocol.BrokerSpec")
    spec.MergeFrom(pb.BrokerSpec(**ours))  # type: ignore[arg-type]
    assert isinstance(spec, pb.BrokerSpec)
    return spec


def fragment() -> pb.Fragment:
    message = valid("protocol.Fragment")
    assert isinstance(message, pb.Fragment)
    return message


def header() -> pb.Header:
    message = valid("protocol.Header")
    assert isinstance(message, pb.Header)
    return message


def refusal(message: Message) -> str:
    with pytest.raises(ValidationError) as refused:
        validate(message)
    return ".".join(refused.value.path)


def test_an_error_reads_from_the_message_to_the_field_to_the_rule() -> None:
    spec = journal_spec()
    spec.fragment.length = 12
    with pytest.raises(ValidationError, match=r"^JournalSpec\.Fragment\.Length: expected 1024 to 17179869184 bytes"):
        validate(spec)


@pytest.mark.parametrize("message", [pb.SHA1Sum(), spb.Checkpoint(), recorded_op_pb2.RecordedOp(), head_pb2.Head()])
def test_a_message_without_rules_passes(message: Message) -> None:
    validate(message)


def test_judging_leaves_the_message_as_it_was() -> None:
    for case in MESSAGES:
        if case["ok"]:
            message = message_class(case["type"]).FromString(bytes.fromhex(case["hex"]))
            validate(message)
            assert message.SerializeToString(deterministic=True) == type(message).FromString(
                bytes.fromhex(case["hex"])
            ).SerializeToString(deterministic=True)


def test_a_verdict_does_not_stick_to_what_was_changed_since() -> None:
    spec = journal_spec()
    validate(spec)
    spec.labels.labels[0].name = "!"
    assert refusal(spec) == "JournalSpec.Labels.Labels[0].Name"
    spec = journal_spec()
    spec.fragment.stores[1] = "ftp://b/"
    assert refusal(spec) == "JournalSpec.Fragment.Stores[1]"


@pytest.mark.parametrize(
    "duration",
    [
        Duration(nanos=1_000_000_000),
        Duration(nanos=-1_000_000_000),
        Duration(seconds=1, nanos=-1),
        Duration(seconds=-1, nanos=1),
        Duration(seconds=9_223_372_036, nanos=854_775_808),
        Duration(seconds=-9_223_372_036, nanos=-854_775_809),
        Duration(seconds=1 << 62),
    ],
)
def test_a_duration_that_go_cannot_decode_is_refused_even_where_any_would_do(duration: Duration) -> None:
    spec = journal_spec()
    spec.fragment.retention.CopyFrom(duration)
    assert refusal(spec) == "JournalSpec.Fragment.Retention"


@pytest.mark.parametrize(("seconds", "nanos"), [(9_223_372_036, 854_775_807), (0, 0), (-9_223_372_036, -854_775_808)])
def test_any_other_retention_passes(seconds: int, nanos: int) -> None:
    spec = journal_spec()
    spec.fragment.retention.CopyFrom(Duration(seconds=seconds, nanos=nanos))
    validate(spec)


def test_a_journal_need_not_flush() -> None:
    spec = journal_spec()
    spec.fragment.ClearField("flush_interval")
    validate(spec)


@pytest.mark.parametrize(
    ("stores", "codec", "path"),
    [
        (["file:///"], pb.GZIP_OFFLOAD_DECOMPRESSION, "JournalSpec.Fragment.CompressionCodec"),
        (["FILE:///p/"], pb.GZIP_OFFLOAD_DECOMPRESSION, "JournalSpec.Fragment.CompressionCodec"),
        (["azure-ad://t/a"], pb.GZIP, "JournalSpec.Fragment.Stores[0]"),
        (["s3://b/", "azure-ad://t"], pb.GZIP, "JournalSpec.Fragment.Stores[1]"),
    ],
)
def test_stores_are_judged_one_by_one(stores: list[str], codec: pb.CompressionCodec.ValueType, path: str) -> None:
    spec = journal_spec()
    spec.fragment.stores[:] = stores
    spec.fragment.compression_codec = codec
    assert refusal(spec) == path


def test_a_broker_may_announce_its_spool_and_its_gateway() -> None:
    validate(broker_spec(spool_id=bytes(16), http_endpoint="https://host/api", capabilities=3))
    assert refusal(broker_spec(spool_id=bytes(15))) == "BrokerSpec.SpoolId"
    assert refusal(broker_spec(spool_id=bytes(17))) == "BrokerSpec.SpoolId"
    assert refusal(broker_spec(http_endpoint="host:80")) == "BrokerSpec.HttpEndpoint"


@pytest.mark.parametrize("acked_through", [1, HEAD_MAX])
def test_what_is_acknowledged_may_come_alone_or_with_anything(acked_through: int) -> None:
    validate(pb.ReplicateRequest(acked_through=acked_through))
    validate(pb.ReplicateRequest(acked_through=acked_through, content=b"x"))
    validate(pb.ReplicateRequest(acked_through=acked_through, content=b"x", content_delta=7))
    validate(pb.ReplicateRequest(acked_through=acked_through, proposal=fragment()))


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (pb.ReplicateRequest(), "Content"),
        (pb.ReplicateRequest(content_delta=1), "Content"),
        (pb.ReplicateRequest(acked_through=1, content_delta=1), "Content"),
        (pb.ReplicateRequest(acked_through=1, content_delta=-1), "ContentDelta"),
        (pb.ReplicateRequest(acked_through=-1), "AckedThrough"),
        (pb.ReplicateRequest(acked_through=-1, content=b"x"), "AckedThrough"),
        (pb.ReplicateRequest(acked_through=-1, proposal=fragment()), "AckedThrough"),
        (pb.ReplicateRequest(acked_through=HEAD_MAX + 1), "AckedThrough"),
        (pb.ReplicateRequest(acked_through=HEAD_MAX + 1, content=b"x"), "AckedThrough"),
        (pb.ReplicateRequest(acked_through=2**63 - 1, proposal=fragment()), "AckedThrough"),
        (pb.ReplicateRequest(acked_through=1, acknowledge=True), "Acknowledge"),
        (pb.ReplicateRequest(acked_through=1, registers=pb.LabelSet()), "Registers"),
        (pb.ReplicateRequest(acked_through=1, header=header()), "Header"),
        (pb.ReplicateRequest(acked_through=1, epoch=epoch_pb2.Epoch()), "Epoch"),
        (pb.ReplicateRequest(content=b"x", acknowledge=True), "Acknowledge"),
        (pb.ReplicateRequest(proposal=fragment(), epoch=epoch_pb2.Epoch(number=-1)), "Epoch.Number"),
        (pb.ReplicateRequest(proposal=fragment(), epoch=epoch_pb2.Epoch(begin=-1)), "Epoch.Begin"),
        (pb.ReplicateRequest(proposal=fragment(), epoch=epoch_pb2.Epoch(begin=HEAD_MAX + 1)), "Epoch.Begin"),
        (
            pb.ReplicateRequest(proposal=fragment(), epoch=epoch_pb2.Epoch(create_revision=-1)),
            "Epoch.CreateRevision",
        ),
    ],
)
def test_a_replicate_request_that_says_too_little_or_too_much_is_refused(
    message: pb.ReplicateRequest, path: str
) -> None:
    assert refusal(message) == f"ReplicateRequest.{path}"


def test_a_replica_names_its_copy_by_a_whole_spool_id() -> None:
    copy = epoch_pb2.Copy(spool_id=bytes(16), create_revision=1, number=2, end=3)
    validate(pb.ReplicateResponse(copy=copy))
    validate(pb.ReplicateResponse(copy=epoch_pb2.Copy()))
    assert refusal(pb.ReplicateResponse(copy=epoch_pb2.Copy(spool_id=b"short"))) == "ReplicateResponse.Copy.SpoolId"
    for field, name in (("create_revision", "CreateRevision"), ("number", "Number"), ("end", "End")):
        bad = pb.ReplicateResponse(copy=copy)
        setattr(bad.copy, field, -1)
        assert refusal(bad) == f"ReplicateResponse.Copy.{name}"


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_content_needs_nothing_beside_it(size: int) -> None:
    content = bytes(size)
    validate(pb.ReadResponse(content=content))
    validate(pb.ReadResponse(content=content, offset=7))
    validate(pb.AppendRequest(content=content))
    validate(pb.ReplicateRequest(content=content))


@pytest.mark.parametrize("side", ["include", "exclude"])
def test_a_prefix_that_journals_are_listed_by_is_a_directory_on_either_side(side: str) -> None:
    labels = [pb.Label(name="aa", value="1"), pb.Label(name="prefix", value="acme/")]
    request = pb.ListRequest(selector=pb.LabelSelector(**{side: pb.LabelSet(labels=labels)}))
    validate(request)
    getattr(request.selector, side).labels[1].value = "acme"
    assert refusal(request) == f"ListRequest.Selector.{side.title()}.Labels[1].Value"


@pytest.mark.parametrize(("statuses", "fits"), [(0, False), (1, False), (2, True), (3, False)])
def test_a_listed_shard_has_a_status_of_each_member(statuses: int, fits: bool) -> None:
    members = [pb.ProcessSpec.ID(zone=zone, suffix="consumer") for zone in "ab"]
    shard = spb.ListResponse.Shard(
        spec=spb.ShardSpec(id="shard-1", max_txn_duration=Duration(seconds=1)),
        mod_revision=1,
        route=pb.Route(members=members, primary=0),
        status=[spb.ReplicaStatus()] * statuses,
    )
    if fits:
        validate(shard)
    else:
        assert refusal(shard) == "ListResponse.Shard.Status"


def test_an_offset_without_content_is_refused_even_beside_fields_of_the_future() -> None:
    assert refusal(pb.ReadResponse(offset=7)) == "ReadResponse.Offset"
    field_2047 = b"\xfa\x7f\x01x"
    for message in (pb.ReadResponse(offset=7), pb.ReplicateRequest(content_delta=7)):
        message.MergeFromString(field_2047)
        refusal(message)
        message.content = b"x"
        validate(message)


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ({"header": header()}, "Header"),
        ({"do_not_proxy": True}, "DoNotProxy"),
        ({"offset": 1}, "Offset"),
        ({"check_registers": pb.LabelSelector()}, "CheckRegisters"),
        ({"union_registers": pb.LabelSet()}, "UnionRegisters"),
        ({"subtract_registers": pb.LabelSet()}, "SubtractRegisters"),
        ({"suspend": pb.AppendRequest.SUSPEND_NOW}, "Suspend"),
    ],
)
def test_only_the_first_message_of_an_append_says_how_to_append(field: dict[str, object], path: str) -> None:
    message = pb.AppendRequest(content=b"x", **field)  # type: ignore[arg-type]
    assert refusal(message) == f"AppendRequest.{path}"
    message = pb.AppendRequest(journal="acme/orders", **field)  # type: ignore[arg-type]
    validate(message)


@pytest.mark.parametrize(("offset", "end"), [(100, 100), (100, 0), (-1, 0), (-1, 1), (0, 1)])
def test_a_read_may_end_where_it_begins_or_never(offset: int, end: int) -> None:
    validate(pb.ReadRequest(journal="acme/orders", offset=offset, end_offset=end))


def test_the_log_of_hints_is_not_repeated_in_their_segments() -> None:
    segment = recorded_op_pb2.Segment(author=1, first_seq_no=1, last_seq_no=1, log="acme/log")
    hints = recorded_op_pb2.FSMHints(
        log="acme/log", live_nodes=[recorded_op_pb2.FnodeSegments(fnode=1, segments=[segment])]
    )
    assert refusal(hints) == "FSMHints.Segment.Log"
    hints.log = "acme/other"
    validate(hints)


def test_backup_hints_are_judged_too() -> None:
    bad = recorded_op_pb2.FSMHints(live_nodes=[recorded_op_pb2.FnodeSegments(segments=[recorded_op_pb2.Segment()])])
    response = spb.GetHintsResponse(backup_hints=[spb.GetHintsResponse.ResponseHints(hints=bad)])
    assert refusal(response) == "GetHintsResponse.Segment.Author"


def test_hints_go_with_an_upsert_only() -> None:
    change = spb.ApplyRequest.Change(delete="shard-1", expect_mod_revision=1)
    validate(change)
    change.primary_hints.SetInParent()
    assert refusal(change) == "ApplyRequest.Change.PrimaryHints"


def test_the_path_of_an_offset_shows_no_more_than_the_begin_of_a_long_name() -> None:
    message = spb.StatRequest(shard="shard-1", read_through={"x" * 10_000: 1})
    assert len(refusal(message)) < 600
