"""``make demo``: what of pygazette can be tried today, shown in a few lines."""

from __future__ import annotations

import os
from pathlib import Path

import click

from allocator.etcd_binary import find_etcd
from protocol.label import LabelSet
from protocol.selector import LabelSelector
from spark_readers.java_home import find_java_home, java_version

JOURNALS = {
    "acme/orders/part-000": LabelSet.of(("content-type", "application/x-ndjson"), ("tier", "gold")),
    "acme/orders/part-001": LabelSet.of(("content-type", "application/x-ndjson"), ("tier", "blue")),
    "acme/clicks": LabelSet.of(("content-type", "text/csv")),
}


def main() -> None:
    etcd = find_etcd()
    click.echo(f"etcd   {'.'.join(map(str, etcd.version))} is ready to run")
    java_home = find_java_home(os.environ, Path.home() / ".cache" / "pygazette" / "java")
    click.echo(f"Java   {java_version(java_home)} is ready for Spark")
    selector = LabelSelector.parse("name:prefix=acme/orders/, tier in (gold, lead)")
    match = selector.matcher("name")
    chosen = [name for name, labels in JOURNALS.items() if match(name, labels)]
    click.echo(f"Select {selector}  ->  {', '.join(chosen)}")
    click.echo("Still missing: the brokers. A later release starts a whole cluster here.")


if __name__ == "__main__":
    main()
