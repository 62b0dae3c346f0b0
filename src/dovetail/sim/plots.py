# SPDX-License-Identifier: Apache-2.0
"""Pictures of a simulation, as PNG files.

matplotlib is imported here alone: it is slow to load, and only whoever asks for a picture pays for it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dovetail.core.events import NodeChanged, PodChanged
from dovetail.core.model import GPU, WHOLE_GPU_MILLI
from dovetail.sim.arrivals import unallocated_percent
from dovetail.sim.engine import gpu_milli
from dovetail.sim.report import Run

_BLUE, _GREY, _ORANGE = "#2563eb", "#9ca3af", "#d97706"
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_NAMED_NODES = 40
_NEARLY_FULL_PERCENT = 70


def draw_arrivals(run: Run, path: Path) -> None:
    """GPUs that are not allocated, over the GPU demand that has arrived. Raises OSError."""
    figure, axes = _figure(run)
    unallocated = sorted(unallocated_percent(run.result).items())
    arrived = [at for at, _ in unallocated]
    axes.plot(arrived, [max(0, 100 - at) for at in arrived], color=_GREY, linestyle="--", label="if every pod fitted")
    axes.plot(arrived, [percent for _, percent in unallocated], color=_BLUE, linewidth=2, label=run.policy)
    last = unallocated[-1]
    axes.annotate(f"{last[1]:.1f} %", last, xytext=(0, 8), textcoords="offset points", ha="right", color=_BLUE)
    axes.set_xlabel("GPU demand that has arrived, % of all GPUs")
    axes.set_ylabel("GPUs not allocated, %")
    # Before the cluster is nearly full, all policies look alike.
    first = _NEARLY_FULL_PERCENT if arrived[-1] > 100 else 0
    axes.set_xlim(first, arrived[-1])
    axes.set_ylim(0, 100 - first)
    axes.legend(frameon=False)
    _save(figure, path)


def draw_queue(run: Run, path: Path) -> None:
    """Allocated GPUs and waiting pods over time. Raises OSError."""
    figure, axes = _figure(run, rows=2)
    moments, capacity = run.result.moments, run.result.capacity_milli
    span_ms = moments[-1].at_ms - moments[0].at_ms
    unit_ms, unit = (_DAY_MS, "days") if span_ms > 3 * _DAY_MS else (_HOUR_MS, "hours")
    at = [(moment.at_ms - moments[0].at_ms) / unit_ms for moment in moments]
    above, below = figure.axes
    above.fill_between(at, [100 * m.allocated_milli / capacity for m in moments], step="post", color=_BLUE, alpha=0.8)
    above.set_ylabel("GPUs allocated, %")
    above.set_ylim(0, 100)
    below.step(at, [m.waiting_pods for m in moments], where="post", color=_ORANGE)
    below.set_ylabel("pods that wait")
    below.set_xlabel(f"{unit} since the first arrival")
    for axes in (above, below):
        axes.set_xlim(0, max(at[-1], 1e-9))
        axes.set_ylim(bottom=0)
    _save(figure, path)


def draw_nodes(run: Run, path: Path) -> None:
    """GPUs of each node: held before, placed now, free. Raises OSError."""
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


def _figure(run: Run, rows: int = 1) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 3 + 1.5 * rows), layout="constrained")
    axes = figure.subplots(rows, squeeze=False, sharex=True)
    figure.suptitle(f"{run.workload.name}, {run.policy}, seed {run.seed}", x=0.01, ha="left")
    for each in figure.axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="y", alpha=0.3)
    return figure, axes[0][0]


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="png", dpi=120)
