# SPDX-License-Identifier: Apache-2.0
"""Rules and boards on a real Prometheus that scrapes a fleet of simulated nodes with 8 GPUs.

    python -m benchmarks.monitoring [--nodes 1000] [--minutes 6] [-o json]

Each node is a target with the exporter's own text format: the metrics that rules and boards use, with owners on seven
of eight GPUs, and values that change with each scrape. One GPU in a hundred has all faults, so that alerts fire. A node
is scraped every 30 s, as the rules are evaluated. After the first two minutes the server's own duration of each
evaluation is read once per interval; medians and maxima by group. Then each query of the boards is asked once. The
simulated nodes use the same machine: figures are upper bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from dovetail.agent.exporter.counter_list import default
from dovetail.agent.exporter.kinds import Kind
from dovetail.agent.exporter.text import Series, Writer, labels_of
from dovetail.monitoring.boards import BOARDS
from dovetail.monitoring.rules import ALERTS, RECORDINGS, rule_file
from dovetail.monitoring.thresholds import resolved
from tools.prometheus.server import Prometheus

GPUS = 8
INTERVAL_S = 30
WARM_S = 120
_JOB_GPUS = 7
"""Of each node; the last GPU is free."""
_FAULTY_EVERY = 100
"""One GPU in so many has every fault at once: each alert about GPUs fires all the time."""
_STEADY = {
    "DCGM_FI_DEV_GPU_TEMP": (55, 96),
    "DCGM_FI_DEV_MEMORY_TEMP": (60, 96),
    "dovetail_gpu_slowdown_margin_celsius": (30, -1),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": (0, 9),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (0, 1),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": (0, 1),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": (0, 1),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": (0, 9),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": (0, 9),
    "dovetail_gpu_fabric_ready": (1, 0),
    "dovetail_gpu_xids_total": (0, 1),
    "dovetail_gpu_xid_last_seconds": (0, 1),
    "dovetail_gpu_healthy": (1, 0),
    "dovetail_gpu_unowned_memory_bytes": (0, 1 << 30),
    "dovetail_gpu_expected": (8, 8),
    "dovetail_gpu_found": (8, 7),
    "dovetail_exporter_reading_age_seconds": (1, 100),
    "dovetail_exporter_owners_age_seconds": (1, 1),
}
"""By kind the value on a healthy GPU and on a faulty one; of a counter, per second. The other kinds are random."""
_LABELLED = {"dovetail_gpu_throttle_seconds_total", "dovetail_gpu_health_state", "dovetail_gpu_processes"}
_REASONS = (
    "power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability", "hw_thermal", "hw_power_brake",
)  # fmt: skip
_STATES = ("healthy", "degraded", "quarantined", "draining")
_HOLDERS = ("owner", "other_pod", "no_pod", "gone")


def used_kinds() -> list[Kind]:
    """The kinds that rules and boards name."""
    texts = [*(rule.expr for rule in RECORDINGS), *(rule.expr for rule in ALERTS)]
    texts += [query.expr for board in BOARDS for panel in board.panels for query in panel.queries]
    everything = " ".join(texts)
    return [kind for kind in default().values() if kind.type != "label" and kind.name in everything]


class Fleet:
    """The nodes' texts. A scrape of node i is at /i."""

    def __init__(self, nodes: int) -> None:
        self.kinds = used_kinds()
        self._chance = random.Random(1)
        self._labels = [[self._device(node, gpu) for gpu in range(GPUS)] for node in range(nodes)]
        self._writers = [Writer(self.kinds) for _ in range(nodes)]
        self._started_s = time.monotonic()

    def _device(self, node: int, gpu: int) -> str:
        name = f"gpu-{node:04}"
        labels = [
            ("gpu", str(gpu)), ("UUID", f"GPU-{node:08x}-0000-4000-8000-{gpu:012x}"),
            ("pci_bus_id", f"00000000:{gpu + 16:02x}:00.0"), ("device", f"nvidia{gpu}"),
            ("modelName", "NVIDIA H100 80GB HBM3"), ("hostname", name), ("Hostname", name),
            ("DCGM_FI_DRIVER_VERSION", "580.82.07"),
        ]  # fmt: skip
        if gpu < _JOB_GPUS:
            pod = f"train-{node // 4}-{node % 4}"
            labels += [
                ("namespace", f"team-{node % 20}"), ("pod", pod), ("container", "main"), ("pod_uid", f"uid-{node}"),
                ("queue", f"team-{node % 20}"), ("job", f"train-{node // 4}"), ("owner", "ada"),
            ]  # fmt: skip
        return labels_of(labels)

    def text(self, node: int) -> str:
        grown = time.monotonic() - self._started_s
        labelled = _labelled(grown)
        series = [
            Series(labels, self._values(node, gpu, grown), labelled) for gpu, labels in enumerate(self._labels[node])
        ]
        return "".join(self._writers[node].write(series).values())

    def _values(self, node: int, gpu: int, grown_s: float) -> dict[str, float]:
        use = self._chance.random()
        faulty = (node * GPUS + gpu) % _FAULTY_EVERY == 0
        found = {}
        for kind in self.kinds:
            if kind.name in _STEADY:
                found[kind.name] = _STEADY[kind.name][faulty] * (grown_s if kind.type == "counter" else 1.0)
            elif kind.name == "dovetail_gpu_allocated_share":
                found[kind.name] = float(gpu < _JOB_GPUS)
            elif kind.name not in _LABELLED:
                found[kind.name] = use * (1.0 if kind.name.startswith("DCGM_FI_PROF_") else 60.0)
        return found


def _labelled(grown_s: float) -> dict[str, tuple[tuple[str, str, float], ...]]:
    """The kinds with one more label, as a healthy GPU has them."""
    return {
        "dovetail_gpu_throttle_seconds_total": tuple(
            ("reason", name, 0.01 * grown_s * (name == "power")) for name in _REASONS
        ),
        "dovetail_gpu_health_state": tuple(("state", name, float(name == "healthy")) for name in _STATES),
        "dovetail_gpu_processes": tuple(("holder", name, float(name == "owner")) for name in _HOLDERS),
    }


async def _served(fleet: Fleet) -> web.AppRunner:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=fleet.text(int(request.match_info["node"])))

    app = web.Application()
    app.router.add_get("/{node:[0-9]+}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


def _config(address: str, nodes: int) -> dict[str, Any]:
    static = [{"targets": [address], "labels": {"__metrics_path__": f"/{node}", "instance": f"gpu-{node:04}"}}
              for node in range(nodes)]  # fmt: skip
    return {"scrape_configs": [{"job_name": "dovetail-agent", "honor_labels": True, "static_configs": static}]}


def _expressions() -> Iterator[str]:
    for board in BOARDS:
        for panel in board.panels:
            for query in panel.queries:
                text = board.expression(query).replace("$__rate_interval", "2m")
                for variable in board.variables:
                    text = text.replace(f"${variable.name}", ".*")
                yield text


async def measure(nodes: int, minutes: float) -> dict[str, Any]:
    fleet = Fleet(nodes)
    runner = await _served(fleet)
    host, port = runner.addresses[0][:2]
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "rules.yaml"
        rules.write_text(yaml.safe_dump(rule_file(resolved({"interval": f"{INTERVAL_S}s"}))))
        server = Prometheus(
            {}, [rules], scrape_s=INTERVAL_S, evaluate_s=INTERVAL_S, config=_config(f"{host}:{port}", nodes)
        )
        await asyncio.to_thread(server.start)
        try:
            return await _watched(server, fleet, minutes)
        finally:
            await asyncio.to_thread(server.stop)
            await runner.cleanup()


async def _watched(server: Prometheus, fleet: Fleet, minutes: float) -> dict[str, Any]:
    took: dict[str, list[float]] = {}
    await asyncio.sleep(WARM_S)
    for _ in range(max(1, round((minutes * 60 - WARM_S) / INTERVAL_S))):
        await asyncio.sleep(INTERVAL_S)
        for group in await asyncio.to_thread(server.groups):
            if group.errors:
                raise SystemExit(f"error: {group.name}: {group.errors}")
            took.setdefault(group.name, []).append(group.evaluation_s)
    queries = []
    for expression in _expressions():
        began_s = time.perf_counter()
        await asyncio.to_thread(server.query, expression)
        queries.append(time.perf_counter() - began_s)
    up = await asyncio.to_thread(server.query, "count(up == 1)")
    head = await asyncio.to_thread(server.query, 'count({__name__=~".+"})')
    return {
        "nodes_up": int(up[0].value),
        "kinds": len(fleet.kinds),
        "series": int(head[0].value),
        "groups": {name: {"median_s": statistics.median(each), "max_s": max(each)} for name, each in took.items()},
        "queries": {"count": len(queries), "median_s": statistics.median(queries), "max_s": max(queries)},
    }


def show(found: dict[str, Any]) -> str:
    rows = [("group", "median s", "max s")]
    rows += [(name, f"{one['median_s']:.3f}", f"{one['max_s']:.3f}") for name, one in found["groups"].items()]
    queries = found["queries"]
    rows.append((f"{queries['count']} board queries", f"{queries['median_s']:.3f}", f"{queries['max_s']:.3f}"))
    head = f"{found['nodes_up']} nodes up, {found['kinds']} kinds, {found['series']} series with those of rules"
    return "\n".join([head, *(f"{name:28}{median:>10}{most:>10}" for name, median, most in rows)])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Rules and boards on a real Prometheus with many nodes.")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=6)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    found = asyncio.run(measure(options.nodes, options.minutes))
    print(json.dumps(found) if options.output == "json" else show(found))


if __name__ == "__main__":
    main()
