"""Journals: what this process can do with journals, whoever asks for it: a call of gRPC or a request of HTTP."""

from __future__ import annotations

from typing import Protocol, TypeVar

from broker.append_api import AppendCall
from protocol.auth import Claims
from protocol.gen import journal_pb2 as pb
from protocol.route import ProcessId

ResponseT_contra = TypeVar("ResponseT_contra", contravariant=True)


class Answers(Protocol[ResponseT_contra]):
    """Where the answers to a request go. What is sent is on its way, or holds up whoever sends it."""

    @property
    def claims(self) -> Claims: ...

    async def send(self, response: ResponseT_contra, /) -> None: ...


class Journals(Protocol):
    """Requests that are malformed raise a ValidationError."""

    @property
    def is_serving(self) -> bool:
        """Whether there is a broker already."""
        ...

    async def list_journals(self, request: pb.ListRequest, answers: Answers[pb.ListResponse]) -> None: ...

    async def read(self, request: pb.ReadRequest, answers: Answers[pb.ReadResponse | bytes]) -> None: ...

    async def append(self, call: AppendCall) -> bytes: ...

    def gateway_of(self, member: ProcessId) -> str:
        """The URL of a broker's gateway; empty if it has none, or is not known."""
        ...

    def content_type_of(self, journal: str) -> str:
        """As its label says; empty if it has none."""
        ...
