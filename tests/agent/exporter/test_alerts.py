# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes agents on stand-in machines, with the rules that Dovetail ships: a fault fires its alert,
with the pod and its queue, and only there; then it clears."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.monitoring.rules import rule_file
from dovetail.monitoring.thresholds import resolved
from tests.agent.agents import GPU
from tests.agent.exporter.fleet import SHORT, fleet
from tests.agent.fake_kubelet import pod
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane
from tools.prometheus.server import Alert, Prometheus
from tools.standin import Standin

NODES = 2


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
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(rule_file(resolved(SHORT))))
    ports = [unused_tcp_port_factory() for _ in range(NODES)]
    async with fleet(crd, standin, tmp_path, ports) as seats:
        held = []
        for i, seat in enumerate(seats):
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

        machine, uuid = seats[1].machine, held[1][0]
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

        other = seats[0].machine
        other.lose(7)
        await _until(prometheus, lambda found: _firing(found, "GpuCountMismatch"), "the alert of the lost GPU fires")
        assert [alert.labels["hostname"] for alert in _firing(prometheus, "GpuCountMismatch")] == ["gpu-0"]
        other.restore(7)
        await _until(prometheus, lambda found: not _firing(found, "GpuCountMismatch"), "it clears")
        groups = prometheus.groups()
        assert [error for group in groups for error in group.errors] == []
