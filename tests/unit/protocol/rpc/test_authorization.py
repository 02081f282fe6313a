from __future__ import annotations

import logging

import pytest

from protocol.auth import Capability, Claims, Keys
from protocol.errors import PermissionDeniedError, UnauthenticatedError
from protocol.rpc.authorization import REFUSAL, Authorizer, TokenSigner
from protocol.selector import LabelSelector

NOW_S = 1_760_000_000.0
KEYS = Keys.parse("c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA==")
AUTHORIZER = Authorizer(KEYS, lambda: NOW_S)
SIGNER = TokenSigner(KEYS, lambda: NOW_S)


def test_what_we_sign_for_a_journal_is_good_for_that_journal_and_an_hour() -> None:
    metadata = SIGNER.for_journal(Capability.APPEND, "acme/one;meta=x")
    claims = AUTHORIZER.claims(metadata, Capability.APPEND)
    assert claims == Claims(
        Capability.APPEND, LabelSelector.parse("name=acme/one"), int(NOW_S) + 3600, issued_s=int(NOW_S)
    )
    assert AUTHORIZER.remaining_s(claims) == 3600
    with pytest.raises(PermissionDeniedError, match="READ"):
        AUTHORIZER.claims(metadata, Capability.READ)


class Clock:
    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def test_a_token_that_was_believed_once_is_not_so_for_ever() -> None:
    clock = Clock()
    authorizer = Authorizer(KEYS, clock)
    metadata = SIGNER.for_journal(Capability.APPEND, "acme/one")
    first = authorizer.claims(metadata, Capability.APPEND)
    assert authorizer.claims(metadata, Capability.APPEND) is first
    with pytest.raises(PermissionDeniedError):
        authorizer.claims(metadata, Capability.READ)
    clock.now_s += 3600
    # Within the leeway.
    assert authorizer.claims(metadata, Capability.APPEND) == first
    clock.now_s += 5
    with pytest.raises(UnauthenticatedError):
        authorizer.claims(metadata, Capability.APPEND)


def test_what_we_sign_is_used_again_for_a_minute() -> None:
    clock = Clock()
    signer = TokenSigner(KEYS, clock)
    first = signer.for_journal(Capability.APPEND, "acme/one")
    assert signer.for_journal(Capability.READ, "acme/one") != first
    assert signer.for_journal(Capability.APPEND, "acme/two") != first
    clock.now_s += 59
    assert signer.for_journal(Capability.APPEND, "acme/one") == first
    clock.now_s += 1
    assert signer.for_journal(Capability.APPEND, "acme/one") != first
    # After a clock was set back, those of before would be tokens of the future.
    clock.now_s -= 7200
    claims = Authorizer(KEYS, clock).claims(signer.for_journal(Capability.APPEND, "acme/one"), Capability.APPEND)
    assert claims.issued_s == int(clock.now_s)


def test_no_more_tokens_are_remembered_than_is_reasonable() -> None:
    authorizer = Authorizer(KEYS, lambda: NOW_S)
    for number in range(5000):
        metadata = SIGNER.for_journal(Capability.READ, f"acme/{number}")
        assert authorizer.claims(metadata, Capability.READ).selector == LabelSelector.parse(f"name=acme/{number}")


def test_without_keys_all_is_allowed_for_ever_and_nothing_is_signed() -> None:
    authorizer = Authorizer(None, lambda: NOW_S)
    claims = authorizer.claims((), Capability.APPEND)
    assert claims.capability == Capability.ALL
    assert authorizer.remaining_s(claims) is None
    unsigned = TokenSigner(None, lambda: NOW_S)
    assert unsigned.for_journal(Capability.READ, "acme/one") == ()
    assert unsigned.metadata(Capability.READ, LabelSelector()) == ()


def test_a_method_that_asks_for_no_token_gets_none() -> None:
    assert AUTHORIZER.remaining_s(AUTHORIZER.claims((), None)) is None


def test_while_tokens_are_rolled_out_those_without_one_have_what_they_need_for_an_hour() -> None:
    authorizer = Authorizer(Keys.parse("AA== c2VjcmV0"), lambda: NOW_S)
    claims = authorizer.claims((("other", "x"),), Capability.APPEND)
    assert claims.capability == Capability.APPEND
    assert authorizer.remaining_s(claims) == 3600


@pytest.mark.parametrize(
    "metadata",
    [(), (("authorization", b"Bearer x"),), (*SIGNER.for_journal(8, "acme/one"), ("authorization", "Bearer x"))],
    ids=["none", "bytes", "two"],
)
def test_of_what_is_wrong_with_a_token_only_our_log_knows(
    metadata: tuple[tuple[str, str | bytes], ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(UnauthenticatedError) as refused:
        AUTHORIZER.claims(metadata, 8)
    assert str(refused.value) == REFUSAL
    (record,) = caplog.records
    assert record.__dict__["reason"]
    assert "Bearer x" not in str(record.__dict__)
