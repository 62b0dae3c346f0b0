# SPDX-License-Identifier: Apache-2.0
"""What tests of the binder share: short waits, and a cluster with one node whose devices can be claimed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dovetail.scheduler import binder
from tests.scheduler.claimed import Cluster
from tests.scheduler.scripted import until


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binder, "_ASK_AGAIN_S", 0.001)
    monkeypatch.setattr(binder, "_PREPARE_POLL_S", 0.005)


@pytest.fixture
async def cluster(short_waits: None) -> AsyncIterator[Cluster]:
    async with Cluster().running() as cluster:
        cluster.node()
        await until(lambda: ("", "n") in cluster.mirror.nodes.known)
        yield cluster
