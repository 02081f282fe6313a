"""URLs, accepted and refused as Go's ``net/url`` does.

``urllib.parse`` is more lenient: it lets broken escapes, control characters and ports that are no numbers
pass. A URL that we take and a Go member refuses would make an endpoint or a journal visible to one and not
to the other.

Where Go releases differ we side with the stricter one on ``[...]`` hosts, which must hold an IPv6 address,
and with the older one on ``host:80:90``, which Gazette accepts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address
from urllib.parse import unquote, unquote_plus

from protocol.errors import ValidationError

_CONTROL = re.compile(r"[\x00-\x1f\x7f]").search
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+\-.]*):").match
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})").search
_PORT = re.compile(r"(?::[0-9]*)?").fullmatch
_USERINFO = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*").fullmatch

# ASCII that may stand in a host as it is. Escapes there are for other bytes only, and for % itself.
_HOST_ASCII = "!\"$&'()*+,-.:;<=>[]_~" + "0123456789" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "abcdefghijklmnopqrstuvwxyz"
_HOST_PLAIN = rf"[{re.escape(_HOST_ASCII)}\u0080-\U0010ffff]"
# Possessive, so that a long text takes no memory for going back.
_HOST = re.compile(rf"(?:{_HOST_PLAIN}++|%25|%[89A-Fa-f][0-9A-Fa-f])*+").fullmatch
_ZONE_PLAIN = _HOST_PLAIN.replace(re.escape("["), "").replace(re.escape("]"), "")
# In the zone of an IPv6 address escapes are for % and space, and for what needs none.
_ZONE_ESCAPES = "|".join(f"%{ord(symbol):02X}" for symbol in "% " + _HOST_ASCII)
_ZONE = re.compile(rf"(?:{_ZONE_PLAIN}++|(?i:{_ZONE_ESCAPES}))*+").fullmatch


@dataclass(frozen=True, slots=True)
class Url:
    """A URL in parts. Host and path are percent-decoded; bytes that are no UTF-8 are lone surrogates there.

    >>> parse_url("HTTPS://me@host:8080/a%20b?q=1").host
    'host:8080'
    """

    scheme: str = ""
    """In lower case, or empty if the URL is relative."""
    host: str = ""
    """With its port and without user or password."""
    path: str = ""
    """Empty too if the URL is opaque, such as ``mailto:me``."""
    query: str = ""
    """As written."""

    @property
    def port(self) -> str:
        _, colon, port = self.host.rpartition(":")
        return port if _PORT(colon + port) else ""


def parse_url(text: str) -> Url:
    text, _, fragment = text.partition("#")
    _check_escapes(fragment)
    if _CONTROL(text):
        raise ValidationError("expected a URL without control characters")

    found = _SCHEME(text)
    scheme = found[1].lower() if found else ""
    rest, _, query = (text[found.end() :] if found else text).partition("?")
    if not rest.startswith("/"):
        if scheme:
            return Url(scheme, query=query)
        if ":" in rest.partition("/")[0]:
            raise ValidationError("expected a URL with a scheme before its first colon")

    host = ""
    if rest.startswith("//") and (scheme or not rest.startswith("///")):
        authority, slash, rest = rest[2:].partition("/")
        host = _host_of(authority)
        rest = slash + rest
    return Url(scheme, host, _decoded(rest), query)


def parse_query(query: str) -> list[tuple[str, str]]:
    """The arguments of a query in their order, decoded; a name without ``=`` has an empty value."""
    pairs = []
    for piece in query.split("&"):
        if not piece:
            continue
        if ";" in piece:
            raise ValidationError("expected query arguments that are separated by & and hold no semicolon")
        _check_escapes(piece)
        name, _, value = piece.partition("=")
        pairs.append((_plus_decoded(name), _plus_decoded(value)))
    return pairs


def _host_of(authority: str) -> str:
    user, at, host = authority.rpartition("@")
    if at:
        if not _USERINFO(user):
            raise ValidationError("expected a URL whose user and password hold no characters that need escapes")
        _check_escapes(user)
    if "[" in host:
        return _ipv6_host(host)
    _check_port(host[host.rfind(":") :] if ":" in host else "")
    return _decoded_host(host)


def _ipv6_host(host: str) -> str:
    """A host such as ``[fe80::1%25en0]:80``, whose address may name its network interface."""
    literal, _, port = host.rpartition("]")
    if not literal.startswith("["):
        raise ValidationError("expected a URL whose host, if it has a bracket, is [an IPv6 address]")
    _check_port(port)
    address, percent, zone = literal[1:].partition("%25")
    if percent and not (zone and _ZONE(zone)):
        raise ValidationError("expected a URL whose host has a zone without characters that need escapes")
    try:
        IPv6Address(_decoded_host(address))
    except AddressValueError:
        raise ValidationError("expected a URL whose host in brackets is an IPv6 address") from None
    return f"[{address}{'%' if percent else ''}{_decoded(zone)}]{port}"


def _check_port(port: str) -> None:
    if not _PORT(port):
        raise ValidationError("expected a URL whose port is a number")


def _decoded_host(host: str) -> str:
    if not _HOST(host):
        raise ValidationError("expected a URL whose host has no spaces, separators or escaped ASCII")
    return _decoded(host)


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    _check_escapes(text)
    return unquote(text, errors="surrogateescape")


def _plus_decoded(text: str) -> str:
    return unquote_plus(text, errors="surrogateescape")


def _check_escapes(text: str) -> None:
    if _BROKEN_ESCAPE(text):
        raise ValidationError("expected a URL whose every % begins an escape of two hexadecimal digits (write %25)")
