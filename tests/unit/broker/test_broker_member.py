from __future__ import annotations

from dataclasses import replace

import pytest

from broker.broker_member import BrokerMember
from protocol.errors import ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.route import ProcessId

MEMBER = BrokerMember(ProcessId("zone-a", "broker-1"), "http://host:8080", 1024)


def test_a_broker_is_what_it_wrote_of_itself() -> None:
    full = replace(MEMBER, exiting=True, capabilities=3, spool_id=b"0123456789abcdef", http_endpoint="http://host:80")
    for member in (MEMBER, full):
        assert BrokerMember.decoded("zone-a", "broker-1", member.encoded()) == member


def test_a_broker_that_exits_keeps_its_limit() -> None:
    message = pb.BrokerSpec.FromString(replace(MEMBER, exiting=True).encoded())
    assert (message.exiting, message.journal_limit) == (True, 1024)


@pytest.mark.parametrize(
    "member",
    [
        replace(MEMBER, id=ProcessId("zone-b", "broker-1")),
        replace(MEMBER, id=ProcessId("zone-a", "broker-2")),
        replace(MEMBER, endpoint="not a url"),
        replace(MEMBER, limit=1 << 18),
        replace(MEMBER, spool_id=b"short"),
    ],
    ids=["of another zone", "of another suffix", "an endpoint", "a limit", "a spool id"],
)
def test_a_spec_that_is_wrong_or_of_another_broker_is_refused(member: BrokerMember) -> None:
    with pytest.raises(ValidationError):
        BrokerMember.decoded("zone-a", "broker-1", member.encoded())
