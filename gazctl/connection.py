"""How commands reach brokers: the flags for that, a client made of them, and what to say when it does not work."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from broker.client.client import Client
from broker.client.listing import Listing
from broker.client.outcome import UnknownOutcomeError
from broker.client.retry import NEVER
from broker.client.settings import ClientSettings
from gazctl.command import LOG_FORMATS, LOG_LEVELS, Duration, dotted_option
from gazctl.output import notice
from protocol.auth import Keys
from protocol.endpoint import endpoint_of
from protocol.errors import (
    GazetteError,
    PermissionDeniedError,
    RefusedError,
    Status,
    UnauthenticatedError,
    UnavailableError,
    ValidationError,
)
from protocol.rpc.logs import LogFormat, set_up_logs
from protocol.rpc.tls import PeerTls
from protocol.selector import LabelSelector

T = TypeVar("T")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Given = dict[str, Any]

_PATIENCE_S = 5.0
_PAUSE_S = 0.5

_OPTIONS = (
    click.option(
        "--zone", envvar="ZONE", default="local", show_default=True, help="Where you are: reads prefer brokers there."
    ),
    dotted_option("--broker.address", default="http://localhost:8080", help="Of any broker, or several with commas."),
    dotted_option("--broker.cert-file", default=None, help="Shown to brokers."),
    dotted_option("--broker.cert-key-file", default=None, help="The key of that certificate."),
    dotted_option("--broker.trusted-ca-file", default=None, help="Whom to trust as a broker."),
    dotted_option("--broker.auth-keys", default=None, help="Keys in base64: the first signs tokens for you."),
    dotted_option("--broker.auth-token", default=None, help="A token to show, if there are no keys."),
    dotted_option("--broker.timeout", type=Duration(), default="10s", help="Waits so long for a broker to be there."),
    # Ours keeps routes anyway, and brokers that cannot be reached are passed by.
    dotted_option("--broker.cache.size", type=int, default=0, hidden=True),
    dotted_option("--broker.cache.ttl", type=Duration(), default="1m", hidden=True),
    dotted_option(
        "--log.level", type=click.Choice(list(LOG_LEVELS)), default="warn", help="What is logged, to stderr."
    ),
    dotted_option("--log.format", type=click.Choice(LOG_FORMATS), default="text", help="How."),
)


def broker_options(command: Decorated) -> Decorated:
    """The flags of all commands that speak to brokers."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class Selector(click.ParamType[LabelSelector]):
    """A LabelSelector."""

    name = "selector"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> LabelSelector:
        if isinstance(value, LabelSelector):
            return value
        try:
            return LabelSelector.parse(value)
        except ValidationError as error:
            self.fail(f"{error}. Write it like name=my/journal, name:prefix=my/ or app=web", param, ctx)


def selector_option(required: bool = True) -> Callable[[Decorated], Decorated]:
    return click.option(
        "-l",
        "--selector",
        type=Selector(),
        required=required,
        default=None if required else "",
        help="Which journals, such as name=my/journal or name:prefix=my/.",
    )


def settings_of(given: Given, file_root: Path | None = None) -> ClientSettings:
    files = [given[f"broker_{name}"] for name in ("cert_file", "cert_key_file", "trusted_ca_file")]
    keys = given["broker_auth_keys"]
    return ClientSettings(
        tuple(endpoint_of(address.strip()) for address in given["broker_address"].split(",")),
        given["zone"],
        Keys.parse(keys) if keys else None,
        None if keys else given["broker_auth_token"],
        PeerTls(*(Path(file) if file else None for file in files)) if any(files) else None,
        file_root,
    )


def run(given: Given, body: Callable[[Client], Awaitable[T]], file_root: Path | None = None) -> T:
    """Run `body` with a client, once a broker has answered. Errors become messages that say what to do next."""
    log_format = LogFormat.JSON if given["log_format"] == "json" else LogFormat.TEXT
    set_up_logs(sys.stderr, LOG_LEVELS[given["log_level"]], log_format)
    try:
        return asyncio.run(_with_client(given, body, file_root))
    except GazetteError as error:
        raise click.ClickException(told(error)) from error
    except BaseExceptionGroup as group:
        # Of several tasks that failed together, one is enough to tell.
        raise _plain(group) from group


def _plain(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return click.ClickException(told(error)) if isinstance(error, GazetteError) else error


async def _with_client(given: Given, body: Callable[[Client], Awaitable[T]], file_root: Path | None) -> T:
    async with Client(settings=settings_of(given, file_root)) as client:
        await wait_reachable(client, given["broker_timeout"])
        return await body(client)


async def wait_reachable(client: Client, timeout_s: float) -> None:
    """Until a broker answers. Says so when that takes time, and raises an UnavailableError when it takes too long."""
    nothing = LabelSelector.parse("name=gazctl/is-anybody-there")
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    has_told = False
    while True:
        try:
            await client.list(nothing, retry=NEVER)
            return
        except UnavailableError as error:
            if loop.time() + _PAUSE_S > until_s:
                raise
            if not has_told:
                notice(f"Waiting up to {timeout_s:g} s for a broker: {error}")
                has_told = True
        except GazetteError:
            # It is there. What it has against us will be told by what we came for.
            return
        await asyncio.sleep(_PAUSE_S)


@asynccontextmanager
async def patience(what: str) -> AsyncIterator[None]:
    """Around something that is tried again in silence: whoever waits is told what for."""
    loop = asyncio.get_running_loop()
    timer = loop.call_later(_PATIENCE_S, notice, f"Still waiting for {what} ...")
    try:
        yield
    finally:
        timer.cancel()


async def matched(client: Client, selector: LabelSelector) -> Listing:
    """The journals that match. That there are none is an error."""
    async with patience("the list of journals"):
        listing = await client.list(selector)
    if not len(listing):
        raise nothing_matches(selector)
    return listing


def nothing_matches(selector: LabelSelector) -> click.ClickException:
    return click.ClickException(f"no journals match {str(selector)!r}: `gazctl journals list` shows all that there are")


_ADVICE = {
    Status.JOURNAL_NOT_FOUND: "`gazctl journals list` shows all that there are",
    Status.ETCD_TRANSACTION_FAILED: (
        "Somebody has changed a journal since it was listed, or it exists already: take its revision from "
        "`gazctl journals list -o yaml`, or write `revision: -1` for whatever there is"
    ),
    Status.NOT_ALLOWED: "Its flags do not allow that: look at them with `gazctl journals list -o yaml`",
    Status.INDEX_HAS_GREATER_OFFSET: (
        "Nobody who is there can prove where the journal ends: it goes on by itself once a broker returns that has its "
        "last bytes (`gazctl journals list --heads` shows which are missing). If none ever will, "
        "`gazctl journals reset-head` lets appends go on without them"
    ),
    Status.INSUFFICIENT_JOURNAL_BROKERS: "`gazctl brokers list` shows whether there are as many as it asks for",
    Status.NO_JOURNAL_PRIMARY_BROKER: "`gazctl journals list -p -r` shows who holds it; try again in some seconds",
    Status.FRAGMENT_STORE_UNHEALTHY: "`gazctl journals store-health STORE_URL` tries it again",
    Status.SUSPENDED: "It is suspended, and resumes with the next append",
}


def told(error: GazetteError) -> str:
    """An error, what else is known of it, and what to do next."""
    return " ".join([_told(error), *getattr(error, "__notes__", ())])


def _told(error: GazetteError) -> str:
    text = str(error)
    match error:
        case RefusedError():
            what = f"{error.status.name}: {error.detail}" if error.detail else error.status.name
            advice = _ADVICE.get(error.status) or error.remedy.value.capitalize()
            return f"{what}. {advice}."
        case UnavailableError():
            advice = "Is a broker running there? `gazctl up` starts a cluster here; --broker.address names another one"
        case UnknownOutcomeError():
            advice = "Read the end of the journal to see; or append again with --at-least-once, if twice does no harm"
        case UnauthenticatedError():
            advice = "Give --broker.auth-keys or --broker.auth-token"
        case PermissionDeniedError():
            advice = "The token does not allow it: ask for one that does, or give --broker.auth-keys"
        case _:
            return text
    return f"{text}. {advice}."
