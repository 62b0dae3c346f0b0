# SPDX-License-Identifier: Apache-2.0
"""Rules and boards on a real Prometheus that scrapes a fleet of simulated nodes with 8 GPUs.

    python -m benchmarks.monitoring [--nodes 1000] [--minutes 6] [-o json]

Each node is a target with the exporter's own text format: the metrics that rules and boards use, with owners on seven
of eight GPUs, and values that change with each scrape. It is scraped every 30 s, as the rules are evaluated. After the
first two minutes the server's own duration of each evaluation is read once per interval; medians and maxima by group.
Then each query of the boards is asked once. The simulated nodes use the same machine: figures are upper bounds.
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
        series = [Series(labels, self._values(grown, gpu)) for gpu, labels in enumerate(self._labels[node])]
        return "".join(self._writers[node].write(series).values())

    def _values(self, grown_s: float, gpu: int) -> dict[str, float]:
        use = self._chance.random()
        found = {}
        for kind in self.kinds:
            if kind.name == "dovetail_gpu_allocated_share":
                found[kind.name] = float(gpu < _JOB_GPUS)
            elif kind.name == "dovetail_gpu_healthy":
                found[kind.name] = 1.0
            elif kind.name.startswith("DCGM_FI_PROF_"):
                found[kind.name] = use
            elif "error" in kind.help.lower() or kind.name.startswith("dovetail_gpu_xid"):
                found[kind.name] = 0.0
            else:
                found[kind.name] = grown_s if kind.type == "counter" else 100 * use
        return found


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
