from __future__ import annotations

from dataclasses import replace

import pytest

from broker.replication_message import Acked, Answer, Content
from broker.replication_wire import decode, decode_answer, encode, encode_answer
from protocol.endpoint import check_endpoint
from protocol.errors import Status, ValidationError
from protocol.fragment import HEAD_MAX
from protocol.gen import journal_pb2 as pb
from tests.support.broker_cores import A, B, C, header_of, route_of


@pytest.mark.parametrize("endpoints", [("http://a:80", "", "http://c:80"), ("", "", ""), None])
@pytest.mark.parametrize("status", [Status.OK, Status.WRONG_ROUTE, Status.JOURNAL_NOT_FOUND])
def test_an_answer_has_an_endpoint_for_each_member_and_leaves_none_of_them_out(
    status: Status, endpoints: tuple[str, ...] | None
) -> None:
    """Whoever finds a member without one may exit, and whoever misses a member takes the Route for another."""
    told = header_of(route_of(A, B, C))
    told = replace(told, route=replace(told.route, endpoints=endpoints))
    raw = encode_answer(Answer(status, told))
    header = pb.ReplicateResponse.FromString(raw).header
    assert len(header.route.endpoints) == 3
    for endpoint, known in zip(header.route.endpoints, endpoints or ("", "", ""), strict=True):
        check_endpoint(endpoint)
        assert endpoint == (known or "http://unreachable.invalid")
    read = decode_answer(raw)
    assert read.header is not None
    assert read.header.route.equivalent(told.route)


@pytest.mark.parametrize("through", [HEAD_MAX + 1, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize("message", [Content(b"x", 0), Content(b"x", 7), Acked(0)], ids=["first", "more", "alone"])
def test_bytes_beyond_where_journals_end_are_acknowledged_by_no_message(message: Content | Acked, through: int) -> None:
    forged = Acked(through) if isinstance(message, Acked) else replace(message, acked_through=through)
    with pytest.raises(ValidationError, match="AckedThrough"):
        decode(encode(forged))
    known = Acked(HEAD_MAX) if isinstance(message, Acked) else replace(message, acked_through=HEAD_MAX)
    assert decode(encode(known)) == known
