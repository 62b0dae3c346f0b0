# SPDX-License-Identifier: Apache-2.0
"""Growth of the cost of the core with the number of nodes, shapes, waiting pods and pods of a gang.

    python -m benchmarks.growth [--curves nodes shapes waiting gang] [--runs 3] [--plot FILE] [-o table|json]

The cluster and the pods are those of `core_speed` (nodes x 8 GPUs, 30 % of the nodes partly busy, 48 shapes, 5,000
nodes). Each curve varies one parameter. `nodes` and `shapes`: the time to place a lone pod, out of 10,000 (4 per node
if that is less). `waiting`: a step of a full cluster of 500 nodes after 20 pods have ended, with this number of
lone pods waiting that were refused before. `gang`: the time to place a gang of this number of pods x 8 GPUs that
prefers a rack.
The figures are CPU time of one process and medians of the runs. Each run is a separate process.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count

from msgspec import Struct

from benchmarks.core_speed import lone_pods, nodes, shapes, whole_gangs
from dovetail import __runs__ as runs_on
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.events import Event, PodChanged, PodRemoved
from dovetail.core.model import Pod
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE

NODES, SHAPES, PODS, ENDED, STEPS = 5_000, 48, 10_000, 20, 20
EVERYTHING = 10**6


def placing(seed: int, node_count: int = NODES, shape_count: int = SHAPES) -> float:
    """Microseconds to place a lone pod."""
    seconds, bound = lone_pods(node_count, min(PODS, 4 * node_count), shape_count, seed)
    return 1e6 * seconds / bound


def waiting(seed: int, pods: int) -> float:
    """Milliseconds of the median step."""
    rng, numbers = random.Random(seed), count()
    wanted = [request for request in shapes(SHAPES, rng) if request.gpu_milli == 0]
    state, now_ms = State(Policy(attempts_per_step=EVERYTHING)), 1_000_000
    step(state, nodes(500, "counted"), now_ms)

    def arrive(more: int) -> list[Event]:
        names = [f"p{next(numbers)}" for _ in range(more)]
        return [
            PodChanged(Pod(name, "default", name, request, created_ms=now_ms))
            for name, request in zip(names, rng.choices(wanted, k=more), strict=True)
        ]

    inbox, bound = arrive(4_000 + pods), dict[str, None]()
    took_ms: list[float] = []
    for number in range(-3, STEPS):
        if number == 0:
            gc.collect()
            gc.freeze()
        started = time.process_time()
        decisions = step(state, inbox, now_ms)
        if number >= 0:
            took_ms.append(1e3 * (time.process_time() - started))
        now_ms += 1_000
        bound |= dict.fromkeys(decision.uid for decision in decisions if isinstance(decision, Bind))
        gone = rng.sample(list(bound), ENDED)
        for uid in gone:
            del bound[uid]
        # Keep the number of waiting pods constant: at first more pods did not fit, later some have started.
        wait = [root.removeprefix(LONE) for root in state.queue.workloads()]
        inbox = [*(PodRemoved(uid, now_ms, True) for uid in [*gone, *wait[pods:]]), *arrive(max(0, pods - len(wait)))]
    return statistics.median(took_ms)


def gang(seed: int, size: int) -> float:
    """Milliseconds to place a gang. All runs use the same gangs."""
    seconds, gangs = whole_gangs(NODES, 60, size)
    return 1e3 * seconds / gangs


class Curve(Struct, frozen=True):
    """`measure(seed, x)` returns the value at x."""

    x: str
    y: str
    points: tuple[int, ...]
    measure: Callable[[int, int], float]


CURVES = {
    "nodes": Curve("nodes", "us for a lone pod", (500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000), placing),
    "shapes": Curve(
        "shapes", "us for a lone pod", (1, 10, 48, 100, 300, 1_000), lambda seed, n: placing(seed, shape_count=n)
    ),
    "waiting": Curve("pods that wait", "ms for a step", (500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000), waiting),
    "gang": Curve("pods of a gang", "ms for a gang", (2, 8, 16, 64, 256, 512), gang),
}


def plot(rows: list[dict[str, object]], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    names = list(dict.fromkeys(str(row["curve"]) for row in rows))
    for axes, name in zip(figure.subplots(2, 2).flat, names, strict=False):
        own = [row for row in rows if row["curve"] == name]
        axes.plot([row["x"] for row in own], [row["y"] for row in own], marker="o")
        axes.set(xscale="log", yscale="log", xlabel=CURVES[name].x, ylabel=CURVES[name].y)
        axes.grid(which="both", alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", choices=CURVES, nargs="+", default=list(CURVES))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--plot", metavar="FILE", help="also draw the curves, as PNG or SVG by the name's end")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--child", type=int, nargs=2, metavar=("SEED", "X"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(CURVES[options.curves[0]].measure(*options.child)))
        return
    rows: list[dict[str, object]] = []
    for name in options.curves:
        for x in CURVES[name].points:
            runs = []
            for seed in range(options.runs):
                command = [sys.executable, "-m", "benchmarks.growth", "--curves", name, "--child", str(seed), str(x)]
                runs.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
            rows.append({"curve": name, "x": x, "y": statistics.median(runs)})
            print(f"{name} {x:,}: {rows[-1]['y']:.3g}", file=sys.stderr)
    if options.plot:
        plot(rows, options.plot)
    if options.output == "json":
        print(json.dumps({"runs_on": runs_on(), "runs": options.runs, "rows": rows}, indent=1))
        return
    print(f"CPU time, medians of {options.runs} runs, {runs_on()}")
    for name in options.curves:
        print(f"\n{CURVES[name].x:>15} {CURVES[name].y:>18}")
        for row in rows:
            if row["curve"] == name:
                print(f"{row['x']:>15,} {row['y']:>18.3g}")


if __name__ == "__main__":
    main()
