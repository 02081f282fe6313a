"""Server reflection: what services and messages there are, for tools such as grpcurl."""

from __future__ import annotations

from typing import Any

from grpc_reflection.v1alpha import reflection_pb2 as pb  # type: ignore[import-untyped]
from grpc_reflection.v1alpha.reflection import aio  # type: ignore[import-untyped]

from protocol.rpc.method import AtExpiry, Call, RpcMethod, Rules, stream_stream

# The messages of both versions are the same bytes; tools ask for the newer first.
SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
_RULES = Rules(capability=None, at_expiry=AtExpiry.END, is_long_lived=True)


def reflection_methods(services: tuple[str, ...]) -> list[RpcMethod[Any, Any]]:
    """Of services whose generated modules are loaded."""
    servicer = aio.ReflectionServicer(services)

    async def answer(call: Call[Any, Any]) -> None:
        async for response in servicer.ServerReflectionInfo(call, None):
            await call.send(response)

    return [
        stream_stream(
            "ServerReflectionInfo",
            pb.ServerReflectionRequest.FromString,
            pb.ServerReflectionResponse.SerializeToString,
            answer,
            _RULES,
        )
    ]
