"""KeepAlive: the gRPC options by which a peer that has stopped answering is noticed within seconds."""

from __future__ import annotations

from dataclasses import dataclass

Options = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """A connection with open calls and nothing to read for `time_s` is pinged, and dropped `timeout_s` later.

    Pings are answered by gRPC's own threads: a process that is busy in Python does not look like a dead one, but one
    that is stopped does. The times add up to well under a lease's, so that a pipeline learns of a dead peer first.
    """

    time_s: float = 2.0
    timeout_s: float = 3.0

    def _options(self) -> Options:
        timeout_ms = int(self.timeout_s * 1000)
        return (
            ("grpc.keepalive_time_ms", int(self.time_s * 1000)),
            ("grpc.keepalive_timeout_ms", timeout_ms),
            # Without this one a stopped peer was noticed after 64 s, whatever the two above said.
            ("grpc.http2.ping_timeout_ms", timeout_ms),
            # An idle stream is pinged for as long as it is open, not just twice.
            ("grpc.http2.max_pings_without_data", 0),
        )

    def channel_options(self) -> Options:
        """Never towards a Go server: at the fourth ping without other traffic it closes the connection."""
        return self._options()

    def server_options(self) -> Options:
        """A server may ping any client: only servers keep count of pings."""
        # Half the time, since pings that were sent at their intervals may arrive closer to each other.
        tolerated_ms = int(self.time_s * 500)
        return (
            *self._options(),
            # A connection that a dead client has left behind goes as well.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", tolerated_ms),
        )
