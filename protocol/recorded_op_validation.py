"""The rules of recovery log segments and of the hints by which a log is played back."""

from __future__ import annotations

from protocol.errors import ValidationError, checked
from protocol.gen import recorded_op_pb2 as pb
from protocol.identifier import check_journal


def check_segment(message: pb.Segment) -> None:
    _check_segment(message, message.log)


def _check_segment(message: pb.Segment, log: str) -> None:
    if not message.author:
        raise ValidationError("expected an author, not zero", "Author")
    if message.first_seq_no <= 0:
        raise ValidationError(f"expected a number above zero (got {message.first_seq_no})", "FirstSeqNo")
    if message.first_offset < 0:
        raise ValidationError(f"expected an offset of the log (got {message.first_offset})", "FirstOffset")
    if message.last_seq_no < message.first_seq_no:
        raise ValidationError(f"expected {message.first_seq_no} or above (got {message.last_seq_no})", "LastSeqNo")
    if message.last_offset and message.last_offset <= message.first_offset:
        raise ValidationError(f"expected zero, or more than {message.first_offset}", "LastOffset")
    checked("Log", check_journal, log)


def check_fsm_hints(message: pb.FSMHints) -> None:
    """A segment without a log is one of the hints' own log, and must not repeat its name.

    The order of nodes and segments is judged when a machine is started from them.
    """
    own_log = message.log
    for node in message.live_nodes:
        for segment in node.segments:
            if segment.log and segment.log == own_log:
                raise ValidationError("expected no log where it is the hints' own", "Segment", "Log")
            checked("Segment", _check_segment, segment, segment.log or own_log)
