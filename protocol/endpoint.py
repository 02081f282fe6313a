"""The URL under which a process is reached, and the address that gRPC dials for it."""

from __future__ import annotations

from protocol.errors import ValidationError
from protocol.memo import remembered
from protocol.url import Url, parse_url

_DEFAULT_PORTS = {"http": "80", "https": "443"}


def check_endpoint(endpoint: str) -> None:
    """Raise unless this is an absolute URL that names a host. No error shows it: it may hold a password."""
    _parsed(endpoint)


def endpoint_of(address: str) -> str:
    """An address as an endpoint: without a scheme it is plain ``http``.

    >>> endpoint_of("broker.example:8080"), endpoint_of("https://broker.example")
    ('http://broker.example:8080', 'https://broker.example')
    """
    return address if "://" in address else f"http://{address}"


def dial_address(endpoint: str) -> str:
    """The address of a valid endpoint.

    A socket's URL carries the name of its machine, which gRPC does not want:

    >>> dial_address("unix://host-1/run/broker.sock")
    'unix:///run/broker.sock'
    >>> dial_address("https://broker.example")
    'broker.example:443'
    """
    url = _parsed(endpoint)
    if url.scheme == "unix":
        return "unix://" + url.path
    default = _DEFAULT_PORTS.get(url.scheme)
    return f"{url.host}:{default}" if default and not url.port else url.host


@remembered
def _parsed(endpoint: str) -> Url:
    url = parse_url(endpoint)
    if not url.scheme:
        raise ValidationError("expected an absolute URL, such as http://host:8080")
    if not url.host:
        raise ValidationError("expected a URL with a host, such as http://host:8080")
    return url
