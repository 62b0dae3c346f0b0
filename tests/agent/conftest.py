# SPDX-License-Identifier: Apache-2.0
"""A machine with GPUs for the tests of the agent."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache

import msgspec
import pytest

from dovetail.agent.plugin import best, preferred_allocation
from dovetail.core.devices.layout import Layout
from dovetail.playground import Playground
from tests.paths import ROOT
from tools.controlplane.plane import Plane
from tools.standin.fixture import standin

__all__ = ["standin"]


@pytest.fixture(scope="package", autouse=True)
def folders_in_memory() -> Iterator[None]:
    """Other temporary folders are where those of pytest are, in memory where that has room. (Paths of sockets would be
    too long below the latter.) The agent waits until what it has written is on the disk, and so does a new name for a
    file of the kubelet."""
    with pytest.MonkeyPatch.context() as patch:
        if root := os.environ.get("PYTEST_DEBUG_TEMPROOT"):
            patch.setenv("TMPDIR", root)
            patch.setattr(tempfile, "tempdir", root)
        yield


@pytest.fixture
async def playground() -> AsyncIterator[Playground]:
    made = Playground()
    await made.start()
    yield made
    await made.stop()


@lru_cache(maxsize=4096)
def _best(layout: Layout, free: int, having: int, size: int) -> int:
    question = {"layout": layout, "free": free, "having": having, "size": size}
    return best.answer(msgspec.json.encode(question))


@pytest.fixture(autouse=True)
def best_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each call is slow; one test covers it."""
    monkeypatch.setattr(preferred_allocation, "best", _best)


@pytest.fixture(scope="module")
def crd(plane: Plane) -> Plane:
    plane.kubectl("apply", f"--filename={ROOT / 'deploy/crds/gpunode.yaml'}")
    plane.kubectl("wait", "--for=condition=Established", "crd", "gpunodes.dovetail.dev", "--timeout=60s")
    return plane
