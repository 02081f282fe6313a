"""The headers of the gateway's answers: those of Gazette, in its spelling."""

from __future__ import annotations

import re
from email.utils import formatdate
from urllib.parse import quote

from broker.http_target import OFFSET_MAX
from protocol.fragment import Fragment
from protocol.gen import journal_pb2 as pb

_PLAIN = "application/octet-stream"
# Those that no browser takes for a page.
_IS_HARMLESS = re.compile(r"application/x-[\w.+-]+|application/(?:json|octet-stream)|text/(?:csv|plain)").fullmatch

Headers = dict[str, str]


def route_token(route: pb.Route) -> str:
    """
    >>> member = pb.ProcessSpec.ID(zone="a", suffix="broker-1")
    >>> route_token(pb.Route(members=[member], endpoints=["http://here:80"]))
    'members:<zone:"a" suffix:"broker-1" > endpoints:"http://here:80"'
    """
    members = [f"members:<{_fields(zone=member.zone, suffix=member.suffix)} >" for member in route.members]
    primary = [f"primary:{route.primary}"] if route.primary else []
    return " ".join([*members, *primary, *(f"endpoints:{_quoted(endpoint)}" for endpoint in route.endpoints)])


def _fields(**fields: str) -> str:
    return " ".join(f"{name}:{_quoted(value)}" for name, value in fields.items() if value)


def _quoted(text: str) -> str:
    plain = text.replace("\\", "\\\\").replace('"', '\\"').encode()
    return '"' + "".join(chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}" for byte in plain) + '"'


def location(gateway: str, journal: str) -> str:
    """
    >>> location("http://here:80/", "a/50%=b")
    'http://here:80/a/50%25=b'
    """
    return f"{gateway.rstrip('/')}/{quote(journal, safe='/=+;')}"


def fragment_headers(message: pb.ReadResponse) -> Headers:
    """What a read's first message says of the journal and of the fragment that serves it."""
    headers = {"X-Write-Head": str(message.write_head)}
    if message.HasField("fragment"):
        fragment = Fragment.from_proto(message.fragment)
        headers["X-Fragment-Name"] = fragment.content_name
        if fragment.mod_time:
            headers["X-Fragment-Last-Modified"] = formatdate(fragment.mod_time, usegmt=True)
    if message.fragment_url:
        headers["X-Fragment-Location"] = message.fragment_url
    return headers


def commit_headers(commit: pb.Fragment) -> Headers:
    fragment = Fragment.from_proto(commit)
    return {
        "X-Commit-Begin": str(fragment.begin),
        "X-Commit-End": str(fragment.end),
        "X-Commit-SHA1-Sum": fragment.sum.hex(),
        "X-Write-Head": str(fragment.end),
    }


def content_range(offset: int, end: int | None, write_head: int) -> str:
    """Without an end it is Gazette's, which names the greatest offset there is.

    >>> content_range(3, None, 106), content_range(3, 6, 106), content_range(3, 200, 106)
    ('bytes 3-9223372036854775807/9223372036854775807', 'bytes 3-5/106', 'bytes 3-199/*')
    """
    if end is None:
        return f"bytes {offset}-{OFFSET_MAX}/{OFFSET_MAX}"
    return f"bytes {offset}-{end - 1}/{write_head if end <= write_head else '*'}"


def safe_content_type(label: str) -> str:
    """The type that a journal's label names, unless a browser might run it.

    >>> safe_content_type("application/x-ndjson"), safe_content_type("text/html")
    ('application/x-ndjson', 'application/octet-stream')
    """
    return label if _IS_HARMLESS(label) else _PLAIN
