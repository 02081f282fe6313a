from __future__ import annotations

from protocol.rpc.keepalive import KeepAlive


def test_a_server_tolerates_the_pings_of_its_own_kind() -> None:
    keepalive = KeepAlive(time_s=4, timeout_s=2)
    client, server = dict(keepalive.channel_options()), dict(keepalive.server_options())
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < client["grpc.keepalive_time_ms"]


def test_all_three_times_are_set_on_either_side() -> None:
    """With only the first two, a stopped peer goes unnoticed for a minute."""
    for options in (KeepAlive().channel_options(), KeepAlive().server_options()):
        assert {"grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"} <= dict(
            options
        ).keys()
