"""Appending: one call, and as many of them as it takes within what the caller allows.

A broker commits nothing until it has the message that asks for it. So whatever fails before that message was begun was
not written, whatever fails after it is not known, and what the broker answers is certain; as is a failure that a
broker of our kind marks as one that came before the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing

import grpc

from broker.client import metrics
from broker.client.answer import check_ok, decoded, shown
from broker.client.append_request import COMMIT, AppendRequest, Content, Messages, is_repeatable
from broker.client.brokers import AppendCall, Brokers
from broker.client.dispatch import Target
from broker.client.failure import failure_of, is_marked
from broker.client.outcome import Appended, FailedCallError, UnknownOutcomeError, is_refusal
from broker.client.retry import RetryPolicy
from protocol.errors import GazetteError, UnavailableError
from protocol.fragment import sum_from_proto
from protocol.gen import journal_pb2 as pb
from protocol.identifier import strip_meta
from protocol.label import LabelSet


async def append(
    brokers: Brokers, request: AppendRequest, content: Content, policy: RetryPolicy | None = None
) -> Appended:
    """Append `content`, all of it or nothing.

    What can be gone through but once is sent but once: then nothing is tried again after its first chunk was taken.
    """
    attempts = brokers.attempts(policy)
    # The first attempt of which nobody knows what came of it. However later ones end, that stays so.
    unknown: UnknownOutcomeError | None = None
    while True:
        attempt = _Attempt(brokers, request)
        try:
            if strip_meta(request.journal) in brokers.suspects:
                await _test(brokers, request)
            return await attempt.run(content)
        except GazetteError as error:
            if isinstance(error, UnknownOutcomeError):
                unknown = unknown or error
            try:
                if attempt.has_begun_content and not is_repeatable(content):
                    raise
                await brokers.pause(attempts, error)
            except UnknownOutcomeError:
                raise
            except GazetteError as last:
                if unknown is None:
                    raise
                raise UnknownOutcomeError(f"{unknown}; and when it was tried again: {last}") from last


async def _test(brokers: Brokers, request: AppendRequest) -> None:
    """Whether appends to a journal get through again.

    While a member of it is dead and not replaced, all appends fail after they were sent. Of those that have content the
    outcome were not known, time after time; one without any can be repeated at will.
    """
    attempt = _Attempt(brokers, AppendRequest(request.journal, suspend=request.suspend))
    try:
        await attempt.run(b"")
    except UnknownOutcomeError as error:
        raise UnavailableError(
            f"appends to {request.journal} do not get through at the moment ({attempt.failure})"
        ) from error
    brokers.suspects.discard(strip_meta(request.journal))


class _Attempt:
    """One call."""

    def __init__(self, brokers: Brokers, request: AppendRequest) -> None:
        self._brokers = brokers
        self._request = request
        self._journal = strip_meta(request.journal)
        self.has_begun_content = False
        self.failure: GazetteError | None = None
        self._may_be_committed = False
        self._stall = asyncio.timeout(None)

    async def run(self, content: Content) -> Appended:
        brokers, journal = self._brokers, self._journal
        target = brokers.dispatch.for_append(journal, brokers.clock())
        call = await brokers.append(target, journal)
        try:
            return self._appended(await self._answer(call, target, content), target)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                brokers.dispatch.failed(target.endpoint, journal, brokers.clock())
            failure = failure_of(error, target.endpoint)
            raise (failure if is_marked(error) else self._known(failure)) from error
        except FailedCallError as error:
            raise self._known(error) from error
        except TimeoutError as error:
            if not self._stall.expired():
                raise
            brokers.lost(target.endpoint, journal)
            stalled = UnavailableError(f"{target.endpoint}: no progress for {brokers.settings.stall_s:g} s")
            raise self._known(stalled) from error
        finally:
            call.cancel()

    def _known(self, error: GazetteError) -> GazetteError:
        """What the failure says about the append."""
        self.failure = error
        if is_refusal(error):
            return error
        self._brokers.suspect(self._journal)
        if not self._may_be_committed:
            return error
        return UnknownOutcomeError(
            f"an append to {self._journal} was sent, and whether it was done is not known ({error})"
        )

    async def _answer(self, call: AppendCall, target: Target, content: Content) -> pb.AppendResponse:
        loop, stall_s = asyncio.get_running_loop(), self._brokers.settings.stall_s
        async with self._stall as scope, aclosing(self._messages(target, content)) as messages:
            async for message in messages:
                scope.reschedule(loop.time() + stall_s)
                if not await _is_done(call.write(message)):
                    break
                # How long the content takes to come is up to the caller, and to the broker, which has its own limit.
                scope.reschedule(None)
            else:
                scope.reschedule(loop.time() + stall_s)
                await _is_done(call.done_writing())
            scope.reschedule(loop.time() + stall_s)
            raw = await call
        return decoded(pb.AppendResponse, raw, target.endpoint)

    async def _messages(self, target: Target, content: Content) -> AsyncGenerator[bytes, None]:
        opening = self._request.message(may_proxy=target.may_proxy, min_revision=self._brokers.revision)
        yield opening.SerializeToString()
        messages = Messages()
        self.has_begun_content = True
        if isinstance(content, bytes | bytearray | memoryview):
            for message in messages.feed(content):
                yield message
        elif hasattr(content, "__aiter__"):
            async for chunk in content:
                for message in messages.feed(chunk):
                    yield message
        else:
            for chunk in content:
                for message in messages.feed(chunk):
                    yield message
        for message in messages.end():
            yield message
        self._may_be_committed = True
        yield COMMIT

    def _appended(self, response: pb.AppendResponse, target: Target) -> Appended:
        self._brokers.learn(self._journal, response.header)
        registers = LabelSet.from_proto(response.registers)
        if response.status == pb.REGISTER_MISMATCH:
            check_ok(response.status, shown(registers))
        check_ok(response.status, response.store_health_error)
        if not self._may_be_committed:
            raise FailedCallError(f"{target.endpoint}: it says that an append was done which was not asked for")
        commit = response.commit
        metrics.appended(self._journal, commit.end - commit.begin)
        return Appended(
            self._journal,
            commit.begin,
            commit.end,
            registers,
            sum_from_proto(commit.sum),
            response.total_chunks,
            response.delayed_chunks,
        )


async def _is_done(step: Awaitable[None]) -> bool:
    """Whether there is any use in sending more. Why not, if there is not, is what the call itself ends with."""
    try:
        await step
    except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
        return False
    return True
