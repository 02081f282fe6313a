"""Every message type of Gazette, byte for byte and in its JSON forms."""

from __future__ import annotations

import importlib

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from protocol import json_form
from protocol.errors import REMEDIES, Status
from protocol.gen import head_pb2, journal_pb2, recorded_op_pb2, shard_pb2
from tests.support.golden import Case, case_id, cases

POOL = descriptor_pool.Default()


def message_of(case: Case) -> Message:
    message_type: type[Message] = GetMessageClass(POOL.FindMessageTypeByName(case["type"]))
    return message_type.FromString(bytes.fromhex(case["hex"]))


@pytest.mark.parametrize("case", cases("messages"), ids=case_id)
def test_a_message_survives_being_parsed_and_written_again(case: Case) -> None:
    message = message_of(case)
    written = message.SerializeToString(deterministic=True)
    if "multi-entry-maps" in case["label"]:
        assert type(message).FromString(written) == message
    else:
        assert written.hex() == case["hex"]


@pytest.mark.parametrize("case", cases("messages"), ids=case_id)
def test_json_forms_are_those_of_gazette(case: Case) -> None:
    if not case["hex"] and case["json"].get("content") == "":
        pytest.skip("printed before it was encoded: empty content leaves no trace on the wire")
    message = message_of(case)
    assert json_form.listing(message) == case["json"]
    assert json_form.gateway(message) == case["json_gateway"]
    if "json_go" in case:
        assert json_form.plain(message) == case["json_go"]


def test_a_message_built_from_scratch_prints_value_fields_as_go_does() -> None:
    printed = json_form.listing(journal_pb2.JournalSpec(name="a/b/c"))
    assert printed["labels"] == {"labels": []}
    assert printed["fragment"]["refresh_interval"] == "0s"
    assert printed["suspend"] is None


def test_our_own_fields_are_numbered_from_1000_and_stay_out_of_json() -> None:
    added = {
        f"{message.full_name}.{field.name}": field.number
        for module in (journal_pb2, shard_pb2, recorded_op_pb2)
        for message in module.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
        if field.number >= 1000
    }
    assert added == {
        "protocol.BrokerSpec.capabilities": 1000,
        "protocol.BrokerSpec.spool_id": 1001,
        "protocol.BrokerSpec.http_endpoint": 1002,
        "protocol.ReplicateRequest.epoch": 1000,
        "protocol.ReplicateRequest.acked_through": 1001,
        "protocol.ReplicateResponse.copy": 1000,
        "protocol.ListRequest.heads": 1000,
    }
    printed = json_form.listing(journal_pb2.BrokerSpec(spool_id=b"0123456789abcdef", http_endpoint="http://h:1"))
    assert set(printed) == {"process_spec", "journal_limit", "exiting"}


def test_what_is_ours_alone_is_in_a_package_of_its_own() -> None:
    assert head_pb2.Head.DESCRIPTOR.full_name == "pygazette.Head"
    epoch = journal_pb2.ReplicateRequest.DESCRIPTOR.fields_by_name["epoch"].message_type
    assert epoch is not None
    assert epoch.full_name == "pygazette.Epoch"


def test_services_have_the_paths_go_programs_call() -> None:
    methods = {
        f"/{service.full_name}/{method.name}": (method.client_streaming, method.server_streaming)
        for module in (journal_pb2, shard_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert methods == {
        "/protocol.Journal/List": (False, True),
        "/protocol.Journal/Apply": (False, False),
        "/protocol.Journal/Read": (False, True),
        "/protocol.Journal/Append": (True, False),
        "/protocol.Journal/Replicate": (True, True),
        "/protocol.Journal/ListFragments": (False, False),
        "/protocol.Journal/FragmentStoreHealth": (False, False),
        "/consumer.Shard/Stat": (False, False),
        "/consumer.Shard/List": (False, False),
        "/consumer.Shard/Apply": (False, False),
        "/consumer.Shard/GetHints": (False, False),
        "/consumer.Shard/Unassign": (False, False),
    }


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (
            journal_pb2.BrokerSpec(
                process_spec=journal_pb2.ProcessSpec(
                    id=journal_pb2.ProcessSpec.ID(zone="zone-a", suffix="broker-1"), endpoint="http://10.0.0.1:8080"
                ),
                journal_limit=1024,
            ),
            "0a2a0a120a067a6f6e652d61120862726f6b65722d311214687474703a2f2f31302e302e302e313a38303830108008",
        ),
        (shard_pb2.ReplicaStatus(code=shard_pb2.ReplicaStatus.BACKFILL), "0864"),
        (shard_pb2.ReplicaStatus(code=shard_pb2.ReplicaStatus.STANDBY), "08c801"),
        (shard_pb2.ReplicaStatus(code=shard_pb2.ReplicaStatus.PRIMARY), "08ac02"),
        (shard_pb2.ReplicaStatus(code=shard_pb2.ReplicaStatus.FAILED, errors=["boom"]), "0890031204626f6f6d"),
        (recorded_op_pb2.RecordedOp(seq_no=1, author=0x1234), "08011d34120000"),
    ],
    ids=["broker-spec", "backfill", "standby", "primary", "failed", "no-op"],
)
def test_the_vectors_of_the_reference(message: Message, wire: str) -> None:
    assert message.SerializeToString().hex() == wire


def test_an_exiting_broker_appends_one_field() -> None:
    spec = journal_pb2.BrokerSpec(journal_limit=1024)
    before = spec.SerializeToString()
    spec.exiting = True
    assert spec.SerializeToString() == before + bytes.fromhex("1801")


def test_every_status_has_the_number_of_the_wire_and_a_remedy() -> None:
    assert {status.name: status.value for status in Status} == dict(journal_pb2.Status.items())
    assert set(REMEDIES) == set(Status) - {Status.OK}


def test_all_sixty_message_types_are_covered_by_vectors() -> None:
    known: set[str] = set()

    def walk(message: object) -> None:
        known.add(message.full_name)  # type: ignore[attr-defined]
        for nested in message.nested_types:  # type: ignore[attr-defined]
            if not nested.GetOptions().map_entry:
                walk(nested)

    for name in ("journal", "shard", "recorded_op"):
        module = importlib.import_module(f"protocol.gen.{name}_pb2")
        for message in module.DESCRIPTOR.message_types_by_name.values():
            walk(message)
    assert {case["type"] for case in cases("messages")} == known
    assert len(known) == 60


def test_numbers_that_are_out_of_order_are_as_gazette_has_them() -> None:
    def number(message: type[Message], field: str) -> int:
        return int(message.DESCRIPTOR.fields_by_name[field].number)

    assert number(journal_pb2.AppendRequest, "content") == 4
    assert number(shard_pb2.GetHintsRequest, "shard") == 1
    assert number(shard_pb2.ShardSpec.Source, "min_offset") == 3
    sha1 = journal_pb2.SHA1Sum.DESCRIPTOR
    assert sha1.fields_by_name["part3"].type == FieldDescriptor.TYPE_FIXED32
