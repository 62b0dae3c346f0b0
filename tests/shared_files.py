# SPDX-License-Identifier: Apache-2.0
"""Files that the processes of one test run share: what one of them has made, at length, the others read."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def shared_file(request: pytest.FixtureRequest, folders: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """The path of the file of this name, which may not be there yet. Within this context no other process has it."""
    own = folders.getbasetemp()
    # That of a worker is below the folder of the run.
    folder = own.parent if hasattr(request.config, "workerinput") else own
    path = folder / f"shared-{name}"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
