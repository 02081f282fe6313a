"""BrokerAccess: which brokers a Spark job asks, and by which files or variables it shows who it is.

Spark prints options in plans, logs and its web pages, so none of them holds a secret: they say where each node finds
it. ``spark_readers.broker_connection`` reads it there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.endpoint import check_endpoint, endpoint_of
from protocol.errors import ValidationError, checked

SECRET_OPTIONS = ("authKeysFile", "authKeysEnv", "tokenFile", "tokenEnv")
_TLS = ("trustedCaFile", "certFile", "certKeyFile")
SECURITY_OPTIONS = (*SECRET_OPTIONS, *_TLS)
"""As users write them, of reads and writes alike."""

# What people try first, in lower case, and where it belongs.
_REFUSED = {
    "token": "tokenFile or tokenEnv",
    "authtoken": "tokenFile or tokenEnv",
    "authkeys": "authKeysFile or authKeysEnv",
}
_IS_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch
# A token, or a key in base64, where the name of a file is expected.
_IS_SECRET = re.compile(r"eyJ[\w-]*\.[\w-]+\.[\w-]+|[A-Za-z0-9+/]{16,}={1,2}").fullmatch


def refuse_secret(name: str) -> None:
    """Raises a ValidationError if the option, in whatever case, would hold a secret. Its value is not looked at."""
    instead = _REFUSED.get(name.lower())
    if instead is not None:
        raise ValidationError(
            "Spark shows options in plans and logs, so a secret must not be one: put it into a file or an environment "
            f"variable on every node, and name that by {instead}",
            name,
        )


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """
    >>> BrokerAccess.of({"broker": "https://a:1, https://b:2", "tokenFile": "/run/secrets/token"}).secret
    'tokenFile'
    """

    addresses: tuple[str, ...]
    # Which of the options says where keys or a token are, and what it says; both empty if brokers ask for none.
    secret: str = ""
    place: str = ""
    trusted_ca_file: str = ""
    cert_file: str = ""
    cert_key_file: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> BrokerAccess:
        """Of options by their names as users are told to write them. Nothing is read yet."""
        texts = {name: given.get(name, "").strip() for name in ("broker", *SECURITY_OPTIONS)}
        addresses = _addresses(texts["broker"])
        for name in SECURITY_OPTIONS:
            _check_place(name, texts[name])
        secrets = [name for name in SECRET_OPTIONS if texts[name]]
        if len(secrets) > 1:
            raise ValidationError(
                f"expected keys to sign tokens with, or a token, from one place: leave {secrets[0]} or this out",
                secrets[1],
            )
        _check_tls(texts, addresses)
        secret = secrets[0] if secrets else ""
        return cls(addresses, secret, texts[secret] if secret else "", *(texts[name] for name in _TLS))


def _addresses(text: str) -> tuple[str, ...]:
    addresses = [address.strip() for address in text.split(",") if address.strip()]
    if not addresses:
        raise ValidationError("expected the address of a broker, such as localhost:8080", "broker")
    endpoints = tuple(map(endpoint_of, addresses))
    for endpoint in endpoints:
        checked("broker", check_endpoint, endpoint)
    return endpoints


def _check_place(name: str, place: str) -> None:
    """Never tells the place: it may be a secret that somebody has taken the option for."""
    if not place:
        return
    if name.endswith("Env"):
        if not _IS_VARIABLE(place):
            raise ValidationError("expected the name of an environment variable, not what it holds", name)
    elif _IS_SECRET(place):
        raise ValidationError("expected the path of a file, not what it holds: Spark shows options in its logs", name)


def _check_tls(texts: Mapping[str, str], addresses: tuple[str, ...]) -> None:
    given = [name for name in _TLS if texts[name]]
    if bool(texts["certFile"]) != bool(texts["certKeyFile"]):
        lacking, other = ("certKeyFile", "certFile") if texts["certFile"] else ("certFile", "certKeyFile")
        raise ValidationError(f"a certificate and its key go together: give it, or leave {other} out", lacking)
    if given and not all(address.startswith("https://") for address in addresses):
        raise ValidationError(
            "brokers that speak TLS have addresses that begin with https://: write them so in broker, or leave this "
            "out",
            given[0],
        )
