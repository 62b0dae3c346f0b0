# SPDX-License-Identifier: Apache-2.0
"""The cache of downloads and of what is built from them: `$XDG_CACHE_HOME/dovetail/images`.

Rules: a file or folder in it appears only when it is complete, under a name made of a digest. One process builds at a
time.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.controlplane.binaries import PlaneUnavailable


def cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail" / "images"


def keep(path: Path, content: bytes) -> None:
    """Write a file of the cache. Raises PlaneUnavailable."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise PlaneUnavailable(f"cannot write the cache: {error}; set XDG_CACHE_HOME to a writable folder") from error


@contextmanager
def only_builder(folder: str) -> Iterator[None]:
    """Within this context no other process builds in this folder of the cache. Raises PlaneUnavailable.

    The lock is in the folder: caches that share it through a symbolic link share the lock."""
    shared = cache_dir() / folder
    try:
        shared.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlaneUnavailable(f"cannot write the cache: {error}; set XDG_CACHE_HOME to a writable folder") from error
    with (shared / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
