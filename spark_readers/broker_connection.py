"""A client's settings from a BrokerAccess, with the secrets that this machine has, and advice when brokers refuse.

Files and variables are read each time that a client is made, so that a renewed one counts without a restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from broker.client.settings import ClientSettings
from protocol.auth import Keys
from protocol.errors import GazetteError, PermissionDeniedError, UnauthenticatedError, ValidationError
from protocol.rpc.tls import PeerCredentials, PeerTls
from spark_readers.broker_access import SECRET_OPTIONS, BrokerAccess

SECRET_BYTES_MAX = 64 << 10

_IS_WORD = re.compile(r"[!-~]+").fullmatch


def client_settings(access: BrokerAccess, environ: Mapping[str, str], file_root: str = "") -> ClientSettings:
    """For a client that is made now, with what files and variables of this machine hold now."""
    secret = _secret(access, environ)
    is_keys = access.secret.startswith("authKeys")
    return ClientSettings.of(
        *access.addresses,
        keys=_keys(access.secret, secret) if is_keys else None,
        token=_token(access.secret, secret) if access.secret and not is_keys else None,
        tls=_tls(access),
        file_root=file_root or None,
    )


@contextmanager
def advised(access: BrokerAccess) -> Iterator[None]:
    """Around what brokers are asked: whoever is turned away learns which option is to blame."""
    try:
        yield
    except (UnauthenticatedError, PermissionDeniedError) as error:
        raise _told(access, error) from error
    except ExceptionGroup as group:
        # Of several calls that failed together, one is enough to tell.
        turned_away = _first(group)
        if turned_away is None:
            raise
        raise _told(access, turned_away) from group


def _told(access: BrokerAccess, error: GazetteError) -> GazetteError:
    if isinstance(error, PermissionDeniedError):
        return PermissionDeniedError(
            f"{error}. {access.secret or 'The brokers'}: this is not granted: ask for a token that allows it"
        )
    if not access.secret:
        advice = f"The brokers want a token: give one of the options {', '.join(SECRET_OPTIONS)}"
    elif access.secret.startswith("authKeys"):
        advice = f"{access.secret}: the first key there has to be one of the brokers' own"
    else:
        advice = (
            f"{access.secret}: the token there has run out or is none of these brokers': put a new one in its place"
        )
    return UnauthenticatedError(f"{error}. {advice}")


def _secret(access: BrokerAccess, environ: Mapping[str, str]) -> str:
    if not access.secret:
        return ""
    if access.secret.endswith("Env"):
        text = environ.get(access.place, "")
        if not text.strip():
            raise ValidationError(
                f"the environment variable {access.place} is not set, or empty, in this process: set it on the "
                "driver and on every executor before Spark is started",
                access.secret,
            )
        return text
    return _text(access.secret, access.place, _beginning(access.secret, access.place))


def _tls(access: BrokerAccess) -> PeerTls | None:
    places = {
        "certFile": access.cert_file,
        "certKeyFile": access.cert_key_file,
        "trustedCaFile": access.trusted_ca_file,
    }
    given = {name: place for name, place in places.items() if place}
    if not given:
        return None
    for name, place in given.items():
        _beginning(name, place)
    tls = PeerTls(*(Path(place) if place else None for place in places.values()))
    try:
        PeerCredentials(tls)
    except ValidationError as error:
        raise ValidationError(f"{error.rule}: replace what does not fit", ", ".join(given)) from error
    return tls


def _first(group: ExceptionGroup[Exception]) -> GazetteError | None:
    for error in group.exceptions:
        found = _first(error) if isinstance(error, ExceptionGroup) else error
        if isinstance(found, UnauthenticatedError | PermissionDeniedError):
            return found
    return None


def _beginning(name: str, place: str) -> bytes:
    try:
        with open(place, "rb") as file:
            return file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise ValidationError(
            f"{place} cannot be read on this machine ({error.strerror}): it has to be there on the driver and on every "
            "executor, for the user that Spark runs as",
            name,
        ) from error


def _text(name: str, place: str, content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.strip():
        raise ValidationError(f"{place} is empty, or no text: it has to hold the secret", name)
    return text


def _keys(name: str, text: str) -> Keys:
    _check_size(name, text)
    try:
        return Keys.parse(text)
    except ValidationError as error:
        raise ValidationError(error.rule, name) from None


def _token(name: str, text: str) -> str:
    _check_size(name, text)
    token = text.strip()
    if not _IS_WORD(token):
        raise ValidationError("expected a token and nothing else, such as eyJhbGciOi..., without `Bearer`", name)
    return token


def _check_size(name: str, text: str) -> None:
    if len(text) > SECRET_BYTES_MAX:
        raise ValidationError(f"expected at most {SECRET_BYTES_MAX} bytes of keys or a token: is it the file?", name)
