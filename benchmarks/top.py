# SPDX-License-Identifier: Apache-2.0
"""How long `dovetail top` takes to redraw: from a Prometheus with many nodes, and from the text of exporters.

    python -m benchmarks.top [--nodes 1000] [--agents 100] [--rounds 7] [-o json]

The answers are synthetic, in the formats of a Prometheus and of the agent's exporter; their server is a process of its
own on loopback, and its work is not that of a real Prometheus (see `benchmarks.rules`). Medians of
- read: queries, their answers decoded, and devices joined; or the parsing of all texts;
- view: the means over the window, the classes, and the answer;
- draw: a screen of 200 x 50;
- redraw: the sum, for a new reading; `key`: after a key that sorts, without one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator

from aiohttp import web

from dovetail.cli.top.lines import painted
from dovetail.cli.top.screen import Screen
from dovetail.kube.reading import gpu_samples as names
from dovetail.kube.reading import prometheus as queries
from dovetail.kube.reading.exposition import parse
from dovetail.kube.reading.gpu_exporters import NodeSamples
from dovetail.kube.reading.gpu_samples import devices_of
from dovetail.kube.reading.prometheus import Prometheus
from dovetail.kube.reading.prometheus_api import PrometheusAccess
from dovetail.views.top_rows import TopReading, TopWindow

GPUS = 8
JOB_NODES = 4
WIDTH, HEIGHT = 200, 50
_READY_S = 60.0
_RATIOS = frozenset({names.ENGINE, names.SM, names.TENSOR, names.FP64, names.DRAM})


def labels_of(node: int, gpu: int) -> dict[str, str]:
    """The labels of a GPU; every eighth one is free."""
    own = {
        "gpu": str(gpu), "UUID": f"GPU-{node:04}-{gpu}", "pci_bus_id": f"00000000:{gpu:02X}:00.0",
        "device": f"nvidia{gpu}", "modelName": "NVIDIA H100 80GB HBM3", "hostname": f"gpu-node-{node:04}",
        "Hostname": f"gpu-node-{node:04}", "DCGM_FI_DRIVER_VERSION": "570.86.15",
    }  # fmt: skip
    if gpu == GPUS - 1:
        return own
    job = f"train-{node // JOB_NODES:03}"
    owner = {"namespace": f"team-{node % 20}", "pod": f"{job}-{node % JOB_NODES}", "container": "main"}
    return own | owner | {"pod_uid": f"uid-{node}", "queue": f"queue-{node % 20}", "job": job, "owner": "ann"}


def value_of(name: str, node: int, gpu: int) -> float:
    """Some value of the metric."""
    spread = (node * 7 + gpu * 13) % 40
    if name in _RATIOS:
        return (50 + spread) / 100
    if name == names.SHARE:
        return 0.0 if gpu == GPUS - 1 else 1.0
    if name == names.MEMORY_TOTAL:
        return 81_559.0
    return 1.0 if name == names.HEALTHY else 100.0 + spread


def _devices(nodes: int) -> Iterator[tuple[int, int]]:
    return ((node, gpu) for node in range(nodes) for gpu in range(GPUS))


def answers(nodes: int) -> dict[str, bytes]:
    """The answer of a Prometheus to each query."""
    now_s = 1_700_000_000.0

    def vector(name: str, *, full: bool = False) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for node, gpu in _devices(nodes):
            labels = labels_of(node, gpu) if full else {"UUID": f"GPU-{node:04}-{gpu}"}
            metric = labels | ({"__name__": name} if full else {})
            found.append({"metric": metric, "value": [now_s, str(value_of(name, node, gpu))]})
        return found

    def matrix() -> list[dict[str, object]]:
        return [
            {"metric": one["metric"], "values": [[now_s - back, "0.7"] for back in (60, 45, 30, 15, 0)]}
            for one in vector(names.SM)
        ]

    results = {expression: vector(name) for name, expression in (queries._VALUES | queries._CONSTANT).items()}
    results |= {queries._DEVICES: vector(names.SHARE, full=True), queries._SM: matrix()}
    return {
        query: json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
        for query, result in results.items()
    }


def serve(nodes: int, port: int) -> None:
    """A server of these answers, until it is ended."""
    bodies = answers(nodes)
    empty = b'{"status":"success","data":{"resultType":"vector","result":[]}}'

    async def answer(request: web.Request) -> web.Response:
        query = str((await request.post())["query"])
        return web.Response(body=bodies.get(query, empty), content_type="application/json")

    app = web.Application()
    app.router.add_post("/api/v1/query", answer)
    web.run_app(app, host="127.0.0.1", port=port, print=lambda *_: None)


def exporter_text(node: int) -> str:
    """What the exporter of a node answers to the requested names."""
    lines = []
    for name in sorted(names.VALUES | {names.SHARE}):
        lines.append(f"# HELP {name} Some help.\n# TYPE {name} gauge\n")
        for gpu in range(GPUS):
            labels = ",".join(f'{label}="{value}"' for label, value in labels_of(node, gpu).items())
            lines.append(f"{name}{{{labels}}} {value_of(name, node, gpu)}\n")
    return "".join(lines)


def measured_s(work: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    work()
    return time.perf_counter() - begun_s


def drawn(reading: TopReading, screen: Screen) -> str:
    """A frame as text."""
    return "".join(painted(line, colours=True) for line in screen.frame(reading, WIDTH, HEIGHT))


def shown(window: TopWindow, nodes: tuple[NodeSamples, ...]) -> dict[str, float]:
    """Seconds from a reading to the screen."""
    begun_s = time.perf_counter()
    window.add(nodes)
    reading = window.reading(time.time(), "benchmark")
    view_s = time.perf_counter() - begun_s
    screen = Screen()
    draw_s = measured_s(lambda: drawn(reading, screen))
    screen.press("s")
    return {"view": view_s, "draw": draw_s, "key": measured_s(lambda: drawn(reading, screen))}


async def of_prometheus(nodes: int, rounds: int) -> list[dict[str, float]]:
    """Seconds of each round from a Prometheus."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(nodes, port), daemon=True)
    server.start()
    try:
        deadline_s = time.monotonic() + _READY_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if time.monotonic() > deadline_s:
                raise TimeoutError("the server of the answers did not start")
            await asyncio.sleep(0.1)
        found = []
        window = TopWindow(queries.WINDOW_S, averaged=True)
        async with Prometheus(PrometheusAccess(f"http://127.0.0.1:{port}")) as source:
            for _ in range(rounds):
                begun_s = time.perf_counter()
                readings = await source.read()
                read_s = time.perf_counter() - begun_s
                if len(readings.nodes) != nodes:
                    raise ValueError(f"{len(readings.nodes)} of {nodes} nodes were read")
                found.append({"read": read_s} | shown(window, readings.nodes))
        return found
    finally:
        server.kill()


def of_exporters(agents: int, rounds: int) -> list[dict[str, float]]:
    """Seconds of each round from the texts of exporters, with a full window."""
    texts = {f"gpu-node-{node:04}": exporter_text(node) for node in range(agents)}
    window, found = TopWindow(), []
    for number in range(rounds + 15):
        nodes: list[NodeSamples] = []

        def read(nodes: list[NodeSamples] = nodes, at_s: float = 1000.0 + 2 * number) -> None:
            for node, text in texts.items():
                nodes.append(NodeSamples(node, tuple(devices_of(parse(text, names.NAMES), node)), at_s))

        read_s = measured_s(read)
        one = {"read": read_s} | shown(window, tuple(nodes))
        if number >= 15:
            found.append(one)
    return found


def medians_ms(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median of each part, in ms; the first round warms up."""
    kept = rounds[1:] or rounds
    for one in kept:
        one["redraw"] = one["read"] + one["view"] + one["draw"]
    return {part: round(1000 * statistics.median(one[part] for one in kept), 1) for part in kept[0]}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    results = {
        f"Prometheus, {options.nodes} nodes": medians_ms(asyncio.run(of_prometheus(options.nodes, options.rounds))),
        f"exporters, {options.agents} nodes": medians_ms(of_exporters(options.agents, options.rounds)),
    }
    if options.output == "json":
        print(json.dumps(results, indent=2))
        return
    for source, parts in results.items():
        print(f"{source} (medians in ms): " + ", ".join(f"{part} {ms}" for part, ms in parts.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
