"""Resolving a request on an event loop: waiting, within a bound, for what this broker has yet to learn from etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.notice import Withdraw
from broker.resolution import REVISION_WAIT_S, Resolution, Wanted
from broker.resolver import Resolver
from fragment.index import FileT
from protocol.errors import GazetteError, UnavailableError


def resolve_within(
    resolver: Resolver[FileT],
    wanted: Wanted,
    timeout_s: float | None,
    done: Callable[[Resolution | GazetteError], None],
) -> Withdraw:
    """Call `done` with the Resolution, or with an error once `timeout_s` has passed. What is returned ends the wait."""
    wait = resolver.resolve(wanted, done)
    if wait.is_over or timeout_s is None:
        return wait.withdraw

    def give_up() -> None:
        if not wait.is_over:
            wait.withdraw()
            done(
                UnavailableError(
                    f"this broker is at revision {resolver.view.revision} of etcd and has waited {timeout_s:g} s for "
                    f"revision {wanted.revision}, which the request demands: is it of this cluster?"
                )
            )

    timer = asyncio.get_running_loop().call_later(timeout_s, give_up)

    def withdraw() -> None:
        timer.cancel()
        wait.withdraw()

    return withdraw


async def resolve(resolver: Resolver[FileT], wanted: Wanted, timeout_s: float | None = REVISION_WAIT_S) -> Resolution:
    """As ``resolve_within``, but raises the error."""
    answered: asyncio.Future[Resolution | GazetteError] = asyncio.get_running_loop().create_future()

    def answer(resolution: Resolution | GazetteError) -> None:
        if not answered.done():
            answered.set_result(resolution)

    withdraw = resolve_within(resolver, wanted, timeout_s, answer)
    try:
        resolution = await answered
    finally:
        withdraw()
    if isinstance(resolution, GazetteError):
        raise resolution
    return resolution
