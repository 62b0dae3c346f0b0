# SPDX-License-Identifier: Apache-2.0
"""The whole agent on a stand-in machine: an idle pod that is used again is taken from the GPUNode at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dovetail.agent import run
from dovetail.agent.exporter.exporting import Exporting
from dovetail.kube.api.config import load_kubeconfig
from dovetail.playground import Playground
from tests.agent.agents import until
from tests.agent.whole_agent import Seat
from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.standin.fixture import MakeStandin


@pytest.mark.slow
async def test_an_idle_pod_that_is_used_again_is_published_at_once(
    standin: MakeStandin, playground: Playground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the next renewal, which is five minutes away."""
    idle = {f"u-{i}": 1_767_268_800_000 for i in range(20)}
    monkeypatch.setattr(run, "_CHECK_S", 0.2)
    monkeypatch.setattr(Exporting, "idle", lambda _: dict(idle))
    playground.put(yaml.safe_load((ROOT / "deploy/crds/gpunode.yaml").read_text()))
    playground.kubeconfig(tmp_path / "kubeconfig")
    cluster = load_kubeconfig([tmp_path / "kubeconfig"])

    def published() -> list[str]:
        return [one["uid"] for one in seat.statuses[-1].get("idlePods", ())] if seat.statuses else []

    machine = standin("pcie-l40s")
    async with Seat(cluster, machine, "gpu-1", labels=False, exporter="127.0.0.1:0") as seat, seat.agent():
        await until(lambda: published() == list(idle), PATIENCE_S)
        # More often than an agent that starts publishes anyway.
        while idle:
            idle.popitem()
            await until(lambda: published() == list(idle), PATIENCE_S)
