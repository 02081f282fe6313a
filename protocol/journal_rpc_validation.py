"""The rules of the requests and responses of the Journal service.

They read as ``journal_validation`` does. Messages that carry content are judged without touching it: reading
the field would copy every byte that passes through a broker once more.
"""

from __future__ import annotations

from typing import Literal

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from protocol.errors import ValidationError, checked
from protocol.fragment_store import check_fragment_store
from protocol.gen import epoch_pb2
from protocol.gen import journal_pb2 as pb
from protocol.identifier import check_journal, check_path_component
from protocol.journal_validation import (
    STATUSES,
    check_append_suspend,
    check_each,
    check_fragment,
    check_head,
    check_header,
    check_journal_spec,
    check_label_selector,
    check_label_set,
    check_not_negative,
    check_route,
    check_spool_id,
    check_status,
    duration_ns,
)
from protocol.url import parse_url

PAGE_LIMIT_MAX = 10_000
_DELETE_PREFIX_BYTES = (1, 512)

_OfReplica = Literal["header", "fragment", "registers"]


class _Fields:
    """Some fields of a message type, to find out which of them a message holds without touching its content."""

    def __init__(self, kind: type[Message], *names: str) -> None:
        of_kind = kind.DESCRIPTOR.fields_by_name
        self._named = [(name, of_kind[name].has_presence, name.title().replace("_", "")) for name in names]

    def first_in(self, message: Message) -> str:
        """The first that the message holds, by the name it has in errors; empty if it holds none."""
        for name, has_presence, shown in self._named:
            if message.HasField(name) if has_presence else getattr(message, name):
                return shown
        return ""


_READ_METADATA = _Fields(pb.ReadResponse, "status", "header", "write_head", "fragment", "fragment_url")
_APPEND_OPENING = _Fields(
    pb.AppendRequest,
    *("header", "do_not_proxy", "offset", "check_registers", "union_registers", "subtract_registers", "suspend"),
)
_PROPOSING = _Fields(pb.ReplicateRequest, "header", "registers", "epoch", "acknowledge", "deprecated_journal")


def check_read_request(message: pb.ReadRequest) -> None:
    if message.HasField("header"):
        checked("Header", check_header, message.header)
    checked("Journal", check_journal, message.journal)
    offset, end = message.offset, message.end_offset
    if offset < -1:
        raise ValidationError(f"expected an offset, or -1 for the write head (got {offset})", "Offset")
    if end < 0 or 0 < end < offset:
        raise ValidationError(f"expected zero, or an offset at or after {offset} (got {end})", "EndOffset")


def check_read_response(message: pb.ReadResponse) -> None:
    """Content comes alone with its offset; what is said about it comes before, without content."""
    status = message.status
    if status not in STATUSES:
        checked("Status", check_status, status)
    if beside := _READ_METADATA.first_in(message):
        if message.content:
            raise ValidationError("content goes alone with its offset", beside)
        _check_read_metadata(message)
    elif (offset := message.offset) and not _has_content(message, pb.ReadResponse(offset=offset)):
        raise ValidationError("an offset goes with content, or with a fragment that holds it", "Offset")


def _check_read_metadata(message: pb.ReadResponse) -> None:
    if message.HasField("header"):
        checked("Header", check_header, message.header)
    check_not_negative("WriteHead", message.write_head)
    if message.HasField("fragment"):
        _check_read_fragment(message)
    elif not message.status and message.offset:
        raise ValidationError("an offset goes with content, or with a fragment that holds it", "Offset")
    elif message.fragment_url:
        raise ValidationError("a URL goes with its fragment, and this message has none", "FragmentUrl")


def _check_read_fragment(message: pb.ReadResponse) -> None:
    fragment = message.fragment
    checked("Fragment", check_fragment, fragment)
    if not fragment.begin <= message.offset < fragment.end:
        raise ValidationError(
            f"expected an offset of the fragment [{fragment.begin}, {fragment.end}) (got {message.offset})",
            "Offset",
        )
    if message.write_head < fragment.end:
        raise ValidationError(
            f"expected a write head at or after the fragment's end {fragment.end} (got {message.write_head})",
            "WriteHead",
        )
    if message.fragment_url:
        checked("FragmentUrl", _check_url, message.fragment_url)


def check_append_request(message: pb.AppendRequest) -> None:
    """The first message names the journal and says how to append; those after it carry content alone."""
    if message.journal:
        _check_append_opening(message)
    elif beside := _APPEND_OPENING.first_in(message):
        raise ValidationError("goes with the first message of an append, which names the journal", beside)


def _check_append_opening(message: pb.AppendRequest) -> None:
    if message.HasField("header"):
        checked("Header", check_header, message.header)
    checked("Journal", check_journal, message.journal)
    check_head("Offset", message.offset)
    if message.content:
        raise ValidationError("the first message of an append carries no content: send it in the next", "Content")
    if message.HasField("check_registers"):
        checked("CheckRegisters", check_label_selector, message.check_registers)
    if message.HasField("union_registers"):
        checked("UnionRegisters", check_label_set, message.union_registers)
    if message.HasField("subtract_registers"):
        checked("SubtractRegisters", check_label_set, message.subtract_registers)
    checked("Suspend", check_append_suspend, message.suspend)


def check_append_response(message: pb.AppendResponse) -> None:
    _check_response(message)
    status = message.status
    if status == pb.OK and not message.HasField("commit"):
        raise ValidationError("expected the fragment that was committed", "Commit")
    if status in (pb.OK, pb.REGISTER_MISMATCH) and not message.HasField("registers"):
        raise ValidationError("expected the journal's registers, present even if there are none", "Registers")
    if message.HasField("commit"):
        checked("Commit", check_fragment, message.commit)
    if message.HasField("registers"):
        checked("Registers", check_label_set, message.registers)


def check_replicate_request(message: pb.ReplicateRequest) -> None:
    """A proposal, content, or nothing but ``acked_through``, which only brokers of ours send."""
    acked_through = message.acked_through
    # Beyond it no journal ends, and nothing that is acknowledged.
    check_head("AckedThrough", acked_through)
    if message.HasField("proposal"):
        _check_proposal(message)
        return
    if beside := _PROPOSING.first_in(message):
        raise ValidationError("goes with a proposal, and this message has none", beside)
    delta = message.content_delta
    check_not_negative("ContentDelta", delta)
    if acked_through and not delta:
        return
    if not _has_content(message, pb.ReplicateRequest(content_delta=delta, acked_through=acked_through)):
        raise ValidationError("expected content or a proposal", "Content")


def _check_proposal(message: pb.ReplicateRequest) -> None:
    proposal = message.proposal
    if message.HasField("header"):
        checked("Header", check_header, message.header)
        if not message.acknowledge:
            raise ValidationError("a synchronisation, which comes with a header, asks for an answer", "Acknowledge")
    checked("Proposal", check_fragment, proposal)
    # Absent registers are empty ones: Gazette took them so from a release that did not know registers.
    checked("Registers", check_label_set, message.registers)
    if message.content:
        raise ValidationError("a proposal carries no content: send it before", "Content")
    if message.content_delta:
        raise ValidationError("a proposal carries no content, so it has no delta", "ContentDelta")
    if message.deprecated_journal not in ("", proposal.journal):
        raise ValidationError("expected the journal of the proposal, or none", "DeprecatedJournal")
    if message.HasField("epoch"):
        checked("Epoch", _check_epoch, message.epoch)


def _check_epoch(message: epoch_pb2.Epoch) -> None:
    check_not_negative("CreateRevision", message.create_revision)
    check_not_negative("Number", message.number)
    check_head("Begin", message.begin)
    check_head("OldestBegin", message.oldest_begin)


def check_replicate_response(message: pb.ReplicateResponse) -> None:
    """The rules as Gazette declares them, which its own servers break: the first response of a stream has a
    header whatever its status. Do not judge the first response of a Gazette replica by this; read its header
    off and judge what remains, or look at the parts that its status calls for.
    """
    status = message.status
    checked("Status", check_status, status)
    _check_goes_with(message, "header", status == pb.WRONG_ROUTE)
    if message.HasField("header"):
        checked("Header", check_header, message.header)
    _check_goes_with(message, "fragment", status == pb.PROPOSAL_MISMATCH)
    if message.HasField("fragment"):
        checked("Fragment", check_fragment, message.fragment)
    _check_goes_with(message, "registers", status == pb.PROPOSAL_MISMATCH)
    if message.HasField("registers"):
        checked("Registers", check_label_set, message.registers)
    if message.HasField("copy"):
        checked("Copy", _check_copy, message.copy)


def _check_goes_with(message: pb.ReplicateResponse, field: _OfReplica, wanted: bool) -> None:
    if message.HasField(field) != wanted:
        raise ValidationError(f"{'' if wanted else 'not '}expected with this status", field.capitalize())


def _check_copy(message: epoch_pb2.Copy) -> None:
    # Empty where the directory has more of the epoch than is in the spool.
    if message.spool_id:
        checked("SpoolId", check_spool_id, message.spool_id)
    check_not_negative("CreateRevision", message.create_revision)
    check_not_negative("Number", message.number)
    check_head("End", message.end)


def check_list_request(message: pb.ListRequest) -> None:
    checked("Selector", check_label_selector, message.selector)
    checked("Selector", _check_prefix_labels, message.selector)


def _check_prefix_labels(selector: pb.LabelSelector) -> None:
    """The legacy label ``prefix`` names a directory of journals."""
    for side, labels in (("Include", selector.include.labels), ("Exclude", selector.exclude.labels)):
        for at, label in enumerate(labels):
            if label.name == "prefix" and not label.value.endswith("/"):
                raise ValidationError("expected a prefix that ends in a slash", side, f"Labels[{at}]", "Value")


def check_list_response(message: pb.ListResponse) -> None:
    _check_response(message)
    check_each("Journals", check_listed_journal, message.journals)


def check_listed_journal(message: pb.ListResponse.Journal) -> None:
    checked("Spec", check_journal_spec, message.spec)
    if message.mod_revision <= 0:
        raise ValidationError(f"expected a revision above zero (got {message.mod_revision})", "ModRevision")
    checked("Route", check_route, message.route)


def check_apply_request(message: pb.ApplyRequest) -> None:
    check_each("Changes", check_change, message.changes)


def check_change(message: pb.ApplyRequest.Change) -> None:
    upserts = message.HasField("upsert")
    if upserts == bool(message.delete):
        raise ValidationError("expected either an upsert or a delete")
    if upserts:
        checked("Upsert", check_journal_spec, message.upsert)
    else:
        checked("Delete", check_journal, message.delete)
    check_expected_revision(message.expect_mod_revision, upserts=upserts)


def check_expected_revision(revision: int, *, upserts: bool) -> None:
    """An upsert may ask that nothing be there yet, by zero. A delete must name what it removes."""
    if revision < -1 or (revision == 0 and not upserts):
        wanted = "zero for what is new" if upserts else "not zero"
        raise ValidationError(
            f"expected the revision of what is changed, {wanted}, or -1 for any (got {revision})",
            "ExpectModRevision",
        )


def check_apply_response(message: pb.ApplyResponse) -> None:
    _check_response(message)


def check_fragments_request(message: pb.FragmentsRequest) -> None:
    if message.HasField("header"):
        checked("Header", check_header, message.header)
    checked("Journal", check_journal, message.journal)
    if message.end_mod_time and message.end_mod_time < message.begin_mod_time:
        raise ValidationError(f"expected zero, or a time at or after {message.begin_mod_time}", "EndModTime")
    check_not_negative("NextPageToken", message.next_page_token)
    if not 0 <= message.page_limit <= PAGE_LIMIT_MAX:
        raise ValidationError(f"expected 0 to {PAGE_LIMIT_MAX} (got {message.page_limit})", "PageLimit")
    if message.HasField("signatureTTL") and duration_ns("SignatureTTL", message.signatureTTL) <= 0:
        raise ValidationError("expected a time above zero; leave it out for no signatures", "SignatureTTL")


def check_fragments_response(message: pb.FragmentsResponse) -> None:
    _check_response(message)
    check_each("Fragments", check_listed_fragment, message.fragments)


def check_listed_fragment(message: pb.FragmentsResponse._Fragment) -> None:
    checked("Spec", check_fragment, message.spec)
    checked("SignedUrl", _check_url, message.signed_url)


def check_store_health_request(message: pb.FragmentStoreHealthRequest) -> None:
    checked("FragmentStore", check_fragment_store, message.fragment_store)
    if message.check_delete_prefix:
        if not message.check_delete:
            raise ValidationError("a prefix goes with check_delete, which is not asked for", "CheckDeletePrefix")
        checked("CheckDeletePrefix", _check_delete_prefix, message.check_delete_prefix)


def _check_delete_prefix(prefix: str) -> None:
    if not prefix.endswith("/"):
        raise ValidationError("expected a prefix that ends in a slash")
    # A clean path may begin with dots that lead out of the store's prefix, and we are about to delete there.
    if prefix.startswith("../"):
        raise ValidationError("expected a prefix that does not lead upwards")
    check_path_component(prefix[:-1], *_DELETE_PREFIX_BYTES)


def check_store_health_response(message: pb.FragmentStoreHealthResponse) -> None:
    _check_response(message)


_Response = (
    pb.AppendResponse | pb.ListResponse | pb.ApplyResponse | pb.FragmentsResponse | pb.FragmentStoreHealthResponse
)


def _check_response(message: _Response) -> None:
    checked("Status", check_status, message.status)
    checked("Header", check_header, message.header)


def _check_url(url: str) -> None:
    parse_url(url)


def _has_content(message: pb.ReadResponse | pb.ReplicateRequest, rest: Message) -> bool:
    """Whether `message` holds content besides `rest`, which is all else that it is known to hold.

    Comparing does not copy. Fields that we do not know would count as a difference, so a message that has
    some is read after all.
    """
    if len(UnknownFieldSet(message)):
        return bool(message.content)
    return message != rest
