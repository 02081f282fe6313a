"""How a command trusts etcd, and shows who it is, over TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gazctl.command import dotted_option


def etcd_tls_options(command: Any) -> Any:
    certificate = dotted_option("--etcd.cert-file", default=None, help="Shown to etcd.")
    key = dotted_option("--etcd.cert-key-file", default=None, help="The key of that certificate.")
    ca = dotted_option("--etcd.trusted-ca-file", default=None, help="Whom to trust as etcd.")
    return certificate(key(ca(command)))


def etcd_tls(given: dict[str, Any]) -> Any:
    from allocator.etcd_connections import EtcdTls

    names = ("etcd_trusted_ca_file", "etcd_cert_file", "etcd_cert_key_file")
    contents = [Path(given[name]).read_bytes() if given[name] else None for name in names]
    return EtcdTls(*contents) if any(contents) else None
