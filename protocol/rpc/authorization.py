"""Authorizer: the Claims of a call, from its metadata. TokenSigner: the metadata of the calls we make ourselves.

A token that is not believed gets the same answer whatever is wrong with it, so that nobody can feel their way towards
one that is. What was wrong is in our log at level debug.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from protocol.auth import DEFAULT_LIFE_S, Capability, Claims, Keys
from protocol.errors import UnauthenticatedError
from protocol.identifier import strip_meta
from protocol.label import Label, LabelSet
from protocol.selector import LabelSelector

_LOG = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str], ...]

REFUSAL = "this call needs a valid token, in a single header `authorization: Bearer <token>`"
NEVER_S = (1 << 63) - 1
"""The expiry of claims that do not expire: those of a server without keys."""

_REMEMBERED_MAX = 2048
_REMEMBERED_CHARACTERS_MAX = 2048
_SIGNED_USED_S = 60

_EVERYTHING = Claims(Capability.ALL, LabelSelector(), expires_s=NEVER_S)


class Authorizer:
    """Without keys everybody may do everything."""

    def __init__(self, keys: Keys | None, now: Callable[[], float]) -> None:
        self._keys = keys
        self._now = now
        # What was believed lately, since clients send the same token many times and a signature takes its time.
        self._believed: dict[str, Claims] = {}

    def claims(self, metadata: Iterable[tuple[str, str | bytes]], required: int | None) -> Claims:
        """Raise unless the token in `metadata` grants all of `required`; None asks for no token at all."""
        if self._keys is None or required is None:
            return _EVERYTHING
        try:
            authorization = _authorization(metadata)
            if authorization is None:
                return self._keys.verify(None, required, self._now())
            return self._verified(self._keys, authorization, required)
        except UnauthenticatedError as error:
            _LOG.debug("a token was not believed", extra={"reason": str(error)})
            raise UnauthenticatedError(REFUSAL) from error

    def _verified(self, keys: Keys, authorization: str, required: int) -> Claims:
        now_s = self._now()
        known = self._believed.get(authorization)
        if known is not None and now_s < known.expires_s and not required & ~known.capability:
            return known
        claims = keys.verify(authorization, required, now_s)
        if len(authorization) <= _REMEMBERED_CHARACTERS_MAX:
            if len(self._believed) >= _REMEMBERED_MAX:
                self._believed.clear()
            self._believed[authorization] = claims
        return claims

    def remaining_s(self, claims: Claims) -> float | None:
        """For how long the claims hold, None for those that do not expire."""
        return None if claims.expires_s == NEVER_S else claims.expires_s - self._now()


def _authorization(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Of two headers, one reader would take the first and another the last: so there may be but one."""
    values = [value for key, value in metadata if key == "authorization"]
    if len(values) > 1:
        raise UnauthenticatedError("there is more than one authorization header")
    if not values:
        return None
    if not isinstance(values[0], str):
        raise UnauthenticatedError("the authorization header is not text")
    return values[0]


class TokenSigner:
    """Signs for calls to processes with the same keys: a client's token is never passed on to a peer."""

    def __init__(self, keys: Keys | None, now: Callable[[], float]) -> None:
        self._keys = keys
        self._now = now
        # By capability and journal, with the second in which they were signed. A token is used again for a minute.
        self._signed: dict[tuple[int, str], tuple[int, Metadata]] = {}

    def metadata(self, capability: int, selector: LabelSelector) -> Metadata:
        """Empty without keys."""
        if self._keys is None:
            return ()
        issued_s = int(self._now())
        token = self._keys.sign(Claims(capability, selector, issued_s + DEFAULT_LIFE_S, issued_s))
        return (("authorization", f"Bearer {token}"),)

    def for_journal(self, capability: int, journal: str) -> Metadata:
        """Good for this one journal."""
        if self._keys is None:
            return ()
        key, now_s = (capability, journal), int(self._now())
        issued_s, metadata = self._signed.get(key, (0, ()))
        if not 0 <= now_s - issued_s < _SIGNED_USED_S:
            metadata = self.metadata(capability, LabelSelector(LabelSet((Label("name", strip_meta(journal)),))))
            if len(self._signed) >= _REMEMBERED_MAX:
                self._signed.clear()
            self._signed[key] = (now_s, metadata)
        return metadata
