"""How brokers and stores are asked for journals: for what is wanted, and several at once."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from contextlib import suppress

import pytest

from protocol.codec import CompressionCodec
from protocol.errors import ValidationError
from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb
from protocol.route import EtcdRevision, Header, ProcessId, Route
from protocol.selector import LabelSelector
from spark_readers.catalogue import AT_ONCE_MAX
from spark_readers.journal_selectors import NAMES_MAX
from spark_readers.scan import inferred_schema, resolve
from tests.support.broker_cluster import journal_spec
from tests.support.counting_s3 import PATIENCE_S, counting_s3
from tests.support.fragment_bag import LINES, options_of
from tests.support.scripted_broker import ScriptedBroker, Turn, scripted_broker
from tests.support.stream_query import StreamQuery


def objects_of(*journals: str) -> dict[str, bytes]:
    content = b'{"n":1}\n'
    digest = hashlib.sha1(content).digest()
    of = [Fragment(name, 0, len(content), digest, CompressionCodec.NONE, "s3://bucket/", 1) for name in journals]
    return {fragment.content_path: content for fragment in of}


def test_named_journals_of_a_store_are_listed_at_once_up_to_a_limit() -> None:
    names = [f"acme/j{at:02}" for at in range(2 * AT_ONCE_MAX)]
    with counting_s3(objects_of(*names)) as store:
        # Nobody is answered before all that may be on their way have come.
        together = threading.Barrier(AT_ONCE_MAX)
        store.before_listing = lambda _: together.wait(PATIENCE_S)
        offsets = dict.fromkeys(names, (0, 8))
        assert resolve(options_of(path=store.url, journals=",".join(names))) == offsets
        assert store.listed_at_once == AT_ONCE_MAX
        assert sorted(store.listed) == [f"{name}/" for name in names]
        # A sample needs no more than a few.
        store.listed.clear()
        store.before_listing = lambda _: None
        inferred = inferred_schema(options_of(path=store.url, journals=",".join(names), framing="json"))
        assert [field["name"] for field in inferred["fields"]] == ["n"]
        assert len(store.listed) < len(names)


def test_an_error_of_a_listing_is_told_as_it_is() -> None:
    with counting_s3(objects_of("acme/one")) as store, pytest.raises(ValidationError, match=r"no journal 'acme/two'"):
        resolve(options_of(path=store.url, journals="acme/one,acme/two"))


def header_of(broker: ScriptedBroker) -> pb.Header:
    member = ProcessId("zone", "broker")
    return Header(member, Route((member,), 0, (broker.endpoint,)), EtcdRevision(1, 2, 3, 4)).to_proto()


def told_of(broker: ScriptedBroker, *journals: str) -> Turn:
    """A listing of them."""
    header = header_of(broker)
    listed = [
        pb.ListResponse.Journal(
            spec=journal_spec(name, 1).to_proto(), mod_revision=1, create_revision=1, route=header.route
        )
        for name in journals
    ]
    return Turn([pb.ListResponse(header=header, journals=listed).SerializeToString()])


async def asked(turns: int, **given: str) -> list[LabelSelector]:
    """What a broker that has no journals was asked for."""
    async with scripted_broker() as broker:
        await broker.add(*(told_of(broker) for _ in range(turns)))
        with suppress(ValidationError):
            assert await asyncio.to_thread(resolve, options_of(broker=broker.endpoint, **given)) == {}
        requests = [pb.ListRequest.FromString(call.messages[0]) for call in broker.received]
    return [LabelSelector.from_proto(request.selector) for request in requests]


async def test_brokers_are_asked_for_names_in_groups_and_for_what_a_pattern_begins_with() -> None:
    names = [f"acme/j{at:04}" for at in range(NAMES_MAX + 44)]
    selectors = await asked(2, journals=",".join(names))
    assert sorted(name for of in selectors for name in of.include.values_of("name")) == names
    assert max(len(of.include) for of in selectors) == NAMES_MAX
    assert [str(of) for of in await asked(1, journalPattern="acme/ord.*")] == ["name:prefix=acme/ord"]
    assert [str(of) for of in await asked(1, journalPattern=".*")] == [""]
    assert [str(of) for of in await asked(1, selector="app=web")] == ["app=web"]


async def test_a_new_journal_of_which_nothing_is_left_is_read_from_where_it_is_written_next() -> None:
    """Retention may have removed all of it before a stream has heard of it."""
    async with scripted_broker() as broker:
        await broker.add(told_of(broker))
        query = await asyncio.to_thread(lambda: StreamQuery(LINES, broker=broker.endpoint, journalPattern="acme/.*"))
        header = header_of(broker)
        head = pb.ReadResponse(status=pb.OFFSET_NOT_YET_AVAILABLE, header=header, offset=4096, write_head=4096)
        none = pb.FragmentsResponse(header=header)
        await broker.add(
            told_of(broker, "acme/orders"), Turn([head.SerializeToString()]), Turn([none.SerializeToString()])
        )
        # Not even that it fails for want of what was before.
        assert await asyncio.to_thread(query.batch) is None
        assert query.reader.listing.journals["acme/orders"].earliest == 4096
