from __future__ import annotations

import json

import pytest

from protocol.auth import Capability, Claims, Keys
from protocol.errors import GazetteError, PermissionDeniedError, UnauthenticatedError, ValidationError
from protocol.label import Label, LabelSet
from protocol.selector import LabelSelector
from tests.support.golden import Case, case_id, cases

NOW_S = 1_760_000_000.0


def selector_of(case: Case) -> LabelSelector:
    include, exclude = (
        LabelSet(tuple(Label(label["name"], label.get("value", ""), label.get("prefix", False)) for label in side))
        for side in (case["include"], case["exclude"])
    )
    return LabelSelector(include, exclude)


@pytest.mark.parametrize("case", cases("auth", "keys"), ids=case_id)
def test_keys_are_read_as_gazette_reads_them(case: Case) -> None:
    if not case["ok"]:
        with pytest.raises(ValidationError, match="auth-keys"):
            Keys.parse(case["keys"])
        return
    keys = Keys.parse(case["keys"])
    assert [key.hex() for key in keys.keys] == case["decoded"]
    assert keys.allow_missing == case["missing_token_allowed"]
    if keys.allow_missing:
        assert keys.verify(None, 16, NOW_S).capability == case["missing_token_cap"]


@pytest.mark.parametrize("case", cases("auth", "sign"), ids=case_id)
def test_a_token_is_byte_for_byte_that_of_gazette(case: Case) -> None:
    claims = case["claims"]
    grant = Claims(claims["cap"], selector_of(claims["sel"]), claims["exp"], claims["iat"])
    keys = Keys.parse(case["key"])
    assert keys.sign(grant) == case["token"]
    assert keys.verify(f"Bearer {case['token']}", claims["cap"], NOW_S) == grant


@pytest.mark.parametrize("case", cases("auth", "verify"), ids=case_id)
def test_a_token_is_believed_when_gazette_believes_it(case: Case) -> None:
    keys = Keys.parse(case["keys"])
    if not case["ok"]:
        expected = PermissionDeniedError if case["why"] == "capability missing" else UnauthenticatedError
        with pytest.raises(expected):
            keys.verify(case.get("authorization"), case["required_cap"], NOW_S)
        return
    claims = keys.verify(case.get("authorization"), case["required_cap"], NOW_S)
    golden = case["claims"]
    in_an_hour = int(NOW_S) + 3600
    assert claims == Claims(golden["cap"], selector_of(golden["sel"]), golden.get("exp", in_an_hour), golden.get("iat"))


KEYS = Keys.parse("c2VjcmV0")
ANY = LabelSelector()


def test_the_vector_of_the_reference() -> None:
    grant = Claims(16, LabelSelector.parse("name=a/journal"), expires_s=1_700_003_600, issued_s=1_700_000_000)
    assert KEYS.sign(grant) == (
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9."
        "eyJjYXAiOjE2LCJzZWwiOnsiaW5jbHVkZSI6eyJsYWJlbHMiOlt7Im5hbWUiOiJuYW1lIiwidmFsdWUiOiJhL2pvdXJuYWwifV19LCJl"
        "eGNsdWRlIjp7ImxhYmVscyI6bnVsbH19LCJleHAiOjE3MDAwMDM2MDAsImlhdCI6MTcwMDAwMDAwMH0."
        "RwFnMApwMxlpc3kGOQkb5w7AVYA02B5kRTGKqtCZyTM"
    )


def test_expiry_leaves_five_seconds_for_clocks_that_differ() -> None:
    token = KEYS.sign(Claims(Capability.READ, ANY, expires_s=1_700_000_000))
    KEYS.verify(f"Bearer {token}", Capability.READ, 1_700_000_004.9)
    with pytest.raises(UnauthenticatedError, match="expired 5 s ago"):
        KEYS.verify(f"Bearer {token}", Capability.READ, 1_700_000_005)


def signed(payload: str) -> str:
    """A token with a payload of our choosing, well signed."""
    from protocol import auth  # the signer is private, and only a test needs to sign nonsense

    return "Bearer " + auth._JWS.encode(payload.encode(), KEYS.keys[0], "HS256")  # noqa: SLF001


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "[]",
        "null",
        "{",
        "[" * 5000,
        '{"cap":8}',
        '{"cap":8,"exp":null}',
        '{"cap":8,"exp":NaN}',
        '{"cap":8,"exp":1e999}',
        '{"cap":8,"exp":true}',
        '{"cap":8,"exp":"soon"}',
        '{"cap":8,"exp":" 2000000000 "}',
        '{"cap":8,"exp":"2_000_000_000"}',
        '{"cap":8,"exp":"+2000000000"}',
        '{"cap":true,"exp":2000000000}',
        '{"cap":4294967296,"exp":2000000000}',
        '{"cap":8,"exp":2000000000,"iat":1999999999}',
        '{"cap":8,"exp":2000000000,"sel":[]}',
        '{"cap":8,"exp":2000000000,"sel":{"include":{"labels":{"a":1}}}}',
        '{"cap":8,"exp":2000000000,"sel":{"include":{"labels":[{"name":5}]}}}',
        '{"cap":8,"exp":2000000000,"sel":{"include":{"labels":["x"]}}}',
    ],
)
def test_signed_nonsense_is_refused_cleanly(payload: str) -> None:
    with pytest.raises(UnauthenticatedError):
        KEYS.verify(signed(payload), Capability.READ, NOW_S)


def test_claims_are_found_whatever_their_case() -> None:
    """Were `Include` overlooked, the token would grant every journal instead of one."""
    payload = {"CAP": 8, "Exp": 2_000_000_000, "Sel": {"Include": {"Labels": [{"Name": "name", "VALUE": "a/b"}]}}}
    claims = KEYS.verify(signed(json.dumps(payload)), Capability.READ, NOW_S)
    assert claims.selector == LabelSelector.parse("name=a/b")


def test_labels_that_an_issuer_did_not_sort_still_match_as_alternatives() -> None:
    labels = [{"name": "name", "value": "b"}, {"name": "aa", "value": "1"}, {"name": "name", "value": "a"}]
    payload = {"cap": 8, "exp": 2_000_000_000, "sel": {"include": {"labels": labels}}}
    selector = KEYS.verify(signed(json.dumps(payload)), Capability.READ, NOW_S).selector
    assert selector.matches(LabelSet.of(("aa", "1"), ("name", "a")))
    assert selector.matches(LabelSet.of(("aa", "1"), ("name", "b")))
    assert not selector.matches(LabelSet.of(("name", "b")))


def test_weak_settings_are_named_but_keys_are_not() -> None:
    weaknesses = Keys.parse("c2VjcmV0, AA==").weaknesses()
    assert [word for text in weaknesses for word in ("6 bytes", "AA==") if word in text] == ["6 bytes", "AA=="]
    assert "c2VjcmV0" not in " ".join(weaknesses)
    assert Keys.parse("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=").weaknesses() == []


@pytest.mark.parametrize("text", ["Bearer " + "a" * 20_000, "Bearer a.b.c", "Bearer ☃", "\x00", "Bearer a.b"])
def test_hostile_headers_raise_only_our_own_error(text: str) -> None:
    with pytest.raises(GazetteError):
        KEYS.verify(text, Capability.READ, NOW_S)
