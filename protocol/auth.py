"""Who may do what: claims, the tokens that carry them, and the keys that sign and verify tokens.

A token is a JWT signed with a key that brokers and token issuers share. Its claims grant capabilities over
the resources that a label selector matches. Without keys everybody may do everything.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

from jwt.algorithms import HMACAlgorithm
from jwt.api_jws import PyJWS
from jwt.exceptions import InvalidAlgorithmError, InvalidSignatureError, InvalidTokenError

from protocol.errors import PermissionDeniedError, UnauthenticatedError, ValidationError
from protocol.label import Label, LabelSet
from protocol.selector import LabelSelector

LEEWAY_S = 5
"""How far the clocks of issuer and verifier may differ."""

DEFAULT_LIFE_S = 3600
"""Life of a token that a client signs for itself, and of the claims of a request without a token."""

_PASS_THROUGH_KEY = "AA=="
_KEY_BYTES_ADVISED = 32
_TOKEN_BYTES_MAX = 16 << 10
_KEY_SEPARATORS = re.compile(r"[\s,]+")
# PyJWT forgives padding; Gazette does not.
_IS_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+").fullmatch


# As JSON spells numbers: `float` would take spaces, underscores and the digits of other scripts.
_IS_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").fullmatch


class Capability(IntFlag):
    """Bits of the ``cap`` claim. Bit 0 is unused; applications may use those from 1 << 16."""

    LIST = 1 << 1
    APPLY = 1 << 2
    READ = 1 << 3
    APPEND = 1 << 4
    REPLICATE = 1 << 5
    ALL = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token grants, and until when."""

    capability: int
    selector: LabelSelector
    expires_s: int
    issued_s: int | None = None


class _AnyLengthHMAC(HMACAlgorithm):
    """HMAC that takes the short keys Gazette takes: ``Keys.weaknesses`` warns once, not every call."""

    def check_key_length(self, key: bytes) -> None:
        return None


def _signer() -> PyJWS:
    jws = PyJWS(algorithms=[])
    jws.register_algorithm("HS256", _AnyLengthHMAC(HMACAlgorithm.SHA256))
    jws.register_algorithm("HS384", _AnyLengthHMAC(HMACAlgorithm.SHA384))
    return jws


_JWS = _signer()


@dataclass(frozen=True, slots=True)
class Keys:
    """The first key signs, all of them verify.

    >>> keys = Keys.parse("c2VjcmV0")
    >>> grant = Claims(Capability.READ, LabelSelector.parse("name:prefix=acme/"), expires_s=2_000_000_000)
    >>> keys.verify(f"Bearer {keys.sign(grant)}", Capability.READ, now_s=1_900_000_000) == grant
    True
    """

    keys: tuple[bytes, ...]
    allow_missing: bool = False

    @classmethod
    def parse(cls, text: str) -> Keys:
        """Keys in base64, separated by white space or commas.

        The key ``AA==`` is not one: it lets requests without a token pass, next to at least one real key.
        """
        texts = [part for part in _KEY_SEPARATORS.split(text) if part]
        keys = tuple(_decoded(at, part) for at, part in enumerate(texts) if part != _PASS_THROUGH_KEY)
        if not keys:
            raise ValidationError(
                "at least one key is required, in base64; make one with: openssl rand -base64 32", "auth-keys"
            )
        return cls(keys, allow_missing=_PASS_THROUGH_KEY in texts)

    def weaknesses(self) -> list[str]:
        """What an operator should be told, loudly, when a process starts with these keys. Never a key itself."""
        found = [
            f"auth key {at} has {len(key)} bytes: a key shorter than {_KEY_BYTES_ADVISED} can be guessed from a "
            "token; make one with: openssl rand -base64 32"
            for at, key in enumerate(self.keys, start=1)
            if len(key) < _KEY_BYTES_ADVISED
        ]
        if self.allow_missing:
            found.append(
                f"the auth key {_PASS_THROUGH_KEY} is set: requests without a token are allowed to do everything; "
                "remove it once every client sends a token"
            )
        return found

    def sign(self, claims: Claims) -> str:
        return _JWS.encode(_payload(claims), self.keys[0], "HS256")

    def verify(self, authorization: str | None, required: int, now_s: float) -> Claims:
        """The claims of an ``authorization`` header, given that they grant all `required` capabilities."""
        if authorization is None:
            if self.allow_missing:
                return Claims(required, LabelSelector(), expires_s=int(now_s) + DEFAULT_LIFE_S)
            raise UnauthenticatedError("no token: send one in the header `authorization: Bearer <token>`")
        if not authorization.startswith("Bearer "):
            raise UnauthenticatedError("the authorization header is not of the form `Bearer <token>`")
        claims = self._believed(authorization.removeprefix("Bearer "), now_s)
        if missing := required & ~claims.capability:
            raise PermissionDeniedError(
                f"the token does not grant {_names(missing)} (it grants {_names(claims.capability)})"
            )
        return claims

    def _believed(self, token: str, now_s: float) -> Claims:
        if len(token) > _TOKEN_BYTES_MAX or not _IS_TOKEN(token):
            raise UnauthenticatedError("the token is malformed: expected three parts of unpadded base64url")
        payload = self._signed_payload(token)
        try:
            document = _object(json.loads(payload))
            _check_times(document, now_s)
            return Claims(
                _capability(document.get("cap")),
                _selector(document.get("sel")),
                expires_s=int(_seconds(document, "exp") or 0),
                issued_s=None if (issued := _seconds(document, "iat")) is None else int(issued),
            )
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            raise UnauthenticatedError(f"the token's claims are malformed: {error}") from error

    def _signed_payload(self, token: str) -> bytes:
        for key in self.keys:
            try:
                payload: bytes = _JWS.decode(token, key, algorithms=["HS256", "HS384"])
                return payload
            except InvalidSignatureError:
                continue
            except InvalidAlgorithmError as error:
                raise UnauthenticatedError("the token is signed with a method other than HS256 or HS384") from error
            except (InvalidTokenError, ValueError, RecursionError) as error:
                raise UnauthenticatedError(f"the token is malformed: {error}") from error
        raise UnauthenticatedError("the token's signature was made with none of our keys")


def _decoded(at: int, text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ValidationError(f"key {at + 1} is not base64 in the standard alphabet, padded", "auth-keys")
    return key


def _payload(claims: Claims) -> bytes:
    """The claims in the very bytes Gazette writes: names in this order, empty things left out."""
    document: dict[str, Any] = {
        "cap": int(claims.capability),
        "sel": {"include": _labels_json(claims.selector.include), "exclude": _labels_json(claims.selector.exclude)},
        "exp": claims.expires_s,
    }
    if claims.issued_s is not None:
        document["iat"] = claims.issued_s
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _labels_json(labels: LabelSet) -> dict[str, Any]:
    return {"labels": [_label_json(label) for label in labels] or None}


def _label_json(label: Label) -> dict[str, Any]:
    parts: dict[str, Any] = {"name": label.name, "value": label.value, "prefix": label.prefix}
    return {key: part for key, part in parts.items() if part}


def _check_times(document: dict[str, Any], now_s: float) -> None:
    expires = _seconds(document, "exp")
    if expires is None:
        raise UnauthenticatedError("the token never expires: it needs an `exp` claim")
    if now_s >= expires + LEEWAY_S:
        raise UnauthenticatedError(f"the token expired {now_s - expires:.0f} s ago")
    for claim in ("iat", "nbf"):
        begins = _seconds(document, claim)
        if begins is not None and now_s < begins - LEEWAY_S:
            raise UnauthenticatedError(f"the token is not valid yet: its `{claim}` is {begins - now_s:.0f} s ahead")


def _seconds(document: dict[str, Any], claim: str) -> float | None:
    """A time claim in unix seconds: a number, or (as Gazette allows) the text of one."""
    value = document.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"`{claim}` is not a number")
    if isinstance(value, str) and not _IS_NUMBER(value):
        raise ValueError(f"`{claim}` is not the text of a number")
    seconds = float(value)
    if seconds != seconds or seconds in (float("inf"), float("-inf")):
        raise ValueError(f"`{claim}` is not a finite number")
    return seconds


def _capability(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= Capability.ALL:
        raise ValueError("`cap` is not a 32-bit unsigned integer")
    return value


def _selector(value: Any) -> LabelSelector:
    document = _object(value)
    return LabelSelector(_labels(document.get("include")), _labels(document.get("exclude")))


def _labels(value: Any) -> LabelSet:
    """Sorted, since a foreign issuer may not have done so and matching relies on it."""
    return LabelSet(tuple(sorted({_label(_object(item)) for item in _object(value).get("labels") or []})))


def _label(item: dict[str, Any]) -> Label:
    name, value, prefix = item.get("name") or "", item.get("value") or "", item.get("prefix") or False
    if not (isinstance(name, str) and isinstance(value, str) and isinstance(prefix, bool)):
        raise TypeError("`sel` holds a label that is not made of texts")
    return Label(name, value, prefix)


def _object(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError("expected a JSON object")
    # Gazette finds claims whatever their case. Missing an `Include` would grant more than was meant.
    return {key.casefold(): held for key, held in value.items()}


def _names(bits: int) -> str:
    known = [flag.name or "" for flag in Capability if flag is not Capability.ALL and bits & flag]
    other = bits & ~sum(flag for flag in Capability if flag is not Capability.ALL)
    return ", ".join([*known, *([hex(other)] if other else [])]) or "nothing"
