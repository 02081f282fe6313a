"""``gazctl serve``: a broker, with the flags of Gazette's own and some more."""

from __future__ import annotations

import logging
import os
import random
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gazctl.command import LOG_FORMATS, LOG_LEVELS, Duration, ServiceCommand, Size
from gazctl.command import dotted_option as _option
from gazctl.etcd_tls import etcd_tls, etcd_tls_options
from gazctl.etcd_user import etcd_user, etcd_user_options
from protocol.errors import GazetteError, ValidationError, checked

_FIRST = ("amber", "brisk", "calm", "deft", "early", "fond", "glad", "hardy", "keen", "lucid", "mellow", "noble")
_SECOND = ("badger", "comet", "dune", "ember", "falcon", "grove", "heron", "islet", "juniper", "kestrel", "lagoon")


@click.command(cls=ServiceCommand)
@_option("--broker.zone", default="local", help="Failure domain, such as a data centre.")
@_option("--broker.id", default="", show_default="two random words", help="Its name in the zone.")
@_option("--broker.host", default="", show_default="this machine's name", help="Under which others reach it.")
@_option("--broker.port", default="0", show_default="any that is free", help="To listen on, or unix:///path.")
@_option("--broker.bind", default="", show_default="every address", help="Address of this machine to listen on.")
@_option(
    "--broker.http-port",
    default="0",
    show_default="any that is free",
    help="Of the HTTP gateway: GET, PUT, JSON, metrics; none turns it off.",
)
@_option("--broker.allow-origin", multiple=True, help="A web site whose pages may use the gateway; * is every one.")
@_option("--broker.limit", type=click.IntRange(min=0), default=1024, help="Journals it takes, as primary or replica.")
@_option(
    "--broker.spool-dir",
    default="",
    show_default="a folder of its own in the user's state directory",
    help="Where bytes are until they are in a store. Give it a disk of its own, and keep it over restarts.",
)
@_option("--broker.spool-fsync", default="never", help="never, commit, or an interval such as 100ms.")
@_option(
    "--broker.spool-budget",
    type=Size(),
    default=None,
    show_default="none",
    help="Bytes that may wait for their upload before appends do.",
)
@_option("--broker.file-root", default=None, show_default="none", help="The folder that file:/// stores are in.")
@_option("--broker.file-only", is_flag=True, help="Serve every store from the file root, whatever its URL says.")
@_option("--broker.max-append-rate", type=Size(), default=0, help="Bytes a second of one journal; 0 is no limit.")
@_option("--broker.min-append-rate", type=Size(), default=65536, help="Slower appends are aborted; 0 is never.")
@_option("--broker.max-replication", type=click.IntRange(min=1), default=9, help="Bound on what specs ask for.")
@_option("--broker.max-grpc-recv-size", type=Size(), default=4 << 20, help="The largest message it takes.")
@_option("--broker.watch-delay", type=Duration(), default="30ms", help="Gathers events of etcd for so long.")
@_option("--broker.auto-suspend", is_flag=True, help="Suspend journals that are idle and fully stored.")
@_option("--broker.report-retention", is_flag=True, help="Only log which fragments are past retention.")
@_option("--broker.discard-deleted", is_flag=True, help="Throw away what deleted journals have not uploaded yet.")
@_option(
    "--broker.auth-keys",
    default=None,
    show_default="none: everybody may do everything",
    help="Keys of tokens in base64: the first signs, all verify.",
)
@_option("--broker.server-cert-file", default=None, show_default="no TLS", help="Turns on TLS for those who connect.")
@_option("--broker.server-cert-key-file", default=None, help="The key of that certificate.")
@_option("--broker.server-ca-file", default=None, help="With it, those who connect need a certificate of this CA.")
@_option("--broker.peer-cert-file", default=None, help="Shown to other brokers.")
@_option("--broker.peer-cert-key-file", default=None, help="The key of that certificate.")
@_option("--broker.peer-ca-file", default=None, help="Whom to trust among other brokers.")
@_option("--broker.drain-timeout", type=Duration(), default="5m", help="Waits so long for others to take over.")
@_option("--etcd.address", default="http://localhost:2379", help="Endpoints, separated by commas.")
@_option("--etcd.prefix", default="/gazette/cluster", help="Of the cluster's keys.")
@_option(
    "--etcd.lease",
    type=Duration(),
    default="20s",
    envvar="ETCD_LEASE_TTL",
    help="After so long without a sign of life others take over.",
)
@etcd_user_options
@etcd_tls_options
@_option("--debug.port", default="", show_default="none", help="Serves /metrics and /readyz on a port of their own.")
@_option("--debug.private", is_flag=True, help="Serve metrics on the debug port only, and not on the gateway's.")
@_option("--log.level", type=click.Choice(list(LOG_LEVELS)), default="warn", help="What is logged.")
@_option("--log.format", type=click.Choice(LOG_FORMATS), default="text", help="How it is logged.")
def serve(**given: Any) -> None:
    """Run a broker until it is told to stop.

    On SIGTERM or Ctrl-C it hands its journals over to other brokers, uploads what it has, and exits. A second signal
    ends it at once.

    \b
    A broker for trying things out, with an etcd on this machine:
      gazctl serve --broker.id my-broker --broker.port 8080 --broker.file-root /tmp/fragments
    """
    from broker.main import serve as run_broker
    from protocol.rpc.logs import LogFormat, set_up_logs

    log_format = LogFormat.JSON if given["log_format"] == "json" else LogFormat.TEXT
    set_up_logs(sys.stderr, LOG_LEVELS[given["log_level"]], log_format)
    try:
        settings = _settings(given)
        for weakness in settings.keys.weaknesses() if settings.keys else ():
            logging.getLogger(__name__).warning("auth keys are weak", extra={"reason": weakness})
        run_broker(settings)
    except (GazetteError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except BaseExceptionGroup as group:
        _tell(group)
        sys.exit(1)


def _tell(group: BaseExceptionGroup[BaseException]) -> None:
    """Why a broker ended: in a line if that is for operators, in full if it is for us."""
    from allocator.etcd_errors import EtcdDeniedError

    expected, others = group.split((GazetteError, OSError, EtcdDeniedError))
    for error in _leaves(expected):
        remedy = ": look at --etcd.user, its password and its role" if isinstance(error, EtcdDeniedError) else ""
        click.echo(f"Error: {error}{remedy}", err=True)
    if others is not None:
        logging.getLogger(__name__).error("the broker ended by a fault of its own", exc_info=others)


def _leaves(group: BaseExceptionGroup[BaseException] | None) -> Iterator[BaseException]:
    for error in group.exceptions if group is not None else ():
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _settings(given: dict[str, Any]) -> Any:
    from broker.append_api import AppendRates
    from broker.journal_broker import BrokerPolicy
    from broker.main import BrokerSettings, EtcdSettings
    from fragment.spool_directory import FsyncMode
    from fragment.stores.open_stores import StoreSettings
    from protocol.auth import Keys
    from protocol.identifier import SUFFIX_BYTES, ZONE_BYTES, check_token
    from protocol.route import ProcessId

    own_id = ProcessId(given["broker_zone"], given["broker_id"] or _random_name())
    # Errors name the flag.
    checked("broker.zone", check_token, own_id.zone, *ZONE_BYTES)
    checked("broker.id", check_token, own_id.suffix, *SUFFIX_BYTES)
    if not re.fullmatch(r"unix:.+|[0-9]+", given["broker_port"]):
        raise ValidationError(f"expected a number, or unix:///path (got {given['broker_port']!r})", "broker.port")
    port, bind = given["broker_port"], given["broker_bind"] or "[::]"
    file_root = given["broker_file_root"]
    return BrokerSettings(
        id=own_id,
        host=given["broker_host"] or socket.gethostname(),
        spool_dir=Path(given["broker_spool_dir"] or _state_dir() / f"{own_id.zone}-{own_id.suffix}"),
        listen=port if port.startswith("unix:") else f"{bind}:{port}",
        etcd=EtcdSettings(
            endpoints=tuple(given["etcd_address"].split(",")),
            prefix=given["etcd_prefix"],
            lease_s=round(given["etcd_lease"]),
            tls=etcd_tls(given),
            user=etcd_user(given),
            watch_delay_s=given["broker_watch_delay"],
        ),
        limit=given["broker_limit"],
        max_replication=given["broker_max_replication"],
        policy=BrokerPolicy(
            rates=AppendRates(given["broker_max_append_rate"], given["broker_min_append_rate"]),
            auto_suspend=given["broker_auto_suspend"],
            report_retention=given["broker_report_retention"],
            discard_deleted=given["broker_discard_deleted"],
        ),
        stores=StoreSettings(Path(file_root) if file_root else None, given["broker_file_only"], dict(os.environ)),
        fsync=FsyncMode.parse(given["broker_spool_fsync"]),
        spool_budget=given["broker_spool_budget"],
        keys=Keys.parse(given["broker_auth_keys"]) if given["broker_auth_keys"] else None,
        server_tls=_server_tls(given),
        peer_tls=_peer_tls(given),
        receive_bytes_max=given["broker_max_grpc_recv_size"],
        drain_s=given["broker_drain_timeout"],
        http_listen="" if given["broker_http_port"] == "none" else f"{bind}:{given['broker_http_port']}",
        allow_origins=tuple(given["broker_allow_origin"]),
        debug_listen=f"{bind}:{given['debug_port']}" if given["debug_port"] else "",
        debug_private=given["debug_private"],
    )


def _server_tls(given: dict[str, Any]) -> Any:
    from protocol.rpc.tls import ServerTls

    certificate, key = given["broker_server_cert_file"], given["broker_server_cert_key_file"]
    if not certificate:
        return None
    if not key:
        raise ValidationError("a certificate needs its key", "broker.server-cert-key-file")
    ca = given["broker_server_ca_file"]
    return ServerTls(Path(certificate), Path(key), Path(ca) if ca else None)


def _peer_tls(given: dict[str, Any]) -> Any:
    from protocol.rpc.tls import PeerTls

    names = ("broker_peer_cert_file", "broker_peer_cert_key_file", "broker_peer_ca_file")
    files = [Path(given[name]) if given[name] else None for name in names]
    return PeerTls(*files) if any(files) else None


def _random_name() -> str:
    chance = random.SystemRandom()
    return f"{chance.choice(_FIRST)}-{chance.choice(_SECOND)}"


def _state_dir() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "pygazette" / "spool"
