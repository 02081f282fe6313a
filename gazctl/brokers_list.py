"""``gazctl brokers list``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import click

from allocator.etcd_client import EtcdClient
from allocator.etcd_connections import EtcdConnections
from allocator.etcd_errors import EtcdError
from allocator.keys import members_prefix
from broker.broker_member import BrokerMember
from broker.client.client import Client
from broker.client.settings import ClientSettings
from gazctl.command import Command, dotted_option
from gazctl.connection import broker_options, patience, run
from gazctl.etcd_tls import etcd_tls, etcd_tls_options
from gazctl.etcd_user import etcd_user, etcd_user_options
from gazctl.output import json_text
from gazctl.raw_calls import brokers_of, list_journals
from gazctl.table import table
from protocol.errors import GazetteError, ValidationError
from protocol.gen import journal_pb2 as pb
from protocol.selector import LabelSelector

ASK_S = 5.0
_NOTHING = LabelSelector.parse("name=gazctl/is-anybody-there")


@dataclass(slots=True)
class _Broker:
    zone: str
    id: str
    endpoint: str = ""
    journals: int = 0
    primary: int = 0
    # None if that is only known from etcd.
    limit: int | None = None
    status: str = "ok"


@click.command("list", cls=Command)
@click.option("-o", "--format", "format", type=click.Choice(["table", "json"]), default="table", show_default=True)
@dotted_option(
    "--etcd.address", default="", show_default="none", help="Ask etcd as well, which knows brokers without journals."
)
@dotted_option("--etcd.prefix", default="/gazette/cluster", help="Of the cluster's keys.")
@etcd_user_options
@etcd_tls_options
@broker_options
def brokers_list(**given: Any) -> None:
    """List brokers, what they hold, and whether they answer.

    Brokers tell of those that hold journals, and each of itself. To see all members, also those that hold nothing yet,
    give the address of etcd. It exits with 1 if a broker does not answer.

    \b
      gazctl brokers list
      gazctl brokers list --etcd.address http://localhost:2379
    """
    try:
        user, tls = etcd_user(given), etcd_tls(given)
    except (ValidationError, OSError) as error:
        raise click.ClickException(str(error)) from error
    addresses = given["etcd_address"].split(",") if given["etcd_address"] else []
    # Made where the event loop is.
    connect = partial(EtcdConnections, addresses, user=user, tls=tls) if addresses else None
    found = run(given, lambda client: _brokers(client, connect, given["etcd_prefix"]))
    if given["format"] == "json":
        for broker in found:
            click.echo(json_text({name: getattr(broker, name) for name in _Broker.__slots__}))
    else:
        rows = [
            [
                *(broker.zone, broker.id, broker.endpoint, str(broker.journals), str(broker.primary)),
                *("" if broker.limit is None else str(broker.limit), broker.status),
            ]
            for broker in found
        ]
        click.echo(table(["Zone", "ID", "Endpoint", "Journals", "Primary", "Limit", "Status"], rows))
    if any(broker.status not in ("ok", "exiting") for broker in found):
        raise SystemExit(1)


async def _brokers(client: Client, connect: Callable[[], EtcdConnections] | None, prefix: str) -> list[_Broker]:
    async with brokers_of(client.settings) as asked, patience("the list of journals"):
        listed = await list_journals(asked, LabelSelector())
    found = {} if connect is None else await _members(connect(), prefix)
    for journal in listed.journals:
        _count(found, journal.route)
    own = listed.header.process_id
    found.setdefault((own.zone, own.suffix), _Broker(own.zone, own.suffix, client.settings.addresses[0]))
    await asyncio.gather(*(_ask(client.settings, broker) for broker in found.values()))
    return [broker for _, broker in sorted(found.items())]


def _count(found: dict[tuple[str, str], _Broker], route: pb.Route) -> None:
    endpoints = route.endpoints or [""] * len(route.members)
    for at, (member, endpoint) in enumerate(zip(route.members, endpoints, strict=True)):
        broker = found.setdefault((member.zone, member.suffix), _Broker(member.zone, member.suffix))
        broker.endpoint = broker.endpoint or endpoint
        broker.journals += 1
        broker.primary += at == route.primary


async def _ask(settings: ClientSettings, broker: _Broker) -> None:
    """Whether it answers, and is the one that it is taken for."""
    if not broker.endpoint:
        broker.status = "no endpoint is known"
        return
    try:
        async with asyncio.timeout(ASK_S), brokers_of(replace(settings, addresses=(broker.endpoint,))) as asked:
            answer = (await list_journals(asked, _NOTHING)).header.process_id
    except (GazetteError, TimeoutError):
        broker.status = "does not answer"
        return
    if (answer.zone, answer.suffix) != (broker.zone, broker.id):
        broker.status = f"{answer.zone}/{answer.suffix} answers there"


async def _members(connections: EtcdConnections, prefix: str) -> dict[tuple[str, str], _Broker]:
    root = members_prefix(prefix)
    found = {}
    try:
        async with EtcdClient(connections) as etcd:
            listing = await etcd.list_prefix(root)
    except EtcdError as error:
        raise click.ClickException(
            f"etcd at {','.join(each.url for each in connections.endpoints)}: {error}"
        ) from error
    for stored in listing.keys:
        zone, _, name = stored.key.decode(errors="replace").removeprefix(root).partition("#")
        member = BrokerMember.decoded(zone, name, stored.raw)
        status = "exiting" if member.exiting else "ok"
        found[zone, name] = _Broker(zone, name, member.endpoint, limit=member.limit, status=status)
    return found
