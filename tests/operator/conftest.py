# SPDX-License-Identifier: Apache-2.0
"""A playground with GPUStacks for each test, and a real control plane for those that need one."""

from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace

import pytest

from dovetail.operator import reconciler
from dovetail.operator import run as running
from dovetail.operator.rollout import part
from dovetail.playground import Playground
from tests.operator.stack_world import World
from tests.order import PLANE, kept_up_to
from tools.controlplane.plane import Plane


@pytest.fixture(scope="session", autouse=True)
def no_collections() -> Iterator[None]:
    """An operator collects garbage once at its start, before it exempts what is there. Tests exempt nothing (see
    tests/conftest.py), start hundreds of operators, and each of them would look at all that there is."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(running, "gc", SimpleNamespace(collect=lambda: 0, freeze=lambda: None))
        yield


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SETTLE_S", "_APART_S"):
        monkeypatch.setattr(reconciler, name, 0.01)
    monkeypatch.setattr(reconciler, "_AGAIN_S", 0.05)
    monkeypatch.setattr(part, "_SETTLE_S", 0.01)


@pytest.fixture
async def world(short_pauses: None) -> AsyncIterator[World]:
    playground = Playground(start_delay_s=0.01, stop_delay_s=0.01)
    await playground.start()
    yield World(playground)
    await playground.stop()


@pytest.fixture(scope="session")
def stack_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A plane with kube-scheduler and what `dovetail install` applies, but for the GPUStack. It has no nodes."""
    with kept_up_to(PLANE) as kept:
        plane = kept.enter_context(Plane(scheduler=True, work_dir=tmp_path_factory.mktemp("stack-plane")))
        plane.kubectl("apply", "-k", "deploy/crds")
        plane.kubectl("apply", "-k", "deploy/operator")
        plane.kubectl("delete", "gpustacks", "--all")
        yield plane
