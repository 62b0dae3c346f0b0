# SPDX-License-Identifier: Apache-2.0
"""Each query of each board, and those of NVIDIA's board, on a real Prometheus that scrapes an agent and a scheduler's
metrics: they return data, and panels about faults do so only during the faults."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pynvml
import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dovetail.monitoring.board import Board, Panel
from dovetail.monitoring.boards import BOARDS
from dovetail.monitoring.rules import rule_file
from dovetail.monitoring.thresholds import resolved
from dovetail.scheduler import metrics
from tests.agent.agents import GPU
from tests.agent.exporter.fleet import SHORT, fleet
from tests.agent.fake_kubelet import pod
from tests.patience import PATIENCE_S
from tools.controlplane.plane import Plane
from tools.prometheus.server import Prometheus
from tools.standin import Standin

NVIDIA = (
    'DCGM_FI_DEV_GPU_TEMP{instance=~".*", gpu=~".*"}',
    'avg(DCGM_FI_DEV_GPU_TEMP{instance=~".*", gpu=~".*"})',
    'DCGM_FI_DEV_POWER_USAGE{instance=~".*", gpu=~".*"}',
    'sum(DCGM_FI_DEV_POWER_USAGE{instance=~".*", gpu=~".*"})',
    'DCGM_FI_DEV_SM_CLOCK{instance=~".*", gpu=~".*"} * 1000000',
    'DCGM_FI_DEV_GPU_UTIL{instance=~".*", gpu=~".*"}',
    'DCGM_FI_DEV_FB_USED{instance=~".*", gpu=~".*"}',
    'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~".*", gpu=~".*"}',
)
"""The panels of NVIDIA's board 12239: temperature, its mean, power, its sum, SM clock, utilization, memory, tensor."""
LABELS = {
    "kind": "bind", "result": "bound", "cause": "preempt", "reason": "NoNodeFits", "when": "NotYet", "queue": "team",
    "namespace": "default", "resource": "gpu", "change": "node", "state": "queued",
    "class": "Burst", "answer": "accept", "workload": "ns/Deployment/llama", "headroom": "kept", "promise": "kept",
}  # fmt: skip
Key = tuple[str, str, int]
"""A query: the uid of its board, the title of its panel, and its number there."""


class Scheduler:
    """The metrics of a scheduler: the module's own, each with one child, which grow with every scrape. `evicts`: it
    also counts evictions and rejections, as during a fault."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._faults = (metrics.EVICTIONS, metrics.REJECTIONS)
        self.evicts = False
        for metric in vars(metrics).values():
            if isinstance(metric, Counter | Gauge | Histogram):
                self._registry.register(metric)

    def text(self) -> bytes:
        for metric in vars(metrics).values():
            if not isinstance(metric, Counter | Gauge | Histogram) or (metric in self._faults and not self.evicts):
                continue
            child = (
                metric.labels(**{name: LABELS[name] for name in metric._labelnames}) if metric._labelnames else metric
            )
            if isinstance(child, Histogram):
                child.observe(0.5)
            elif isinstance(child, Counter):
                child.inc()
            else:
                child.set(1)
        return generate_latest(self._registry)


@contextmanager
def _served(text: Callable[[], bytes]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _expressions(faults: bool) -> dict[Key, str]:
    """The queries as Grafana sends them with all values of the variables."""

    def filled(board: Board, panel: Panel, i: int) -> str:
        text = board.expression(panel.queries[i]).replace("$__rate_interval", "10s")
        for variable in board.variables:
            text = text.replace(f"${variable.name}", ".*")
        return text

    return {
        (board.uid, panel.title, i): filled(board, panel, i)
        for board in BOARDS
        for panel in board.panels
        if panel.faults == faults
        for i in range(len(panel.queries))
    }


def _with_data(prometheus: Prometheus, expressions: dict[Key, str]) -> set[Key]:
    return {key for key, expression in expressions.items() if prometheus.query(expression)}


async def _until_data(prometheus: Prometheus, wanted: dict[Key, str]) -> None:
    """Wait until each of these has had data once: some do only for seconds."""
    missing, until_s = set(wanted), asyncio.get_running_loop().time() + PATIENCE_S
    while missing and asyncio.get_running_loop().time() < until_s:
        missing -= await asyncio.to_thread(_with_data, prometheus, {key: wanted[key] for key in missing})
        await asyncio.sleep(0.5)
    assert not missing


def _fault(machine: Standin) -> None:
    """One of each kind on the GPUs of a node."""
    proc = machine.proc / "4242"
    proc.mkdir()
    (proc / "cgroup").write_text("0::/user.slice\n")
    (proc / "comm").write_text("python\n")
    machine.process(5, 4242, memory_mib=500)
    machine.set(4, clock_reasons=pynvml.nvmlClocksEventReasonHwThermalSlowdown)


async def _errors(machine: Standin) -> None:
    """More errors each second: their rates count."""
    for count in itertools.count(1):
        machine.xid(1, 119)
        machine.ecc(2, uncorrected=1)
        machine.link_errors(3, 0, crc_flit=5, crc_data=5)
        machine.set(3, pcie_replays=count)
        await asyncio.sleep(1)


@pytest.mark.plane
async def test_queries_return_data_and_those_about_faults_only_during_faults(
    crd: Plane,
    standin: Callable[[Any], Standin],
    prometheus_factory: Callable[..., Prometheus],
    unused_tcp_port_factory: Callable[[], int],
    tmp_path: Path,
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(rule_file(resolved(SHORT))))
    scheduler, port = Scheduler(), unused_tcp_port_factory()
    async with fleet(crd, standin, tmp_path, [port]) as (seat,):
        machine = seat.machine
        kernel = machine.proc / "2"
        kernel.mkdir(exist_ok=True)
        (kernel / "comm").write_text("kthreadd\n")
        held = await seat.runs(pod("train", {GPU: 2}, node=seat.name))
        uuids = {id for each in held.values() for id in each[GPU].ids}
        for gpu in machine.description.gpus:
            if gpu.uuid in uuids:
                machine.load(gpu.index, sm=0.8, tensor=0.5, dram=0.4, pcie_tx_mbps=100, nvlink_tx_mbps=1000)
        with _served(scheduler.text) as address:
            targets = {"dovetail-agent": [f"127.0.0.1:{port}"], "dovetail-scheduler": [address]}
            prometheus = prometheus_factory(targets, [rules], scrape_s=1.0, evaluate_s=1.0)
            about_faults = _expressions(faults=True)
            nvidia = {("12239", expression, 0): expression for expression in NVIDIA}
            await _until_data(prometheus, _expressions(faults=False) | nvidia)
            assert _with_data(prometheus, about_faults) == set()
            variables = [variable for board in BOARDS for variable in board.variables]
            for one in variables:
                assert prometheus.query(f'count by ({one.label}) ({one.metric}{{{one.label}!=""}})'), one.name

            # A pod that computes nothing is a fault too.
            await seat.runs(pod("idle", {GPU: 1}, node=seat.name))
            _fault(machine)
            scheduler.evicts = True
            errors = asyncio.create_task(_errors(machine))
            await _until_data(prometheus, about_faults)
            errors.cancel()
