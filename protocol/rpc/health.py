"""Health: the gRPC health service, by which load balancers and probes learn whether a service serves."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as pb  # type: ignore[import-untyped]

from protocol.rpc.failure import StatusError
from protocol.rpc.method import AtExpiry, Call, RpcMethod, Rules, unary_stream, unary_unary

SERVICE = "grpc.health.v1.Health"
_OPEN = Rules(capability=None)
_WATCH = Rules(capability=None, at_expiry=AtExpiry.END, is_long_lived=True)


class Health:
    """The empty name stands for the process as a whole. Nothing serves until it is said to."""

    def __init__(self, services: tuple[str, ...]) -> None:
        self._is_serving = dict.fromkeys(("", *services), False)
        # Replaced at every change, so that all who wait for one are woken by one.
        self._changed = asyncio.Event()

    def set(self, service: str, is_serving: bool) -> None:
        if self._is_serving[service] != is_serving:
            self._is_serving[service] = is_serving
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    def set_all(self, is_serving: bool) -> None:
        for service in self._is_serving:
            self.set(service, is_serving)

    def methods(self) -> list[RpcMethod[Any, Any]]:
        answer = pb.HealthCheckResponse.SerializeToString
        return [
            unary_unary("Check", pb.HealthCheckRequest.FromString, answer, self._check, _OPEN),
            unary_unary(
                "List", pb.HealthListRequest.FromString, pb.HealthListResponse.SerializeToString, self._list, _OPEN
            ),
            unary_stream("Watch", pb.HealthCheckRequest.FromString, answer, self._watch, _WATCH),
        ]

    async def _check(self, request: Any, _call: Call[Any, Any]) -> Any:
        if request.service not in self._is_serving:
            raise StatusError(grpc.StatusCode.NOT_FOUND, "this server has no such service")
        return self._answer(request.service)

    async def _list(self, _request: Any, _call: Call[Any, Any]) -> Any:
        return pb.HealthListResponse(statuses={service: self._answer(service) for service in self._is_serving})

    async def _watch(self, request: Any, call: Call[Any, Any]) -> None:
        told = None
        while True:
            changed = self._changed
            if (answer := self._answer(request.service)) != told:
                told = answer
                await call.send(answer)
            else:
                await changed.wait()

    def _answer(self, service: str) -> Any:
        if service not in self._is_serving:
            return pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVICE_UNKNOWN)
        is_serving = self._is_serving[service]
        kinds = pb.HealthCheckResponse
        return pb.HealthCheckResponse(status=kinds.SERVING if is_serving else kinds.NOT_SERVING)
