"""The rules of what journals and brokers are described by: specs, labels, fragments, routes and headers.

Each check takes a message (or a number, or a text) and either returns or raises a ``ValidationError`` whose
path begins at the message's field; fields go by the names Gazette's errors give them. Checks run in
Gazette's order, so that of several faults both report the same one.

A sub-message that Gazette always writes is judged even where it is absent, as if it were empty; one that
may be left out is judged only where it is present.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from protocol import duration
from protocol.endpoint import check_endpoint
from protocol.errors import ValidationError, checked
from protocol.fragment import HEAD_MAX
from protocol.fragment_store import FragmentStore
from protocol.gen import journal_pb2 as pb
from protocol.identifier import (
    POSTFIX_BYTES,
    SUFFIX_BYTES,
    ZONE_BYTES,
    check_journal,
    check_path_component,
    check_token,
)
from protocol.label import CONTENT_TYPE, MESSAGE_SUBTYPE, MESSAGE_TYPE, SINGLE_VALUED, Label, LabelSet
from protocol.memo import remembered_message
from protocol.postfix_template import check_postfix_template
from protocol.selector import LabelSelector

T = TypeVar("T")

REPLICATION_MAX = 5
FRAGMENT_BYTES = (1 << 10, 1 << 34)
JOURNAL_LIMIT_MAX = 1 << 17
SPOOL_ID_BYTES = 16
REFRESH_NS = (duration.SECOND, 24 * duration.HOUR)
FLUSH_NS_MIN = duration.MINUTE

STATUSES = frozenset(pb.Status.values())
_CODECS = frozenset(pb.CompressionCodec.values()) - {pb.INVALID}
_FLAGS = frozenset(pb.JournalSpec.Flag.values())
_SUSPEND_LEVELS = frozenset(pb.JournalSpec.Suspend.Level.values())
_APPEND_SUSPENDS = frozenset(pb.AppendRequest.Suspend.values())

# The two tokens of RFC 2045, the second optional: that is all Gazette asks of a content type.
_is_media_type = re.compile(r"[!#$%&'*+\-.^_`{|}~0-9A-Za-z]+(?:/[!#$%&'*+\-.^_`{|}~0-9A-Za-z]+)?").fullmatch


def check_each(field: str, check: Callable[[T], None], values: Iterable[T]) -> None:
    """Run a check of every element of the list `field`."""
    for at, value in enumerate(values):
        try:
            check(value)
        except ValidationError as error:
            raise error.within(f"{field}[{at}]") from None


def check_not_negative(field: str, number: int) -> None:
    if number < 0:
        raise ValidationError(f"expected a number that is not negative (got {number})", field)


def check_head(field: str, offset: int) -> None:
    """Where a journal ends, or is to go on."""
    check_not_negative(field, offset)
    if offset > HEAD_MAX:
        raise ValidationError(f"expected an offset of at most {HEAD_MAX} (got {offset})", field)


def check_status(number: int) -> None:
    check_known(number, STATUSES)


def check_codec(number: int) -> None:
    check_known(number, _CODECS)


def check_flags(number: int) -> None:
    """One of the flags or none; they do not combine."""
    check_known(number, _FLAGS)


def check_suspend_level(number: int) -> None:
    check_known(number, _SUSPEND_LEVELS)


def check_append_suspend(number: int) -> None:
    check_known(number, _APPEND_SUSPENDS)


def check_known(number: int, known: frozenset[int]) -> None:
    """Raise unless an enum has this number."""
    if number not in known:
        raise ValidationError(f"expected one of {', '.join(map(str, sorted(known)))} (got {number})")


def duration_ns(field: str, message: Duration) -> int:
    """Nanoseconds of the duration in `field`, which must be one that Go can decode."""
    seconds, nanos, total = message.seconds, message.nanos, duration.from_proto(message)
    if (
        not -duration.SECOND < nanos < duration.SECOND
        or seconds * nanos < 0
        or not duration.MIN <= total <= duration.MAX
    ):
        raise ValidationError("expected at most 292 years, in seconds and nanos that agree in sign", field)
    return total


def check_label(message: pb.Label) -> None:
    Label(message.name, message.value).check()
    if message.prefix:
        raise ValidationError("only a selector may hold a prefix label", "Prefix")


@remembered_message(pb.LabelSet)
def check_label_set(message: pb.LabelSet) -> None:
    LabelSet.from_proto(message).check()


@remembered_message(pb.LabelSelector)
def check_label_selector(message: pb.LabelSelector) -> None:
    LabelSelector.from_proto(message).check()


def check_single_valued(labels: LabelSet) -> None:
    last = ""
    for at, label in enumerate(labels):
        if label.name == last and last in SINGLE_VALUED:
            raise ValidationError(f"label {last!r} can have one value only", f"Labels[{at}]")
        last = label.name


def check_process_id(message: pb.ProcessSpec.ID) -> None:
    _check_process_id(message.zone, message.suffix)


# The same few brokers are in every header. Both parts are short if they are valid, so the cache is small.
@lru_cache(maxsize=4096)
def _check_process_id(zone: str, suffix: str) -> None:
    checked("Zone", check_token, zone, *ZONE_BYTES)
    checked("Suffix", check_token, suffix, *SUFFIX_BYTES)


def check_process_spec(message: pb.ProcessSpec) -> None:
    checked("Id", check_process_id, message.id)
    checked("Endpoint", check_endpoint, message.endpoint)


def check_broker_spec(message: pb.BrokerSpec) -> None:
    """The process spec's fields report as our own: in Gazette it is embedded."""
    check_process_spec(message.process_spec)
    if message.journal_limit > JOURNAL_LIMIT_MAX:
        raise ValidationError(f"expected at most {JOURNAL_LIMIT_MAX} journals", "JournalLimit")
    if message.spool_id:
        checked("SpoolId", check_spool_id, message.spool_id)
    if message.http_endpoint:
        checked("HttpEndpoint", check_endpoint, message.http_endpoint)


def check_spool_id(spool_id: bytes) -> None:
    if len(spool_id) != SPOOL_ID_BYTES:
        raise ValidationError(f"expected {SPOOL_ID_BYTES} bytes (got {len(spool_id)})")


@remembered_message(pb.Route)
def check_route(message: pb.Route) -> None:
    """A Route without members must have a primary of -1: the default of 0 names a member it does not have."""
    last = ("", "")
    members = message.members
    for at, member in enumerate(members):
        this = (member.zone, member.suffix)
        try:
            _check_process_id(*this)
        except ValidationError as error:
            raise error.within(f"Members[{at}]") from None
        if this <= last:
            raise ValidationError("members must ascend without duplicates", f"Members[{at}]")
        last = this
    if not -1 <= message.primary < len(members):
        raise ValidationError(
            f"expected the index of one of {len(members)} members, or -1 for none (got {message.primary})",
            "Primary",
        )
    endpoints = message.endpoints
    if endpoints and len(endpoints) != len(members):
        raise ValidationError(
            f"expected none or {len(members)}, one of each member (got {len(endpoints)})", "Endpoints"
        )
    check_each("Endpoints", _check_route_endpoint, endpoints)


def _check_route_endpoint(endpoint: str) -> None:
    # Empty is that of a member whose key is gone while its assignment still stands.
    if endpoint:
        check_endpoint(endpoint)


def check_etcd(message: pb.Header.Etcd) -> None:
    if not message.cluster_id:
        raise ValidationError("expected the id of an etcd cluster, not zero", "ClusterId")
    if not message.member_id:
        raise ValidationError("expected the id of an etcd member, not zero", "MemberId")
    if message.revision <= 0:
        raise ValidationError(f"expected a revision above zero (got {message.revision})", "Revision")
    if not message.raft_term:
        raise ValidationError("expected a raft term, not zero", "RaftTerm")


def check_header(message: pb.Header) -> None:
    process = message.process_id
    if process.zone or process.suffix:
        checked("ProcessId", check_process_id, process)
    checked("Route", check_route, message.route)
    checked("Etcd", check_etcd, message.etcd)


def check_fragment(message: pb.Fragment) -> None:
    """Sum, store and modification time are not judged: a fragment may be empty, or not yet persisted."""
    checked("Journal", check_journal, message.journal)
    if message.begin > message.end:
        raise ValidationError(f"expected an end at or after begin {message.begin} (got {message.end})", "End")
    checked("CompressionCodec", check_codec, message.compression_codec)
    if message.path_postfix:
        checked("PathPostfix", check_path_component, message.path_postfix, *POSTFIX_BYTES)


def check_journal_spec(message: pb.JournalSpec) -> None:
    checked("Name", check_journal, message.name)
    if ";" in message.name:
        raise ValidationError("expected the name of a journal without a ;meta suffix", "Name")
    if not 1 <= message.replication <= REPLICATION_MAX:
        raise ValidationError(f"expected 1 to {REPLICATION_MAX} (got {message.replication})", "Replication")
    checked("Labels", _check_journal_labels, message.labels)
    checked("Fragment", check_fragment_spec, message.fragment)
    checked("Flags", check_flags, message.flags)
    check_not_negative("MaxAppendRate", message.max_append_rate)
    if message.HasField("suspend"):
        checked("Suspend", check_suspend, message.suspend)


@remembered_message(pb.LabelSet)
def _check_journal_labels(message: pb.LabelSet) -> None:
    labels = LabelSet.from_proto(message)
    labels.check()
    values = {label.name: label.value for label in labels}
    if "name" in values or "prefix" in values:
        raise ValidationError("labels called name and prefix are not allowed: selectors give them another meaning")
    check_single_valued(labels)
    content_type = values.get(CONTENT_TYPE)
    if content_type is not None and not _is_media_type(content_type):
        raise ValidationError(f"expected a label {CONTENT_TYPE} such as application/x-ndjson (got {content_type!r})")
    if MESSAGE_TYPE in values:
        if content_type is None:
            raise ValidationError(f"expected a label {CONTENT_TYPE} beside {MESSAGE_TYPE}")
    elif MESSAGE_SUBTYPE in values:
        raise ValidationError(f"expected a label {MESSAGE_TYPE} beside {MESSAGE_SUBTYPE}")


@remembered_message(pb.JournalSpec.Fragment)
def check_fragment_spec(message: pb.JournalSpec.Fragment) -> None:
    smallest, largest = FRAGMENT_BYTES
    if not smallest <= message.length <= largest:
        raise ValidationError(f"expected {smallest} to {largest} bytes (got {message.length})", "Length")
    checked("CompressionCodec", check_codec, message.compression_codec)
    _check_stores(message)
    if not REFRESH_NS[0] <= duration_ns("RefreshInterval", message.refresh_interval) <= REFRESH_NS[1]:
        raise ValidationError("expected one second to 24 hours", "RefreshInterval")
    duration_ns("Retention", message.retention)
    flush_ns = duration_ns("FlushInterval", message.flush_interval)
    if flush_ns and flush_ns < FLUSH_NS_MIN:
        raise ValidationError("expected a minute at least, or zero for never", "FlushInterval")
    if message.path_postfix_template:
        checked("PathPostfixTemplate", check_postfix_template, message.path_postfix_template)


def _check_stores(message: pb.JournalSpec.Fragment) -> None:
    offloads = message.compression_codec == pb.GZIP_OFFLOAD_DECOMPRESSION
    for at, url in enumerate(message.stores):
        try:
            store = FragmentStore.parse(url)
        except ValidationError as error:
            raise error.within(f"Stores[{at}]") from None
        if at == 0 and offloads and store.scheme == "file":
            raise ValidationError("a file store cannot unpack what it serves: choose GZIP", "CompressionCodec")


def check_suspend(message: pb.JournalSpec.Suspend) -> None:
    checked("Level", check_suspend_level, message.level)
    check_not_negative("Offset", message.offset)
