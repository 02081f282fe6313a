"""BrokerAccess: which brokers a Spark job asks, and by which files or variables it shows who it is.

Spark prints options in plans, logs and its web pages, so none of them holds a secret: they say where each node finds
it. It is read each time that a client is made, so that a renewed one counts without a restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker.client.settings import ClientSettings
from protocol.auth import Keys
from protocol.errors import GazetteError, PermissionDeniedError, UnauthenticatedError, ValidationError
from protocol.rpc.tls import PeerCredentials, PeerTls

SECRET_BYTES_MAX = 64 << 10

_SECRETS = ("authKeysFile", "authKeysEnv", "tokenFile", "tokenEnv")
_TLS = ("trustedCaFile", "certFile", "certKeyFile")
SECURITY_OPTIONS = (*_SECRETS, *_TLS)
"""As users write them, of reads and writes alike."""

# What people try first, in lower case, and where it belongs.
_REFUSED = {
    "token": "tokenFile or tokenEnv",
    "authtoken": "tokenFile or tokenEnv",
    "authkeys": "authKeysFile or authKeysEnv",
}
_IS_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch
_IS_WORD = re.compile(r"[!-~]+").fullmatch
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
        secrets = [name for name in _SECRETS if texts[name]]
        if len(secrets) > 1:
            raise ValidationError(
                f"expected keys to sign tokens with, or a token, from one place: leave {secrets[0]} or this out",
                secrets[1],
            )
        _check_tls(texts, addresses)
        secret = secrets[0] if secrets else ""
        return cls(addresses, secret, texts[secret] if secret else "", *(texts[name] for name in _TLS))

    def settings(self, environ: Mapping[str, str], file_root: str = "") -> ClientSettings:
        """For a client that is made now, with what files and variables of this machine hold now."""
        secret = self._secret(environ)
        is_keys = self.secret.startswith("authKeys")
        return ClientSettings.of(
            *self.addresses,
            keys=_keys(self.secret, secret) if is_keys else None,
            token=_token(self.secret, secret) if self.secret and not is_keys else None,
            tls=self._tls(),
            file_root=file_root or None,
        )

    @contextmanager
    def advised(self) -> Iterator[None]:
        """Around what brokers are asked: whoever is turned away learns which option is to blame."""
        try:
            yield
        except (UnauthenticatedError, PermissionDeniedError) as error:
            raise self._told(error) from error
        except ExceptionGroup as group:
            # Of several calls that failed together, one is enough to tell.
            turned_away = _first(group)
            if turned_away is None:
                raise
            raise self._told(turned_away) from group

    def _told(self, error: GazetteError) -> GazetteError:
        if isinstance(error, PermissionDeniedError):
            return PermissionDeniedError(
                f"{error}. {self.secret or 'The brokers'}: this is not granted: ask for a token that allows it"
            )
        if not self.secret:
            advice = f"The brokers want a token: give one of the options {', '.join(_SECRETS)}"
        elif self.secret.startswith("authKeys"):
            advice = f"{self.secret}: the first key there has to be one of the brokers' own"
        else:
            advice = (
                f"{self.secret}: the token there has run out or is none of these brokers': put a new one in its place"
            )
        return UnauthenticatedError(f"{error}. {advice}")

    def _secret(self, environ: Mapping[str, str]) -> str:
        if not self.secret:
            return ""
        if self.secret.endswith("Env"):
            text = environ.get(self.place, "")
            if not text.strip():
                raise ValidationError(
                    f"the environment variable {self.place} is not set, or empty, in this process: set it on the "
                    "driver and on every executor before Spark is started",
                    self.secret,
                )
            return text
        return _text(self.secret, self.place, _beginning(self.secret, self.place))

    def _tls(self) -> PeerTls | None:
        places = {"certFile": self.cert_file, "certKeyFile": self.cert_key_file, "trustedCaFile": self.trusted_ca_file}
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


def _addresses(text: str) -> tuple[str, ...]:
    addresses = [address.strip() for address in text.split(",") if address.strip()]
    if not addresses:
        raise ValidationError("expected the address of a broker, such as localhost:8080", "broker")
    try:
        return ClientSettings.of(*addresses).addresses
    except ValidationError as error:
        raise error.within("broker") from None


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
