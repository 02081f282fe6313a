from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.client.settings import ClientSettings
from protocol.auth import Keys
from protocol.errors import PermissionDeniedError, UnauthenticatedError, ValidationError
from protocol.rpc.tls import PeerTls
from spark_readers.broker_access import BrokerAccess
from spark_readers.broker_connection import SECRET_BYTES_MAX, advised, client_settings
from spark_readers.fragment_access import fragment_access
from spark_readers.read_options import ReadOptions
from spark_readers.sink_options import SinkOptions
from tests.support.certificates import Certificates

SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA=="
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJjYXAiOjJ9.c2lnbmF0dXJl"
PLAIN = {"broker": "a:1, b:2"}
SECURE = {"broker": "https://a:1"}
TLS = {"trustedCaFile": "ca.pem", "certFile": "certificate.pem", "certKeyFile": "key.pem"}


def read_of(given: dict[str, str]) -> BrokerAccess | None:
    return ReadOptions.parse({"journal": "acme/orders", **given}).broker


def write_of(given: dict[str, str]) -> BrokerAccess | None:
    return SinkOptions.of({"journal": "acme/orders", **given}, {"n": "long"}).broker


AccessOf = Callable[[dict[str, str]], BrokerAccess | None]
both = pytest.mark.parametrize("access_of", [read_of, write_of])


@both
def test_reads_and_writes_take_the_same_options_in_any_case(access_of: AccessOf) -> None:
    given = {**SECURE, **TLS, "TOKENFILE": " /run/token "}
    expected = BrokerAccess(("https://a:1",), "tokenFile", "/run/token", "ca.pem", "certificate.pem", "key.pem")
    assert access_of(given) == expected
    assert access_of(PLAIN) == BrokerAccess(("http://a:1", "http://b:2"))


@both
@pytest.mark.parametrize(
    ("given", "field", "rule"),
    [
        ({**PLAIN, "token": TOKEN}, "token", "name that by tokenFile or tokenEnv"),
        ({**PLAIN, "AuthToken": TOKEN}, "AuthToken", "name that by tokenFile or tokenEnv"),
        ({**PLAIN, "authKeys": SECRET}, "authKeys", "name that by authKeysFile or authKeysEnv"),
        ({**PLAIN, "tokenFile": TOKEN}, "tokenFile", "the path of a file"),
        ({**PLAIN, "authKeysFile": SECRET}, "authKeysFile", "the path of a file"),
        ({**PLAIN, "tokenEnv": TOKEN}, "tokenEnv", "the name of an environment variable"),
        ({**PLAIN, "authKeysEnv": SECRET}, "authKeysEnv", "the name of an environment variable"),
        ({**PLAIN, "tokenFile": "/t", "authKeysEnv": "KEYS"}, "tokenFile", "leave authKeysEnv or this out"),
        ({**PLAIN, "tokenFile": "/t", "tokenEnv": "TOKEN"}, "tokenEnv", "leave tokenFile or this out"),
        ({**SECURE, "certFile": "/c"}, "certKeyFile", "leave certFile out"),
        ({**SECURE, "certKeyFile": "/k"}, "certFile", "leave certKeyFile out"),
        ({**PLAIN, "trustedCaFile": "/ca"}, "trustedCaFile", "begin with https://"),
        ({"broker": "https://a:1,b:2", "trustedCaFile": "/ca"}, "trustedCaFile", "begin with https://"),
        ({"broker": "b:2,http://"}, "broker", "expected a URL with a host"),
    ],
)
def test_a_mistake_is_named_with_its_rule_and_no_secret(
    access_of: AccessOf, given: dict[str, str], field: str, rule: str
) -> None:
    with pytest.raises(ValidationError) as raised:
        access_of(given)
    assert raised.value.path[0] == field
    assert rule in raised.value.rule
    assert SECRET not in str(raised.value)
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize("name", ["authKeysFile", "tokenEnv", "trustedCaFile"])
def test_a_path_has_nobody_to_show_a_token_to(name: str) -> None:
    with pytest.raises(ValidationError, match=f"^{name}: only brokers ask"):
        ReadOptions.parse({"path": "s3://bucket/prefix/", name: "X"})


@pytest.mark.parametrize("name", ["authKeysFile", "authKeysEnv", "tokenFile", "tokenEnv"])
def test_secrets_are_read_where_and_when_they_are_used(name: str, tmp_path: Path) -> None:
    file, environ = tmp_path / "secret", {"BROKER_SECRET": ""}
    access = BrokerAccess.of({**PLAIN, name: "BROKER_SECRET" if name.endswith("Env") else str(file)})

    def told(text: str) -> ClientSettings:
        environ["BROKER_SECRET"] = text
        file.write_text(text)
        # On its way to an executor.
        travelled = pickle.dumps(access)
        assert text.encode() not in travelled
        arrived: BrokerAccess = pickle.loads(travelled)
        return client_settings(arrived, environ)

    if name.startswith("auth"):
        assert told(f"{SECRET}\n").keys == Keys.parse(SECRET)
        assert told("b3RoZXI=,AA==").keys == Keys.parse("b3RoZXI=,AA==")
    else:
        assert told(f"{TOKEN}\n").token == TOKEN
        assert told("x.y.z").token == "x.y.z"
    assert SECRET not in repr(access)


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("authKeysFile", None, "on the driver and on every executor"),
        ("authKeysFile", " \n", "is empty"),
        ("authKeysFile", "no base64!", "key 1 is not base64"),
        ("authKeysFile", "A" * (SECRET_BYTES_MAX + 4), "at most 65536 bytes"),
        ("authKeysEnv", None, "BROKER_SECRET is not set"),
        ("authKeysEnv", "", "BROKER_SECRET is not set"),
        ("tokenFile", None, "on the driver and on every executor"),
        ("tokenFile", f"Bearer {TOKEN}", "without `Bearer`"),
        ("tokenEnv", f"{TOKEN}\n{TOKEN}", "nothing else"),
    ],
)
def test_a_secret_that_cannot_be_used_is_told_by_its_option(
    name: str, text: str | None, rule: str, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    if text is not None:
        file.write_text(text)
    access = BrokerAccess.of({**PLAIN, name: "BROKER_SECRET" if name.endswith("Env") else str(file)})
    with pytest.raises(ValidationError) as raised:
        client_settings(access, {} if text is None else {"BROKER_SECRET": text})
    assert raised.value.path == (name,)
    assert rule in raised.value.rule
    assert TOKEN not in str(raised.value)


def test_certificates_are_those_of_a_peer(tmp_path: Path) -> None:
    Certificates.create(tmp_path)
    paths = {name: str(tmp_path / file) for name, file in TLS.items()}
    certificate, key, ca = (tmp_path / f"{name}.pem" for name in ("certificate", "key", "ca"))
    assert client_settings(BrokerAccess.of({**SECURE, **paths}), {}).tls == PeerTls(certificate, key, ca)
    alone = BrokerAccess.of({**SECURE, "trustedCaFile": str(ca)})
    assert client_settings(alone, {}).tls == PeerTls(None, None, ca)
    assert client_settings(BrokerAccess.of(SECURE), {}).tls is None

    swapped = BrokerAccess.of({**SECURE, "certFile": str(key), "certKeyFile": str(certificate)})
    with pytest.raises(ValidationError, match=r"^certFile, certKeyFile: .*key.pem"):
        client_settings(swapped, {})
    ca.unlink()
    with pytest.raises(ValidationError, match=r"^trustedCaFile: .*ca.pem cannot be read on this machine"):
        client_settings(alone, {})


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({}, "give one of the options authKeysFile, authKeysEnv, tokenFile, tokenEnv"),
        ({"tokenEnv": "TOKEN"}, "tokenEnv: the token there has run out"),
        ({"authKeysFile": "/keys"}, "authKeysFile: the first key there"),
    ],
)
def test_whoever_is_turned_away_learns_which_option_is_to_blame(given: dict[str, str], advice: str) -> None:
    access = BrokerAccess.of({**PLAIN, **given})
    with pytest.raises(UnauthenticatedError, match=f"^no.*{advice}"), advised(access):
        raise UnauthenticatedError("no")
    with pytest.raises(UnauthenticatedError, match=f"^no.*{advice}"), advised(access):
        raise ExceptionGroup("", [ValueError(), ExceptionGroup("", [UnauthenticatedError("no")])])
    with pytest.raises(PermissionDeniedError, match=r"^no READ.*ask for a token that allows it"), advised(access):
        raise PermissionDeniedError("no READ")
    with pytest.raises(ExceptionGroup, match="other things"), advised(access):
        raise ExceptionGroup("other things", [ValueError()])


def test_connections_are_kept_for_those_who_show_the_same(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a.b.c")
    given = {**PLAIN, "journal": "acme/orders"}
    with_token = {**given, "tokenFile": str(file)}
    kept = fragment_access(ReadOptions.parse(with_token))
    assert fragment_access(ReadOptions.parse({**with_token, "framing": "json"})) is kept
    assert fragment_access(ReadOptions.parse(given)) is not kept
    file.write_text("d.e.f")
    renewed = fragment_access(ReadOptions.parse(with_token))
    assert renewed is not kept
    assert fragment_access(ReadOptions.parse(with_token)) is renewed
