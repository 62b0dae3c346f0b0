# SPDX-License-Identifier: Apache-2.0
"""Plots of a simulation, as PNG files.

Only this module imports matplotlib, which is slow to load. Commands import this module only when a plot is requested.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dovetail.core.events import NodeChanged, PodChanged
from dovetail.core.model import GPU, WHOLE_GPU_MILLI
from dovetail.sim.arrivals import unallocated_percent
from dovetail.sim.fairness import jain_over_time
from dovetail.sim.report import SimulationRun
from dovetail.sim.workload import gpu_milli

_BLUE, _GREY = "#2563eb", "#9ca3af"
_COLORS = (_BLUE, "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#db2777", "#4b5563")
_BINS = 200
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_NAMED_NODES = 40
_NEARLY_FULL_PERCENT = 70


def draw_arrivals(run: SimulationRun, path: Path) -> None:
    """Plot the unallocated GPUs over the arrived GPU demand. Raises OSError."""
    figure, axes = _figure(run)
    unallocated = sorted(unallocated_percent(run.result).items())
    arrived = [at for at, _ in unallocated]
    axes.plot(arrived, [max(0, 100 - at) for at in arrived], color=_GREY, linestyle="--", label="if every pod fitted")
    axes.plot(arrived, [percent for _, percent in unallocated], color=_BLUE, linewidth=2, label=run.policy)
    last = unallocated[-1]
    axes.annotate(f"{last[1]:.1f} %", last, xytext=(0, 8), textcoords="offset points", ha="right", color=_BLUE)
    axes.set_xlabel("GPU demand that has arrived, % of all GPUs")
    axes.set_ylabel("GPUs not allocated, %")
    # The curves of all policies coincide until the cluster is nearly full.
    first = _NEARLY_FULL_PERCENT if arrived[-1] > 100 else 0
    axes.set_xlim(first, arrived[-1])
    axes.set_ylim(0, 100 - first)
    axes.legend(frameon=False)
    _save(figure, path)


def draw_queue(run: SimulationRun, path: Path, *others: SimulationRun) -> None:
    """Plot the distribution of waiting times, and allocated GPUs and the Jain index over time, one colour for each run.

    Raises OSError."""
    runs = (run, *others)
    figure, _ = _figure(run, rows=3, named=len(runs) == 1)
    waits, allocated, even = figure.axes
    begin_ms = run.result.moments[0].at_ms
    span_ms = max(each.result.moments[-1].at_ms for each in runs) - begin_ms
    unit_ms, unit = (_DAY_MS, "days") if span_ms > 3 * _DAY_MS else (_HOUR_MS, "hours")
    for number, each in enumerate(runs):
        color = _COLORS[number % len(_COLORS)]
        waited = sorted(fate.waited_ms / _HOUR_MS for fate in each.result.fates if fate.started_ms is not None)
        share = [100 * (i + 1) / len(waited) for i in range(len(waited))]
        waits.step(waited, share, where="post", color=color, label=each.policy)
        mean = _mean_allocated(each, begin_ms, span_ms)
        allocated.plot([(i + 0.5) * span_ms / len(mean) / unit_ms for i in range(len(mean))], mean, color=color)
        indices = jain_over_time(each.result)
        even.plot([(at - begin_ms) / unit_ms for at, _ in indices], [index for _, index in indices], ".", color=color)
    waits.set_xscale("symlog", linthresh=0.1)
    waits.set_xlabel("hours that a job waited")
    waits.set_ylabel("jobs, %")
    waits.set_ylim(0, 100)
    waits.legend(frameon=False, loc="lower right")
    allocated.set_ylabel("GPUs allocated, %")
    allocated.set_ylim(0, 100)
    even.set_ylabel("Jain index of the queues")
    even.set_ylim(0, 1.05)
    even.set_xlabel(f"{unit} since the first arrival")
    for axes in (allocated, even):
        axes.set_xlim(0, max(span_ms / unit_ms, 1e-9))
    waits.set_xlim(left=0)
    _save(figure, path)


def _mean_allocated(run: SimulationRun, begin_ms: int, span_ms: int) -> list[float]:
    """The mean of allocated GPUs in % of the GPUs that were up, in `_BINS` spans of equal length."""
    held, up = [0] * _BINS, [0] * _BINS
    for now, then in pairwise(run.result.moments):
        at_ms = now.at_ms
        while at_ms < then.at_ms:
            spot = min(_BINS - 1, (at_ms - begin_ms) * _BINS // span_ms)
            until_ms = max(at_ms + 1, min(then.at_ms, begin_ms - (-(spot + 1) * span_ms // _BINS)))
            held[spot] += now.allocated_milli * (until_ms - at_ms)
            up[spot] += now.up_milli * (until_ms - at_ms)
            at_ms = until_ms
    return [100 * has / could if could else 0.0 for has, could in zip(held, up, strict=True)]


def draw_nodes(run: SimulationRun, path: Path) -> None:
    """Plot the GPUs of each node: held before, placed now, free. Raises OSError."""
    total, before = {}, Counter[str]()
    milli = {pod.uid: gpu_milli(pod.request) for job in run.workload.jobs for pod in job.pods}
    for event in run.workload.cluster:
        if isinstance(event, NodeChanged):
            total[event.node.name] = dict(event.node.allocatable).get(GPU, 0)
        elif isinstance(event, PodChanged):
            before[event.pod.node] += gpu_milli(event.pod.request)
    now = Counter[str]()
    for uid, node in run.result.placed.items():
        now[node] += milli[uid]
    figure, axes = _figure(run)
    names = [name for name, gpus in total.items() if gpus]
    held, new = [before[name] / WHOLE_GPU_MILLI for name in names], [now[name] / WHOLE_GPU_MILLI for name in names]
    axes.bar(names, [total[name] for name in names], color=_GREY, alpha=0.3, label="free")
    axes.bar(names, held, color=_GREY, label="held before")
    axes.bar(names, new, bottom=held, color=_BLUE, label="placed now")
    axes.set_ylabel("GPUs")
    if len(names) <= _NAMED_NODES:
        axes.tick_params("x", rotation=90 if len(names) > 8 else 0)
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(names)} nodes")
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    _save(figure, path)


def _figure(run: SimulationRun, rows: int = 1, *, named: bool = True) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 3 + 1.5 * rows), layout="constrained")
    axes = figure.subplots(rows, squeeze=False)
    policy = f", {run.policy}" if named else ""
    figure.suptitle(f"{run.workload.name}{policy}, seed {run.seed}", x=0.01, ha="left")
    for each in figure.axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="y", alpha=0.3)
    return figure, axes[0][0]


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="png", dpi=120)
