# SPDX-License-Identifier: Apache-2.0
"""The whole agent on a stand-in machine: processes on GPUs that no pod holds are in the GPUNode until they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.agent import run
from dovetail.agent.exporter import accounting
from dovetail.kube.api.config import load_kubeconfig
from dovetail.playground import Playground
from tests.agent.agents import until
from tests.agent.whole_agent import Seat
from tests.paths import ROOT
from tests.patience import PATIENCE_S
from tools.standin.fixture import MakeStandin


@pytest.mark.slow
async def test_a_process_without_a_pod_is_in_the_gpu_node_until_it_ends(
    standin: MakeStandin, playground: Playground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_CHECK_S", 0.2)
    monkeypatch.setattr(accounting, "PERSISTS_S", 0.5)
    machine = standin("pcie-l40s")
    for pid, name in ((2, "kthreadd"), (4242, "python")):
        (machine.proc / str(pid)).mkdir(exist_ok=True)
        (machine.proc / str(pid) / "cgroup").write_text("0::/user.slice\n")
        (machine.proc / str(pid) / "comm").write_text(f"{name}\n")
    playground.put(yaml.safe_load((ROOT / "deploy/crds/gpunode.yaml").read_text()))
    playground.kubeconfig(tmp_path / "kubeconfig")
    cluster = load_kubeconfig([tmp_path / "kubeconfig"])

    def found() -> list[dict[str, Any]]:
        return [dict(one) for one in seat.statuses[-1]["foreignProcesses"]] if seat.statuses else []

    async with Seat(cluster, machine, "gpu-1", labels=False, exporter="127.0.0.1:0") as seat, seat.agent():
        machine.process(1, 4242, memory_mib=100)
        await until(lambda: bool(found()), PATIENCE_S)
        (one,) = found()
        assert (one["gpu"], one["pid"], one["holder"], one["pod"], one["memoryMiB"]) == (1, 4242, "no_pod", "", 100)
        machine.release(4242)
        await until(lambda: not found(), PATIENCE_S)
