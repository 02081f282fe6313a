"""``validate``: the one boundary check of messages that come from elsewhere.

The rules are in ``journal_validation``, ``journal_rpc_validation``, ``shard_validation`` and
``recorded_op_validation``, a function for each message type; this module finds the one that is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from protocol import journal_rpc_validation as journal_rpc
from protocol import journal_validation as journal
from protocol import recorded_op_validation as recorded_op
from protocol import shard_validation as shard
from protocol.errors import ValidationError
from protocol.gen import journal_pb2, recorded_op_pb2, shard_pb2

_CHECKS: dict[type[Message], Callable[[Any], None]] = {
    journal_pb2.Label: journal.check_label,
    journal_pb2.LabelSet: journal.check_label_set,
    journal_pb2.LabelSelector: journal.check_label_selector,
    journal_pb2.JournalSpec: journal.check_journal_spec,
    journal_pb2.JournalSpec.Fragment: journal.check_fragment_spec,
    journal_pb2.JournalSpec.Suspend: journal.check_suspend,
    journal_pb2.ProcessSpec: journal.check_process_spec,
    journal_pb2.ProcessSpec.ID: journal.check_process_id,
    journal_pb2.BrokerSpec: journal.check_broker_spec,
    journal_pb2.Fragment: journal.check_fragment,
    journal_pb2.Route: journal.check_route,
    journal_pb2.Header: journal.check_header,
    journal_pb2.Header.Etcd: journal.check_etcd,
    journal_pb2.ReadRequest: journal_rpc.check_read_request,
    journal_pb2.ReadResponse: journal_rpc.check_read_response,
    journal_pb2.AppendRequest: journal_rpc.check_append_request,
    journal_pb2.AppendResponse: journal_rpc.check_append_response,
    journal_pb2.ReplicateRequest: journal_rpc.check_replicate_request,
    journal_pb2.ReplicateResponse: journal_rpc.check_replicate_response,
    journal_pb2.ListRequest: journal_rpc.check_list_request,
    journal_pb2.ListResponse: journal_rpc.check_list_response,
    journal_pb2.ListResponse.Journal: journal_rpc.check_listed_journal,
    journal_pb2.ApplyRequest: journal_rpc.check_apply_request,
    journal_pb2.ApplyRequest.Change: journal_rpc.check_change,
    journal_pb2.ApplyResponse: journal_rpc.check_apply_response,
    journal_pb2.FragmentsRequest: journal_rpc.check_fragments_request,
    journal_pb2.FragmentsResponse: journal_rpc.check_fragments_response,
    journal_pb2.FragmentsResponse._Fragment: journal_rpc.check_listed_fragment,  # noqa: SLF001, its name on the wire
    journal_pb2.FragmentStoreHealthRequest: journal_rpc.check_store_health_request,
    journal_pb2.FragmentStoreHealthResponse: journal_rpc.check_store_health_response,
    shard_pb2.ShardSpec: shard.check_shard_spec,
    shard_pb2.ShardSpec.Source: shard.check_source,
    shard_pb2.ConsumerSpec: shard.check_consumer_spec,
    shard_pb2.ReplicaStatus: shard.check_replica_status,
    shard_pb2.ListRequest: shard.check_list_request,
    shard_pb2.ListResponse: shard.check_list_response,
    shard_pb2.ListResponse.Shard: shard.check_listed_shard,
    shard_pb2.ApplyRequest: shard.check_apply_request,
    shard_pb2.ApplyRequest.Change: shard.check_change,
    shard_pb2.ApplyResponse: shard.check_apply_response,
    shard_pb2.StatRequest: shard.check_stat_request,
    shard_pb2.StatResponse: shard.check_stat_response,
    shard_pb2.GetHintsRequest: shard.check_get_hints_request,
    shard_pb2.GetHintsResponse: shard.check_get_hints_response,
    shard_pb2.GetHintsResponse.ResponseHints: shard.check_response_hints,
    shard_pb2.UnassignRequest: shard.check_unassign_request,
    shard_pb2.UnassignResponse: shard.check_unassign_response,
    recorded_op_pb2.Segment: recorded_op.check_segment,
    recorded_op_pb2.FSMHints: recorded_op.check_fsm_hints,
}


def validate(message: Message) -> None:
    """Raise a ``ValidationError`` that names the message and the field if this breaks a rule of its type.

    A message whose type has no rules of its own passes. Every message of a stream goes through here, so
    nothing is formatted, copied or parsed twice unless there is something to say.
    """
    check = _CHECKS.get(type(message))
    if check is None:
        return
    try:
        check(message)
    except ValidationError as error:
        descriptor = message.DESCRIPTOR
        raise error.within(descriptor.full_name.removeprefix(f"{descriptor.file.package}.")) from None
