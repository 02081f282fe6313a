"""What operators look at: ``/debug/metrics`` for Prometheus, and ``/debug/ready`` for whoever balances load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


@asynccontextmanager
async def debug_server(
    address: str, registries: tuple[CollectorRegistry, ...], is_ready: Callable[[], bool]
) -> AsyncIterator[int]:
    """Serve on `host:port` within the body, which is given the port: 0 is any that is free."""

    async def metrics(_: web.Request) -> web.Response:
        # Gathered here, since what is counted is the event loop's; put into words elsewhere, since that takes long.
        text = b"".join([await asyncio.to_thread(generate_latest, registry) for registry in registries])
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def ready(_: web.Request) -> web.Response:
        if is_ready():
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not serving: starting, or about to stop\n")

    app = web.Application(client_max_size=1 << 10)
    app.router.add_get("/debug/metrics", metrics)
    app.router.add_get("/debug/ready", ready)
    # Requests here are small, and their answers not for browsers of other sites.
    runner = web.AppRunner(app, access_log=None, auto_decompress=False, keepalive_timeout=30)
    await runner.setup()
    host, _, port = address.rpartition(":")
    try:
        site = web.TCPSite(runner, host, int(port))
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
