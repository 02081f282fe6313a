"""An HTTP server on a port of its own, which those who connect cannot keep busy with nothing."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from broker.http_exchange import GatewayLimits

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_BACKLOG = 1024
_BUFFER_BYTES = 128 << 10
_STOP_S = 1.0
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 54\r\n\r\n"
    b"this broker has all the connections that it takes on.\n"
)

# aiohttp would log every malformed request with its traceback, at the pleasure of anybody who can connect. What our own
# handlers raise does not get there.
_UNHEARD = logging.Logger("aiohttp.malformed", level=logging.CRITICAL)


def listening_socket(address: str) -> socket.socket:
    """Bind `host:port`, where port 0 is any that is free and `[::]` is every address of this machine."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        if host == "::" and socket.has_dualstack_ipv6():
            return socket.create_server(
                (host, int(port)), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
        host = "0.0.0.0" if host == "::" else host
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)
    except ValueError as error:
        raise OSError(f"cannot listen on {address}: its port is not a number") from error
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error.strerror or error}") from error


class _Connections(web.Server):
    """Refuses those that are too many."""

    def __init__(self, handler: Handler, limits: GatewayLimits) -> None:
        super().__init__(
            handler,
            handler_cancellation=True,
            # For aiohttp this is also how long the head of a request may take.
            keepalive_timeout=limits.head_s,
            lingering_time=limits.linger_s,
            # Else it unpacks what is compressed, to any size, and no longer as it was sent.
            auto_decompress=False,
            # Of a body that nobody reads yet, twice as much is held.
            read_bufsize=_BUFFER_BYTES,
            access_log=None,
            logger=_UNHEARD,
        )
        self._left = limits.connections_max

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._left -= 1
        if self._left < 0:
            transport.write(_FULL)
            transport.close()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._left += 1


@asynccontextmanager
async def http_server(
    listening: socket.socket, handler: Handler, limits: GatewayLimits, tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Serve on a socket within the body, and close it."""
    connections = _Connections(handler, limits)
    server = await asyncio.get_running_loop().create_server(
        connections,
        sock=listening,
        ssl=tls,
        ssl_handshake_timeout=limits.head_s if tls else None,
        ssl_shutdown_timeout=limits.linger_s if tls else None,
    )
    try:
        yield
    finally:
        server.close()
        await connections.shutdown(_STOP_S)
