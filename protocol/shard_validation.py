"""The rules of shards: their specs and statuses, and the requests and responses of the Shard service.

They read as ``journal_validation`` does.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import ValidationError, checked
from protocol.gen import shard_pb2 as pb
from protocol.identifier import check_journal, check_shard_id, clean_path
from protocol.journal_rpc_validation import check_expected_revision
from protocol.journal_validation import (
    check_each,
    check_header,
    check_known,
    check_label_selector,
    check_not_negative,
    check_process_spec,
    check_route,
    check_single_valued,
    duration_ns,
)
from protocol.label import LabelSet
from protocol.recorded_op_validation import check_fsm_hints

_STATUSES = frozenset(pb.Status.values())
_REPLICA_CODES = frozenset(pb.ReplicaStatus.Code.values())
_SHOWN_CHARS = 512


def check_status(number: int) -> None:
    check_known(number, _STATUSES)


def check_replica_code(number: int) -> None:
    check_known(number, _REPLICA_CODES)


def check_consumer_spec(message: pb.ConsumerSpec) -> None:
    """The process spec's fields report as our own: in Gazette it is embedded."""
    check_process_spec(message.process_spec)


def check_shard_spec(message: pb.ShardSpec) -> None:
    checked("Id", check_shard_id, message.id)
    _check_recovery(message)
    if duration_ns("MinTxnDuration", message.min_txn_duration) < 0:
        raise ValidationError("expected zero or a duration above it", "MinTxnDuration")
    if duration_ns("MaxTxnDuration", message.max_txn_duration) <= 0:
        raise ValidationError("expected a duration above zero", "MaxTxnDuration")
    checked("LabelSet", _check_shard_labels, LabelSet.from_proto(message.labels))
    _check_sources(message)


def _check_recovery(message: pb.ShardSpec) -> None:
    log_prefix, hint_prefix = message.recovery_log_prefix, message.hint_prefix
    if log_prefix:
        checked("RecoveryLogPrefix", check_journal, f"{log_prefix}/{message.id}")
        if not hint_prefix.startswith("/") or clean_path(hint_prefix) != hint_prefix:
            raise ValidationError("expected a clean absolute path, under which hints are kept in etcd", "HintPrefix")
    elif hint_prefix:
        raise ValidationError("hints are those of a recovery log: give both prefixes, or none", "HintPrefix")
    check_not_negative("HintBackups", message.hint_backups)


def _check_shard_labels(labels: LabelSet) -> None:
    labels.check()
    check_single_valued(labels)
    if labels.values_of("id"):
        raise ValidationError("a label called id is not allowed: selectors give it another meaning")


def _check_sources(message: pb.ShardSpec) -> None:
    last = ""
    for at, source in enumerate(message.sources):
        try:
            check_source(source)
        except ValidationError as error:
            raise error.within(f"Sources[{at}]") from None
        if source.journal <= last:
            raise ValidationError("journals must ascend without duplicates", f"Sources[{at}]", "Journal")
        last = source.journal


def check_source(message: pb.ShardSpec.Source) -> None:
    checked("Journal", check_journal, message.journal)
    check_not_negative("MinOffset", message.min_offset)


def check_replica_status(message: pb.ReplicaStatus) -> None:
    checked("Code", check_replica_code, message.code)
    failed = message.code == pb.ReplicaStatus.FAILED
    if failed != bool(message.errors):
        raise ValidationError("expected why it failed" if failed else "errors go with the code FAILED", "Errors")


def check_list_request(message: pb.ListRequest) -> None:
    checked("Selector", check_label_selector, message.selector)


def check_list_response(message: pb.ListResponse) -> None:
    _check_response(message)
    check_each("Shards", check_listed_shard, message.shards)


def check_listed_shard(message: pb.ListResponse.Shard) -> None:
    checked("Spec", check_shard_spec, message.spec)
    if message.mod_revision <= 0:
        raise ValidationError(f"expected a revision above zero (got {message.mod_revision})", "ModRevision")
    checked("Route", check_route, message.route)
    members, statuses = len(message.route.members), len(message.status)
    if members != statuses:
        raise ValidationError(f"expected {members}, one of each member of the route (got {statuses})", "Status")
    check_each("Status", check_replica_status, message.status)


def check_apply_request(message: pb.ApplyRequest) -> None:
    check_each("Changes", check_change, message.changes)


def check_change(message: pb.ApplyRequest.Change) -> None:
    upserts, hinted = message.HasField("upsert"), message.HasField("primary_hints")
    if upserts == bool(message.delete):
        raise ValidationError("expected either an upsert or a delete")
    if upserts:
        checked("Upsert", check_shard_spec, message.upsert)
    else:
        checked("Delete", check_shard_id, message.delete)
    check_expected_revision(message.expect_mod_revision, upserts=upserts)
    if hinted and not upserts:
        raise ValidationError("hints go with the shard that is upserted", "PrimaryHints")
    if hinted:
        checked("PrimaryHints", check_fsm_hints, message.primary_hints)


def check_apply_response(message: pb.ApplyResponse) -> None:
    _check_response(message)


def check_stat_request(message: pb.StatRequest) -> None:
    if message.HasField("header"):
        checked("Header", check_header, message.header)
    checked("Shard", check_shard_id, message.shard)
    checked("ReadThrough", _check_offsets, message.read_through)


def check_stat_response(message: pb.StatResponse) -> None:
    _check_response(message)
    checked("ReadThrough", _check_offsets, message.read_through)
    checked("PublishAt", _check_offsets, message.publish_at)


def _check_offsets(offsets: Mapping[str, int]) -> None:
    for journal, offset in offsets.items():
        try:
            check_journal(journal)
        except ValidationError as error:
            raise error.within(_entry(journal)) from None
        if offset < 0:
            raise ValidationError(f"expected an offset that is not negative (got {offset})", _entry(journal))


def _entry(journal: str) -> str:
    return f"Offsets[{journal if len(journal) <= _SHOWN_CHARS else journal[:_SHOWN_CHARS] + '...'}]"


def check_get_hints_request(message: pb.GetHintsRequest) -> None:
    checked("Shard", check_shard_id, message.shard)


def check_get_hints_response(message: pb.GetHintsResponse) -> None:
    """Only the status and the hints: Gazette does not look at the header of this one."""
    checked("Status", check_status, message.status)
    check_response_hints(message.primary_hints)
    for hints in message.backup_hints:
        check_response_hints(hints)


def check_response_hints(message: pb.GetHintsResponse.ResponseHints) -> None:
    if message.HasField("hints"):
        check_fsm_hints(message.hints)


def check_unassign_request(message: pb.UnassignRequest) -> None:
    check_each("Shards", check_shard_id, message.shards)


def check_unassign_response(message: pb.UnassignResponse) -> None:
    checked("Status", check_status, message.status)
    if message.status != pb.OK:
        raise ValidationError(f"expected OK (got {pb.Status.Name(message.status)})", "Status")


def _check_response(message: pb.ListResponse | pb.ApplyResponse | pb.StatResponse) -> None:
    checked("Status", check_status, message.status)
    checked("Header", check_header, message.header)
