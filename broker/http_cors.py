"""CORS: which pages of the web may use the gateway through their visitors' browsers. By default none.

Cookies are never asked for. Who has no token has nothing that a page could borrow.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.http_headers import Headers

_METHODS = "GET, HEAD, PUT, POST, OPTIONS"
_ASKED = "Authorization, Content-Type, Range"
_SHOWN = (
    "Content-Range, Location, Retry-After, X-Close-Error, X-Commit-Begin, X-Commit-End, X-Commit-SHA1-Sum, "
    "X-Fragment-Last-Modified, X-Fragment-Location, X-Fragment-Name, X-Route-Token, X-Write-Head"
)
_REMEMBERED_S = 600


@dataclass(frozen=True, slots=True)
class Cors:
    """The origins that are allowed, such as ``https://ui.example``; ``*`` is every one."""

    origins: tuple[str, ...] = ()

    def headers(self, origin: str | None) -> Headers:
        """Of an answer to a page of `origin`.

        >>> Cors(("https://ui.example",)).headers("https://evil.example")
        {'Vary': 'Origin'}
        """
        if not self.origins:
            return {}
        if "*" in self.origins:
            return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": _SHOWN}
        varies = {"Vary": "Origin"}
        if origin is None or origin not in self.origins:
            return varies
        return {**varies, "Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _SHOWN}

    def preflight_headers(self, origin: str | None) -> Headers:
        """Of an answer to a browser that asks beforehand."""
        headers = self.headers(origin)
        if "Access-Control-Allow-Origin" in headers:
            headers["Access-Control-Allow-Methods"] = _METHODS
            headers["Access-Control-Allow-Headers"] = _ASKED
            headers["Access-Control-Max-Age"] = str(_REMEMBERED_S)
        return headers
