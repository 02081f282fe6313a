from __future__ import annotations

import pytest

from protocol.auth import Claims, Keys
from protocol.rpc.redaction import IS_SECRET_NAME, redacted
from protocol.selector import LabelSelector

TOKEN = Keys.parse("c2VjcmV0").sign(Claims(8, LabelSelector(), 2_000_000_000))


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"authorization: Bearer {TOKEN}", TOKEN),
        (f"a token of {TOKEN} was refused", TOKEN),
        (f"half of one: {TOKEN.rpartition('.')[0]}", TOKEN.split(".")[1]),
        ("('authorization', 'Bearer 0123')", "0123"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("GET https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIA%2F1&X-Amz-Signature=0a1b&x=1", "0a1b"),
        ("GET https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIA%2F1&X-Amz-Signature=0a1b&x=1", "AKIA"),
        ("https://b/k?X-Amz-Security-Token=FwoG", "FwoG"),
        ("https://storage.googleapis.com/b/k?GoogleAccessId=x&Expires=1&Signature=abc%3D", "abc"),
        ("https://storage.googleapis.com/b/k?X-Goog-Signature=0a1b", "0a1b"),
        ("https://a.blob.core.windows.net/c/b?sv=2024&sig=q%2Fw%3D&se=2026", "q%2Fw"),
        ("https://user:hunter2@etcd.example:2379/v3", "hunter2"),
        ("s3://bucket/prefix/?profile=p&secret=hunter2", "hunter2"),
        ("aws_secret_access_key = hunter2", "hunter2"),
        ('{"password": "hunter2 and more", "user": "x"}', "hunter2"),
        ("{'AccountKey': 'hunter2=='}", "hunter2"),
        ("--broker.auth-keys=aHVudGVyMg==", "aHVudGVyMg"),
        ("BROKER_AUTH_KEYS=aHVudGVyMg==", "aHVudGVyMg"),
        ('a text in a text: {\\"token\\": \\"hunter2\\"}', "hunter2"),
        ("-----BEGIN EC PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY-----", "hunter2"),
        ("-----BEGIN PRIVATE KEY-----\\nhunter2\\n", "hunter2"),
    ],
)
def test_a_secret_does_not_show(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redacted(text)
    assert "[redacted]" in redacted(text)
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "no token: send one in the header",
        "journal=acme/token-stream/part=1 offset=12",
        "key=/gazette/cluster/items/acme/one",
        "https://bucket.example/acme/0-10-abc.gz?partNumber=3",
        "sha1=da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "signature of a function",
        "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_what_stands_beside_a_secret_stays() -> None:
    assert redacted("GET https://b/k?a=1&X-Amz-Signature=0a1b&b=2 -> 403") == (
        "GET https://b/k?a=1&X-Amz-Signature=[redacted]&b=2 -> 403"
    )


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        *[(name, True) for name in ("authorization", "aws_secret", "auth_keys", "signed_token", "sig")],
        *[(name, False) for name in ("journal", "key", "design", "tokens_seen", "offset")],
    ],
)
def test_the_names_of_secrets_are_known(name: str, is_secret: bool) -> None:
    assert bool(IS_SECRET_NAME(name)) is is_secret


def test_a_long_text_takes_no_longer_than_its_length_deserves() -> None:
    """With a pattern that goes back and forth, this would not end."""
    assert redacted("a" * 200_000 + "token" * 10_000)
    assert redacted("://" * 50_000)
    assert redacted("eyJ" * 50_000)
    assert redacted("-----BEGIN PRIVATE KEY-----" * 5_000)
