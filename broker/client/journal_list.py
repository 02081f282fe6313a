"""Listing journals, once or for as long as somebody watches."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from google.protobuf.message import DecodeError

from broker.client.brokers import Brokers
from broker.client.listing import Listing, ListingBuilder
from broker.client.outcome import FailedCallError
from broker.client.retry import Attempts, RetryPolicy
from broker.client.stall_watch import StallWatch
from protocol.errors import GazetteError, UnavailableError
from protocol.gen import journal_pb2 as pb
from protocol.selector import LabelSelector
from protocol.validation import validate

ASKED_S_MAX = 10.0

# There is no such journal: to list it costs next to nothing, and tells that the broker is there.
_NOTHING = LabelSelector.parse("name=pygazette/are-you-there")


async def list_journals(brokers: Brokers, selector: LabelSelector, policy: RetryPolicy | None) -> Listing:
    request = pb.ListRequest(selector=selector.to_proto())
    validate(request)
    attempts = brokers.attempts(policy)
    while True:
        try:
            return await _list_once(brokers, brokers.dispatch.for_any(brokers.clock()), request, None)
        except GazetteError as error:
            await brokers.pause(attempts, error)


async def _list_once(brokers: Brokers, endpoint: str, request: pb.ListRequest, timeout_s: float | None) -> Listing:
    call = await brokers.list(endpoint, request, timeout_s)
    builder = ListingBuilder()
    async with StallWatch(call, endpoint, brokers.settings.stall_s, brokers.tasks) as watch:
        while (message := await _next(brokers, watch, endpoint)) is not None:
            if builder.feed(message) is not None:
                raise FailedCallError(f"{endpoint}: a listing has an empty part")
    listing = builder.end()
    _learn(brokers, listing)
    return listing


async def watch_journals(
    brokers: Brokers, selector: LabelSelector, policy: RetryPolicy | None
) -> AsyncGenerator[Listing, None]:
    """The journals as they are, and again whenever their number or the spec of one changes.

    Where the stream of a broker ends, that of another resumes: no listing comes twice.
    """
    attempts = Attempts(policy or brokers.settings.retry, brokers.clock(), (UnavailableError, FailedCallError))
    request = pb.ListRequest(selector=selector.to_proto(), watch=True)
    validate(request)
    resumed: pb.Header | None = None
    while True:
        endpoint = brokers.dispatch.for_any(brokers.clock())
        try:
            call = await brokers.list(endpoint, request)
            builder = ListingBuilder(resumed)
            async with StallWatch(
                call, endpoint, brokers.settings.stall_s, brokers.tasks, _IsAlive(brokers, endpoint, attempts)
            ) as watch:
                while (message := await _next(brokers, watch, endpoint)) is not None:
                    listing = builder.feed(message)
                    if listing is not None:
                        attempts.succeeded()
                        resumed = builder.header
                        assert resumed is not None
                        request.watch_resume.CopyFrom(resumed)
                        _learn(brokers, listing)
                        yield listing
            # A token that has run out ends it so, and a broker that leaves.
            raise UnavailableError(f"{endpoint}: the broker has ended a watch")
        except GazetteError as error:
            await brokers.pause(attempts, error)


class _IsAlive:
    def __init__(self, brokers: Brokers, endpoint: str, attempts: Attempts) -> None:
        self._brokers = brokers
        self._endpoint = endpoint
        self._attempts = attempts

    async def __call__(self) -> bool:
        request = pb.ListRequest(selector=_NOTHING.to_proto())
        timeout_s = min(self._brokers.settings.stall_s, ASKED_S_MAX)
        await _list_once(self._brokers, self._endpoint, request, timeout_s)
        self._attempts.succeeded()
        return True


async def _next(brokers: Brokers, watch: StallWatch, endpoint: str) -> pb.ListResponse | None:
    try:
        raw = await watch.next()
    except UnavailableError:
        if watch.is_stalled:
            brokers.lost(endpoint, None)
        else:
            brokers.dispatch.failed(endpoint, None, brokers.clock())
        raise
    try:
        return None if raw is None else pb.ListResponse.FromString(raw)
    except DecodeError as error:
        raise FailedCallError(f"{endpoint}: its answer is not a message of the expected type") from error


def _learn(brokers: Brokers, listing: Listing) -> None:
    now_s = brokers.clock()
    for journal in listing:
        brokers.dispatch.learn(journal.spec.name, journal.route, now_s)
