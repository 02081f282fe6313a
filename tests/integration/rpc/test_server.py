"""An RpcServer and real clients of it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]

from protocol.auth import Capability, Claims, Keys
from protocol.errors import (
    CorruptError,
    InvariantError,
    PermissionDeniedError,
    RefusedError,
    Status,
    UnauthenticatedError,
    UnavailableError,
    ValidationError,
)
from protocol.gen import journal_pb2
from protocol.rpc.authorization import REFUSAL, Authorizer, Metadata
from protocol.rpc.method import Call, Rules, unary_unary
from protocol.rpc.server import RpcServer, ServerLimits
from protocol.selector import LabelSelector
from tests.support.eventually import eventually
from tests.support.metrics import metric
from tests.support.rpc_service import (
    SERVICE,
    Echo,
    now_s,
    same,
    serving,
    stream_stream_of,
    stream_unary_of,
    unary_stream_of,
    unary_unary_of,
)

KEYS = Keys.parse("c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA==")


def bearer(capability: int, life_s: float = 60, keys: Keys = KEYS) -> Metadata:
    claims = Claims(capability, LabelSelector.parse("name:prefix=acme/"), int(now_s() + life_s))
    return (("authorization", f"Bearer {keys.sign(claims)}"),)


def channel_to(port: int, **options: int) -> grpc.aio.Channel:
    own = {"grpc.use_local_subchannel_pool": 1, **options}
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=tuple(own.items()))


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    async with asyncio.timeout(20):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call
    return failed.value.code(), failed.value.details() or ""


async def test_all_four_kinds_pass_messages_untouched() -> None:
    async with serving(Echo()) as (_, port), channel_to(port) as channel:
        assert await unary_unary_of(channel, "Apply")(b"\xff\x00 raw") == b"\xff\x00 raw"
        assert await stream_unary_of(channel, "Append")(iter([b"a", b"", b"b"])) == b"ab"
        assert [len(part) async for part in unary_stream_of(channel, "Read")(b"3")] == [100_000] * 3
        call = stream_stream_of(channel, "Replicate")()
        for message in (b"one", b"two"):
            await call.write(message)
            assert await call.read() == message
        call.cancel()


async def test_a_unix_socket_serves_too(tmp_path: Path) -> None:
    server = RpcServer({SERVICE: Echo().methods()}, Authorizer(None, now_s))
    server.listen(f"unix://{tmp_path}/broker.sock")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix://{tmp_path}/broker.sock") as channel:
        assert await unary_unary_of(channel, "Apply")(b"x") == b"x"
    await server.stop(0)


async def test_a_port_in_use_is_not_shared() -> None:
    async with serving(Echo()) as (_, port):
        other = RpcServer({SERVICE: Echo().methods()}, Authorizer(None, now_s))
        with pytest.raises(OSError, match="cannot listen"):
            other.listen(f"127.0.0.1:{port}")
        await other.stop(0)


@pytest.mark.parametrize(
    ("raised", "code", "details"),
    [
        (ValidationError("is too long", "journal"), grpc.StatusCode.INVALID_ARGUMENT, "journal: is too long"),
        (UnauthenticatedError("who?"), grpc.StatusCode.UNAUTHENTICATED, "who?"),
        (PermissionDeniedError("not you"), grpc.StatusCode.PERMISSION_DENIED, "not you"),
        (UnavailableError("etcd is away"), grpc.StatusCode.UNAVAILABLE, "etcd is away"),
        (CorruptError("fragment"), grpc.StatusCode.DATA_LOSS, "fragment"),
        (ExceptionGroup("tasks", [ValidationError("of a task")]), grpc.StatusCode.INVALID_ARGUMENT, "of a task"),
        (ValidationError("é" * 10_000), grpc.StatusCode.INVALID_ARGUMENT, "é"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_what_a_handler_raises_becomes_a_status(raised: Exception, code: grpc.StatusCode, details: str) -> None:
    async with serving(Echo(check=raising(raised))) as (_, port), channel_to(port) as channel:
        for call in (unary_unary_of(channel, "Apply")(b"x"), stream_unary_of(channel, "Append")(iter([b"x"]))):
            answered = await failure(call)
            assert answered[0] is code
            assert details in answered[1]


def raising(error: Exception) -> Any:
    def check(_request: bytes) -> None:
        raise error

    return check


@pytest.mark.parametrize(
    "raised",
    [
        RuntimeError("the secret is 1234"),
        AssertionError("the secret is 1234"),
        TimeoutError("the secret is 1234"),
        RefusedError(Status.SUSPENDED, "the secret is 1234"),
        ExceptionGroup("tasks", [ValidationError("first"), KeyError("the secret is 1234")]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_of_our_bugs_a_client_learns_an_id_and_the_log_the_rest(
    raised: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Echo(check=raising(raised))) as (_, port), channel_to(port) as channel:
        code, details = await failure(unary_unary_of(channel, "Apply")(b"x"))
    assert code is grpc.StatusCode.INTERNAL
    assert "1234" not in details
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.__dict__["error_id"] in details
    assert record.__dict__["method"] == f"/{SERVICE}/Apply"
    assert record.exc_info is not None


async def test_a_broken_invariant_is_told_to_whoever_runs_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(Echo(check=raising(InvariantError("impossible")))) as (server, port),
        channel_to(port) as channel,
    ):
        code, _ = await failure(unary_unary_of(channel, "Apply")(b"x"))
        assert code is grpc.StatusCode.INTERNAL
        async with asyncio.timeout(10):
            with pytest.raises(InvariantError, match="impossible"):
                await server.wait_stopped()
    assert "our own fault" in caplog.text


async def test_whoever_runs_the_server_is_told_when_it_has_stopped() -> None:
    async with serving(Echo()) as (server, _), asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(server.wait_stopped())
        impatient = tasks.create_task(server.wait_stopped())
        await asyncio.sleep(0)
        impatient.cancel()
        await server.stop(0)
        await waiting


async def test_a_failed_call_of_a_peer_is_passed_on_unless_it_is_about_us(caplog: pytest.LogCaptureFixture) -> None:
    def relayed(code: bytes) -> None:
        raise grpc.aio.AioRpcError(
            grpc.StatusCode[code.decode()], grpc.aio.Metadata(), grpc.aio.Metadata(), details="said the peer"
        )

    async with serving(Echo(check=relayed)) as (_, port), channel_to(port) as channel:
        call = unary_unary_of(channel, "Apply")
        assert await failure(call(b"INVALID_ARGUMENT")) == (grpc.StatusCode.INVALID_ARGUMENT, "said the peer")
        for code in (b"UNAVAILABLE", b"CANCELLED", b"UNAUTHENTICATED", b"PERMISSION_DENIED"):
            answered, details = await failure(call(code))
            assert answered is grpc.StatusCode.UNAVAILABLE
            assert "said the peer" not in details
    assert "refused our token" in caplog.text


def decode(raw: bytes) -> Any:
    return journal_pb2.AppendRequest.FromString(raw)


async def test_what_is_told_at_the_end_comes_with_a_failure_too() -> None:
    async def tell_and_fail(_: bytes, call: Call[bytes, bytes]) -> bytes:
        call.tell_at_end("told-as", "something")
        raise UnavailableError("try again")

    method = unary_unary("Apply", same, same, tell_and_fail, Rules(None))
    server = RpcServer({SERVICE: [method]}, Authorizer(None, now_s))
    port = server.listen("127.0.0.1:0")
    await server.start()
    async with channel_to(port) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="try again") as failed:
            await unary_unary_of(channel, "Apply")(b"x")
    assert ("told-as", "something") in tuple(failed.value.trailing_metadata())
    await server.stop(0)


async def test_a_message_that_cannot_be_read_is_the_clients_mistake() -> None:
    with pytest.raises(DecodeError):
        decode(b"\xff\xff\xff")
    async with serving(Echo(deserialise=decode)) as (_, port), channel_to(port) as channel:
        replicate = stream_stream_of(channel, "Replicate")()
        await replicate.write(b"\xff\xff\xff")
        for call in (
            unary_unary_of(channel, "Apply")(b"\xff\xff\xff"),
            stream_unary_of(channel, "Append")(iter([b"", b"\xff\xff\xff"])),
            replicate.read(),
        ):
            code, details = await failure(call)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "well-formed" in details


async def test_the_handler_of_a_client_that_has_gone_is_cancelled() -> None:
    echo = Echo()
    async with serving(echo) as (_, port), channel_to(port) as channel:
        call = stream_stream_of(channel, "Replicate")()
        await call.write(b"x")
        await call.read()
        call.cancel()
        async with asyncio.timeout(20):
            await echo.cancelled.wait()


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Basic YTpi"),),
        (("authorization", "Bearer not-a-token"),),
        bearer(Capability.ALL, keys=Keys.parse("b3RoZXI=")),
        bearer(Capability.ALL, life_s=-3600),
        bearer(Capability.ALL) * 2,
        (("authorization", "Bearer " + "x" * 10_000),),
    ],
    ids=["none", "basic", "malformed", "other key", "expired", "two headers", "long"],
)
async def test_a_token_that_is_not_believed_gets_one_and_the_same_answer(metadata: Metadata) -> None:
    echo = Echo()
    async with serving(echo, KEYS) as (_, port), channel_to(port) as channel:
        for call in (
            unary_unary_of(channel, "Apply")(b"x", metadata=metadata),
            stream_unary_of(channel, "Append")(iter([b"x"]), metadata=metadata),
            unary_stream_of(channel, "List")(b"x", metadata=metadata).read(),
            stream_stream_of(channel, "Replicate")(metadata=metadata).read(),
        ):
            assert await failure(call) == (grpc.StatusCode.UNAUTHENTICATED, REFUSAL)
    assert not echo.calls


async def test_a_capability_is_needed_for_each_method() -> None:
    echo = Echo()
    async with serving(echo, KEYS) as (_, port), channel_to(port) as channel:
        metadata = bearer(Capability.APPLY)
        assert await unary_unary_of(channel, "Apply")(b"x", metadata=metadata) == b"x"
        assert echo.calls[0].claims.selector == LabelSelector.parse("name:prefix=acme/")
        code, details = await failure(stream_unary_of(channel, "Append")(iter([b"x"]), metadata=metadata))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "APPEND" in details
        assert len(echo.calls) == 1


async def test_a_stream_ends_when_its_token_expires_and_another_call_fails() -> None:
    async with serving(Echo(), KEYS) as (_, port), channel_to(port) as channel, asyncio.timeout(20):
        watch = unary_stream_of(channel, "List")(b"x", metadata=bearer(Capability.LIST, life_s=2))
        hang = unary_unary_of(channel, "Hang")(b"x", metadata=bearer(Capability.APPLY, life_s=2))
        replicate = stream_stream_of(channel, "Replicate")(metadata=bearer(Capability.REPLICATE, life_s=2))
        await replicate.write(b"x")
        assert [message async for message in watch] == [b"x"]
        assert await watch.code() is grpc.StatusCode.OK
        code, details = await failure(hang)
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "expired" in details
        await replicate.write(b"y")
        assert [await replicate.read(), await replicate.read()] == [b"x", b"y"]
        replicate.cancel()


async def test_a_token_that_has_just_expired_is_believed_but_of_no_use() -> None:
    """As with Gazette, where the deadline of a call is the expiry of its token."""
    async with serving(Echo(), KEYS) as (_, port), channel_to(port) as channel:
        call = unary_stream_of(channel, "List")(b"x", metadata=bearer(Capability.LIST, life_s=-2))
        code, _ = await failure(call.read())
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_token_without_end_is_served() -> None:
    async with serving(Echo(), KEYS) as (_, port), channel_to(port) as channel:
        metadata = bearer(Capability.APPLY, life_s=1e15)
        assert await unary_unary_of(channel, "Apply")(b"x", metadata=metadata) == b"x"


async def test_more_long_lived_streams_than_the_limit_are_refused_and_others_are_not() -> None:
    echo = Echo()
    async with serving(echo, limits=ServerLimits(long_lived_max=2)) as (_, port), channel_to(port) as channel:
        watches = [unary_stream_of(channel, "List")(b"x") for _ in range(2)]
        for watch in watches:
            assert await watch.read() == b"x"
        code, _ = await failure(unary_stream_of(channel, "List")(b"x").read())
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await unary_unary_of(channel, "Apply")(b"x") == b"x"
        watches[0].cancel()
        async with asyncio.timeout(20):
            await echo.cancelled.wait()
            assert await unary_stream_of(channel, "List")(b"x").read() == b"x"


async def test_a_method_may_have_a_limit_of_its_own() -> None:
    echo = Echo(calls_max=1)
    async with serving(echo) as (_, port), channel_to(port) as channel:
        hang = unary_unary_of(channel, "Hang")(b"x")
        async with asyncio.timeout(20):
            await echo.waiting.wait()
        assert await unary_unary_of(channel, "Apply")(b"x") == b"x"
        code, details = await failure(unary_unary_of(channel, "Hang")(b"x"))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "this method" in details
        hang.cancel()


async def test_a_server_takes_no_more_calls_than_its_limit() -> None:
    async with serving(Echo(), limits=ServerLimits(calls_max=2)) as (_, port), channel_to(port) as channel:
        watches = [unary_stream_of(channel, "List")(b"x") for _ in range(2)]
        for watch in watches:
            assert await watch.read() == b"x"
        code, _ = await failure(unary_unary_of(channel, "Apply")(b"x"))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_streams_beyond_the_limit_of_a_connection_wait() -> None:
    limits = ServerLimits(streams_per_connection_max=2)
    async with serving(Echo(), limits=limits) as (_, port), channel_to(port) as channel:
        watches = [unary_stream_of(channel, "List")(b"x") for _ in range(2)]
        for watch in watches:
            assert await watch.read() == b"x"
        waiting = unary_unary_of(channel, "Apply")(b"x")
        async with channel_to(port) as other:
            assert await unary_unary_of(other, "Apply")(b"x") == b"x"
        assert not waiting.done()
        watches[0].cancel()
        async with asyncio.timeout(20):
            assert await waiting == b"x"


async def test_a_message_may_be_of_4_mib_and_no_more() -> None:
    async with serving(Echo()) as (_, port), channel_to(port, **{"grpc.max_receive_message_length": -1}) as channel:
        largest = bytes(4 << 20)
        assert len(await unary_unary_of(channel, "Apply")(largest)) == len(largest)
        code, _ = await failure(unary_unary_of(channel, "Apply")(largest + b"x"))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_metadata_has_a_limit_that_a_long_token_fits_in() -> None:
    async with serving(Echo()) as (_, port), channel_to(port) as channel:
        call = unary_unary_of(channel, "Apply")
        assert await call(b"x", metadata=(("authorization", "x" * (16 << 10)),)) == b"x"
        code, _ = await failure(call(b"x", metadata=(("authorization", "x" * (21 << 10)),)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await call(b"x") == b"x"


async def test_a_stopping_server_ends_streams_with_ok_and_lets_calls_finish() -> None:
    echo = Echo()
    async with serving(echo) as (server, port), channel_to(port) as channel:
        watch = unary_stream_of(channel, "List")(b"x")
        assert await watch.read() == b"x"
        append = stream_unary_of(channel, "Append")()
        await append.write(b"before ")
        await eventually(lambda: len(echo.calls) == 1, "the call")
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(server.stop())
            assert await watch.read() is grpc.aio.EOF
            assert await watch.code() is grpc.StatusCode.OK
            assert not stopping.done()
            await append.write(b"after")
            await append.done_writing()
            assert await append == b"before after"


async def test_a_call_that_does_not_finish_is_cancelled_after_the_grace() -> None:
    echo = Echo()
    async with serving(echo) as (server, port), channel_to(port) as channel:
        hang = unary_unary_of(channel, "Hang")(b"x")
        async with asyncio.timeout(20):
            await echo.waiting.wait()
            await server.stop(0.05)
        assert echo.cancelled.is_set()
        code, _ = await failure(hang)
        assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def test_health_is_told_by_service_and_to_those_who_watch() -> None:
    def check(channel: grpc.aio.Channel, service: str) -> Any:
        call: Any = channel.unary_unary("/grpc.health.v1.Health/Check", None, health_pb2.HealthCheckResponse.FromString)
        return call(health_pb2.HealthCheckRequest(service=service).SerializeToString())

    async with serving(Echo(), KEYS) as (server, port), channel_to(port) as channel, asyncio.timeout(20):
        assert (await check(channel, SERVICE)).status == health_pb2.HealthCheckResponse.SERVING
        assert (await check(channel, "")).status == health_pb2.HealthCheckResponse.SERVING
        assert (await failure(check(channel, "what")))[0] is grpc.StatusCode.NOT_FOUND
        watch: Any = channel.unary_stream(
            "/grpc.health.v1.Health/Watch", None, health_pb2.HealthCheckResponse.FromString
        )
        call = watch(health_pb2.HealthCheckRequest(service=SERVICE).SerializeToString())
        assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        server.health.set(SERVICE, is_serving=False)
        assert (await call.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await check(channel, SERVICE)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await check(channel, "")).status == health_pb2.HealthCheckResponse.SERVING
        list_health: Any = channel.unary_unary("/grpc.health.v1.Health/List")
        listed = health_pb2.HealthListResponse.FromString(await list_health(b""))
        assert set(listed.statuses) == {"", SERVICE}
        await server.stop()
        assert await call.read() is grpc.aio.EOF


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_knows_our_services(version: str) -> None:
    async with serving(Echo(), KEYS) as (_, port), channel_to(port) as channel, asyncio.timeout(20):
        method: Any = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = method()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = (await call.read()).list_services_response.service
        assert {SERVICE, "grpc.health.v1.Health"} <= {service.name for service in listed}
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE))
        assert (await call.read()).file_descriptor_response.file_descriptor_proto
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


def counted(name: str, method: str, kind: str, **labels: str) -> float:
    return metric(f"grpc_server_{name}", grpc_type=kind, grpc_service=SERVICE, grpc_method=method, **labels)


async def test_calls_and_messages_are_counted_as_gazette_counts_them() -> None:
    before = {
        "started": counted("started_total", "Append", "client_stream"),
        "received": counted("msg_received_total", "Append", "client_stream"),
        "sent": counted("msg_sent_total", "Append", "client_stream"),
        "ok": counted("handled_total", "Append", "client_stream", grpc_code="OK"),
        "invalid": counted("handled_total", "Append", "client_stream", grpc_code="InvalidArgument"),
        "seconds": counted("handling_seconds_count", "Append", "client_stream"),
    }

    def check(request: bytes) -> None:
        if request == b"bad":
            raise ValidationError("bad")

    async with serving(Echo(check=check)) as (_, port), channel_to(port) as channel:
        await stream_unary_of(channel, "Append")(iter([b"a", b"b", b"c"]))
        await failure(stream_unary_of(channel, "Append")(iter([b"bad"])))
        await eventually(
            lambda: counted("handling_seconds_count", "Append", "client_stream") == before["seconds"] + 2,
            "both calls to be counted",
        )
    assert counted("started_total", "Append", "client_stream") == before["started"] + 2
    assert counted("msg_received_total", "Append", "client_stream") == before["received"] + 4
    assert counted("msg_sent_total", "Append", "client_stream") == before["sent"] + 1
    assert counted("handled_total", "Append", "client_stream", grpc_code="OK") == before["ok"] + 1
    assert counted("handled_total", "Append", "client_stream", grpc_code="InvalidArgument") == before["invalid"] + 1
