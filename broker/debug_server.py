"""What operators look at: metrics for Prometheus, and whether the broker is alive and serves.

All of it is on the gateway's port, and on one of its own if there is one. Of what an operator keeps private, the
gateway's port has only the two answers that balancers of load need.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from broker.http_exchange import GatewayLimits
from broker.http_server import http_server, listening_socket

_METRICS = ("/metrics", "/debug/metrics")
_READY = ("/readyz", "/debug/ready")
_PUBLIC = ("/healthz", "/readyz")
PATHS = frozenset((*_METRICS, *_READY, *_PUBLIC))


class Diagnostics:
    def __init__(self, registries: Sequence[CollectorRegistry], is_ready: Callable[[], bool]) -> None:
        self._registries = registries
        self._is_ready = is_ready

    async def answer(self, method: str, path: str, *, is_private: bool = False) -> web.Response:
        """The answer to one of PATHS. Where `is_private`, only what everybody may see is shown."""
        if method not in ("GET", "HEAD"):
            return web.Response(status=405, text="this is for GET\n", headers={"Allow": "GET, HEAD"})
        if is_private and path not in _PUBLIC:
            return web.Response(status=404, text="this is on the debug port\n")
        if path in _METRICS:
            # Gathered here, since what is counted is the event loop's; put into words elsewhere, as that takes long.
            text = b"".join([await asyncio.to_thread(generate_latest, registry) for registry in self._registries])
            return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})
        if path in _READY and not self._is_ready():
            return web.Response(status=503, text="not serving: starting, or about to stop\n")
        return web.Response(text="ready\n" if path in _READY else "alive\n")


@asynccontextmanager
async def debug_server(address: str, diagnostics: Diagnostics) -> AsyncIterator[int]:
    """Serve on `host:port` within the body, which is given the port: 0 is any that is free."""

    async def handle(request: web.BaseRequest) -> web.Response:
        path = request.raw_path.partition("?")[0]
        if path not in PATHS:
            return web.Response(status=404, text=f"there are {', '.join(sorted(PATHS))}\n")
        return await diagnostics.answer(request.method, path)

    listening = listening_socket(address)
    port: int = listening.getsockname()[1]
    async with http_server(listening, handle, GatewayLimits()):
        yield port
