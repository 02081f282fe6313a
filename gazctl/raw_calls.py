"""Answers of brokers as the messages that they are, for those who want to see all of them."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import grpc

from broker.client.answer import check_ok
from broker.client.brokers import Brokers
from broker.client.dispatch import Target
from broker.client.failure import failure_of
from broker.client.retrying_read import WRITE_HEAD
from broker.client.settings import ClientSettings
from broker.client.tasks import ClientTasks
from broker.served_bytes import TOLD_AS
from protocol.errors import GazetteError
from protocol.gen import journal_pb2 as pb
from protocol.selector import LabelSelector


@asynccontextmanager
async def brokers_of(settings: ClientSettings) -> AsyncIterator[Brokers]:
    async with ClientTasks() as tasks:
        brokers = Brokers(settings, tasks, time.time, random.Random())  # noqa: TID251 -- a command has the real one
        try:
            yield brokers
        finally:
            await brokers.close()


async def list_journals(brokers: Brokers, selector: LabelSelector, *, heads: bool = False) -> pb.ListResponse:
    """All messages of a listing as one; with what is on record of the journals' heads, if that is asked for."""
    request = pb.ListRequest(selector=selector.to_proto(), heads=heads)
    endpoint = brokers.dispatch.for_any(brokers.clock())
    listed = pb.ListResponse()
    call = await brokers.list(endpoint, request, brokers.settings.stall_s)
    try:
        while isinstance(raw := await call.read(), bytes):
            listed.MergeFromString(raw)
    except grpc.aio.AioRpcError as error:
        raise failure_of(error, endpoint) from error
    check_ok(listed.status)
    return listed


class MemberSaid(NamedTuple):
    """What a member of a journal's route knows of it."""

    write_head: int
    # What it has handed to readers since it was started; None of a broker that does not tell.
    served_bytes: int | None


async def ask_member(brokers: Brokers, endpoint: str, journal: str) -> MemberSaid:
    request = pb.ReadRequest(journal=journal, offset=WRITE_HEAD, metadata_only=True, do_not_proxy=True)
    call = await brokers.read(Target(endpoint, may_proxy=False), request, brokers.settings.stall_s)
    said = pb.ReadResponse()
    try:
        while isinstance(raw := await call.read(), bytes):
            said.MergeFromString(raw)
        at_end = {str(name): value for name, value in await call.trailing_metadata() or ()}
    except grpc.aio.AioRpcError as error:
        raise failure_of(error, endpoint) from error
    if said.status != pb.OFFSET_NOT_YET_AVAILABLE:
        check_ok(said.status)
    served = at_end.get(TOLD_AS)
    return MemberSaid(said.write_head, int(served) if served is not None else None)


async def list_fragments(brokers: Brokers, request: pb.FragmentsRequest) -> pb.FragmentsResponse:
    """All pages of a journal's fragments as one."""
    all_pages: pb.FragmentsResponse | None = None
    attempts = brokers.attempts(None)
    while True:
        target = brokers.dispatch.for_read(request.journal, brokers.clock())
        try:
            page = await brokers.list_fragments(target, request)
            check_ok(page.status)
        except GazetteError as error:
            await brokers.pause(attempts, error)
            continue
        brokers.learn(request.journal, page.header)
        if all_pages is None:
            all_pages = page
        else:
            all_pages.fragments.extend(page.fragments)
        if page.next_page_token <= request.next_page_token:
            all_pages.next_page_token = 0
            return all_pages
        request.next_page_token = page.next_page_token
