"""LocalCopy: an object of a store as a file, for readers that need one. On disk: memory is what tmpfs is made of."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def local_folder(environ: Mapping[str, str], mounts: str) -> str:
    """A folder of Spark's own, or another one, the first that is on a disk."""
    candidates = [*environ.get("SPARK_LOCAL_DIRS", "").split(","), "/var/tmp", tempfile.gettempdir()]
    existing = [folder for folder in candidates if folder and os.access(folder, os.W_OK)]
    in_memory = [line.split()[1] for line in mounts.splitlines() if line.split()[2:3] in (["tmpfs"], ["ramfs"])]
    on_disk = [folder for folder in existing if not any(_lies_in(folder, mount) for mount in in_memory)]
    return (on_disk or existing)[0]


def _lies_in(folder: str, mount: str) -> bool:
    return f"{os.path.realpath(folder)}/".startswith(mount.rstrip("/") + "/") and mount != "/"


@contextmanager
def local_copy(chunks: Iterable[bytes]) -> Iterator[Path]:
    mounts = Path("/proc/mounts")
    folder = local_folder(os.environ, mounts.read_text() if mounts.exists() else "")
    with tempfile.NamedTemporaryFile(dir=folder, prefix="gazette-fragment-") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        yield Path(file.name)
