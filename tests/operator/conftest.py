# SPDX-License-Identifier: Apache-2.0
"""A playground with GPUStacks for each test."""

from collections.abc import AsyncIterator

import pytest

from dovetail.operator import reconciler
from dovetail.operator.rollout import part
from dovetail.playground import Playground
from tests.operator.stack_world import World


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
