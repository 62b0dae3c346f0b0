# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes agents on stand-in machines, with the rules that Dovetail ships: a fault fires its alert,
with the pod and its queue, and only there; then it clears."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.kube.api.config import load_kubeconfig
from dovetail.monitoring.rules import rule_file
from dovetail.monitoring.thresholds import resolved
from tests.agent.agents import GPU
from tests.agent.fake_kubelet import pod
from tests.agent.whole_agent import Seat
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane
from tools.prometheus.server import Alert, Prometheus
from tools.standin import Standin

NODES = 3
SHORT = {
    "interval": "1s", "settle": "1s", "xid_window": "20s", "ecc_window": "20s", "unhealthy_for": "1s",
    "count_for": "1s", "orphan_for": "2s", "fabric_for": "1s",
}  # fmt: skip
"""The waits of the rules, shorter; the conditions are the shipped ones."""


@contextmanager
def _agent(seat: Seat, port: int, log: Path) -> Iterator[None]:
    """The agent of a node as a process of its own: each has another library of NVIDIA."""
    options = seat.options
    paths = ("kubelet_config", "kubelet_folder", "state_folder", "cdi_folder", "mps_folder", "sysfs_root", "proc_root",
             "dev_root", "driver_root")  # fmt: skip
    argv = [
        sys.executable, "-c", "from dovetail.cli import main; main()", "agent", "run",
        f"--node-name={options.node_name}", f"--kubeconfig={os.environ['KUBECONFIG']}", "--listen=",
        f"--exporter=127.0.0.1:{port}", "--exporter-job-labels",
        *(f"--{path.replace('_', '-')}={getattr(options, path)}" for path in paths),
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(argv, env=os.environ | seat.machine.environment, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def _fleet(
    crd: Plane, standin: Callable[[Any], Standin], folder: Path, ports: list[int]
) -> AsyncIterator[list[Seat]]:
    """A node for each port, with all GPUs of its agent at the kubelet."""
    async with AsyncExitStack() as seats:
        fleet = []
        for i, port in enumerate(ports):
            machine = standin({"like": "dgx-h100", "seed": i + 1})
            seat = await seats.enter_async_context(Seat(load_kubeconfig([crd.kubeconfig]), machine, f"gpu-{i}"))
            seats.enter_context(_agent(seat, port, folder / f"agent-{i}.log"))
            fleet.append(seat)
        for seat in fleet:
            await seat.offers(8)
        yield fleet


def _firing(prometheus: Prometheus, name: str) -> list[Alert]:
    return [alert for alert in prometheus.alerts() if alert.name == name and alert.state == "firing"]


async def _until(prometheus: Prometheus, holds: Callable[[Prometheus], object], what: str) -> None:
    await asyncio.to_thread(prometheus.await_, holds, PATIENCE_S, what)


@pytest.mark.plane
async def test_a_fault_fires_its_alert_with_the_right_pod_and_clears(
    crd: Plane,
    standin: Callable[[Any], Standin],
    prometheus_factory: Callable[..., Prometheus],
    unused_tcp_port_factory: Callable[[], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(crd.kubeconfig))
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(rule_file(resolved(SHORT))))
    ports = [unused_tcp_port_factory() for _ in range(NODES)]
    async with _fleet(crd, standin, tmp_path, ports) as fleet:
        held = []
        for i, seat in enumerate(fleet):
            train = pod(f"train-{i}", {GPU: 2}, node=seat.name)
            train["metadata"]["labels"] = {"dovetail.dev/queue": f"team-{i}"}
            allocated = await seat.runs(train)
            held.append(sorted(id for each in allocated.values() for id in each[GPU].ids))
        targets = {"dovetail-agent": [f"127.0.0.1:{port}" for port in ports]}
        prometheus = prometheus_factory(targets, [rules], scrape_s=1.0, evaluate_s=1.0)
        await _until(
            prometheus,
            lambda found: len(found.query('gpu:allocated{pod!=""}')) == 2 * NODES,
            "each pod's GPUs are allocated",
        )
        assert not [alert for alert in prometheus.alerts() if alert.state == "firing"]

        machine, uuid = fleet[1].machine, held[1][0]
        machine.xid(next(gpu.index for gpu in machine.description.gpus if gpu.uuid == uuid), 119)
        await _until(prometheus, lambda found: _firing(found, "XidReset"), "the alert of the XID fires")
        (alert,) = _firing(prometheus, "XidReset")
        owner = [alert.labels[each] for each in ("namespace", "pod", "queue")]
        assert owner == ["default", "train-1", "team-1"]
        assert (alert.labels["UUID"], alert.labels["hostname"], alert.labels["xid"]) == (uuid, "gpu-1", "119")
        assert "train-1" in alert.annotations["description"]
        await _until(prometheus, lambda found: not _firing(found, "XidReset"), "the alert of the XID clears")
        # It is about one GPU of one node.
        others = {alert.labels.get("hostname") for alert in prometheus.alerts() if alert.state == "firing"}
        assert others <= {"gpu-1", None}

        other = fleet[2].machine
        other.lose(7)
        await _until(prometheus, lambda found: _firing(found, "GpuCountMismatch"), "the alert of the lost GPU fires")
        assert [alert.labels["hostname"] for alert in _firing(prometheus, "GpuCountMismatch")] == ["gpu-2"]
        other.restore(7)
        await _until(prometheus, lambda found: not _firing(found, "GpuCountMismatch"), "it clears")
        groups = prometheus.groups()
        assert [error for group in groups for error in group.errors] == []
