"""Listing the fragments of a journal, page by page."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from broker.client.answer import check_ok
from broker.client.brokers import Brokers
from broker.client.outcome import FailedCallError
from broker.client.retry import RetryPolicy
from protocol import duration
from protocol.errors import GazetteError, UnavailableError
from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb
from protocol.identifier import strip_meta
from protocol.validation import validate


@dataclass(frozen=True, slots=True)
class ListedFragment:
    fragment: Fragment
    # Where anyone may read it for as long as was asked for; empty if that was not, or if it is not stored yet.
    signed_url: str = ""


@dataclass(frozen=True, slots=True)
class FragmentRange:
    """Which fragments of a journal are listed."""

    journal: str
    # Those that were stored at these times. With an end, those that are not stored yet are left out.
    begin_mod_time_s: int = 0
    end_mod_time_s: int = 0
    # For how long URLs are to be good; None asks for none.
    signature_ttl_s: float | None = None
    page_limit: int = 0

    def message(self, page_token: int) -> pb.FragmentsRequest:
        message = pb.FragmentsRequest(
            journal=self.journal,
            begin_mod_time=self.begin_mod_time_s,
            end_mod_time=self.end_mod_time_s,
            next_page_token=page_token,
            page_limit=self.page_limit,
        )
        if self.signature_ttl_s is not None:
            message.signatureTTL.CopyFrom(duration.to_proto(int(self.signature_ttl_s * 1e9)))
        return message


async def list_fragments(
    brokers: Brokers, wanted: FragmentRange, policy: RetryPolicy | None
) -> AsyncGenerator[ListedFragment, None]:
    """In ascending order of offsets. Those that come while it is listed may be missing."""
    token = 0
    while True:
        page = await _page(brokers, wanted.message(token), policy)
        for listed in page.fragments:
            yield ListedFragment(Fragment.from_proto(listed.spec), listed.signed_url)
        if not page.next_page_token:
            return
        if page.next_page_token <= token:
            raise FailedCallError(f"the listing of the fragments of {wanted.journal} does not advance: try again")
        token = page.next_page_token


async def _page(brokers: Brokers, request: pb.FragmentsRequest, policy: RetryPolicy | None) -> pb.FragmentsResponse:
    validate(request)
    name = strip_meta(request.journal)
    attempts = brokers.attempts(policy)
    while True:
        target = brokers.dispatch.for_read(name, brokers.clock())
        try:
            response = await brokers.list_fragments(target, request)
            brokers.learn(name, response.header)
            check_ok(response.status)
            return response
        except GazetteError as error:
            if isinstance(error, UnavailableError):
                brokers.dispatch.failed(target.endpoint, name, brokers.clock())
            await brokers.pause(attempts, error)
