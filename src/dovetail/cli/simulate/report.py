# SPDX-License-Identifier: Apache-2.0
"""The text report of a simulation."""

from __future__ import annotations

from dovetail.cli.console import Console, Table, prose
from dovetail.cli.markup import escape
from dovetail.cli.output import foreign, moment, span
from dovetail.sim.report import ArrivalReport, QueueReport, RequestReport, SimulationReport, SnapshotReport, ValueSpread

_SHOWN = 25


def show(report: SimulationReport, console: Console) -> None:
    """Print the report of one policy."""
    gpus = _size(report)
    seed = "" if isinstance(report, SnapshotReport) else f", seed {report.seed}"
    console.print(f"[bold]{escape(report.workload)}[/bold]: {gpus}; policy [bold]{report.policy}[/bold]{seed}")
    table = Table("", prose(""), show_header=False)
    for name, value in _rows(report):
        table.add_row(name, escape(value))
    console.print(table)
    if isinstance(report, SnapshotReport):
        _show_pods(report, console)
    if isinstance(report, QueueReport) and len(report.queues) > 1:
        _show_queues(report, console)


def _size(report: SimulationReport) -> str:
    return (
        f"{report.nodes:,} node{'' if report.nodes == 1 else 's'}, {report.gpus:,} GPU{'' if report.gpus == 1 else 's'}"
    )


def compare(reports: list[QueueReport], console: Console) -> None:
    """Print several policies as rows: mean completion time, mean and percentiles of the wait."""
    first = reports[0]
    gpus = _size(first)
    console.print(f"[bold]{escape(first.workload)}[/bold]: {gpus}; {first.jobs:,} jobs, seed {first.seed}")
    # As wide as a terminal of 80 columns.
    names = ("policy", "completion", "wait", "p50", "p95", "p99", "allocated", "Jain", "stopped")
    table = Table(*names, gap=1)
    for report in reports:
        wait, allocated, jain = report.wait_s, report.allocated_gpu_percent, report.jain_index
        times = (report.completion_s.mean, wait.mean, wait.p50, wait.p95, wait.p99)
        table.add_row(
            report.policy,
            *("-" if seconds is None else _time(seconds) for seconds in times),
            "-" if allocated is None else f"{allocated:.1f} %",
            "-" if jain is None else f"{jain:.3f}",
            f"{report.evictions + report.failures:,}",
        )
    console.print(table)


def _show_queues(report: QueueReport, console: Console) -> None:
    console.print()
    table = Table("queue", "weight", "jobs", "wait", "p95", "completion", "GPU hours", "of fair share")
    for queue in report.queues:
        times = (queue.wait_s.mean, queue.wait_s.p95, queue.completion_s.mean)
        table.add_row(
            escape(queue.queue),
            str(queue.weight),
            f"{queue.jobs:,}",
            *("-" if seconds is None else _time(seconds) for seconds in times),
            f"{queue.gpu_hours:,.0f}",
            "-" if queue.due_percent is None else f"{queue.due_percent:.0f} %",
        )
    console.print(table)


def _rows(report: SimulationReport) -> list[tuple[str, str]]:
    arrived = f"{report.arrived_pods:,} pods"
    rows = [("arrived", arrived), ("placed", f"{report.placed_pods:,} pods")]
    match report:
        case ArrivalReport():
            if report.first_refusal_percent is not None:
                requested = f"{report.first_refusal_percent:.1f} % of the GPUs"
                rows.append(("first refusal", f"when the pods requested {requested}"))
            for at, percent in report.unallocated_gpu_percent.items():
                unallocated = "no arrival there" if percent is None else f"{percent:.2f} % of the GPUs not allocated"
                rows.append((f"at {at} %", unallocated))
        case QueueReport():
            rows.append(("jobs", f"{report.jobs:,}; {report.started_jobs:,} started, {report.ended_jobs:,} ended"))
            rows.append(("wait", _spread(report.wait_s)))
            rows.append(("completion", _spread(report.completion_s)))
            rows.append(("makespan", _time(report.makespan_s)))
            if report.allocated_gpu_percent is not None:
                rows.append(("allocated", f"{report.allocated_gpu_percent:.1f} % of the GPUs, mean over the time"))
            if report.evictions or report.failures:
                stopped = f"{report.evictions:,} evictions, {report.failures:,} failures of nodes"
                rows.append(("stopped", f"{stopped}; {report.lost_gpu_hours:,.1f} GPU hours of work lost"))
            if report.step_percent is not None:
                rows.append(
                    ("step", f"{report.step_percent:.1f} % of the time of a step in the best place, mean over the work")
                )
            if report.jain_index is not None:
                rows.append(("fairness", f"Jain index {report.jain_index:.3f} over the queues, mean over the time"))
        case SnapshotReport():
            rows[0:1] = [("running", f"{report.running_pods:,} pods"), ("waiting", arrived)]
    if report.refused:
        reasons = ", ".join(f"{count:,} {code}" for code, count in report.refused.items())
        rows.append(("not placed", f"{sum(report.refused.values()):,} pods: {reasons}"))
    if report.unknown_models:
        models = ", ".join(f"{model} ({count} pods)" for model, count in report.unknown_models.items())
        rows.append(("attention", f"no node has the GPU model {models}"))
    rows.append(("took", f"{report.seconds:.2f} s"))
    return rows


def _show_pods(report: SnapshotReport, console: Console) -> None:
    if report.placed:
        console.print()
        table = Table("pod", "node")
        console.print_rows(table, [(escape(one.pod), escape(one.node)) for one in report.placed], _SHOWN)
    if report.waiting:
        console.print()
        table = Table("pod", "can start", prose("why not now"))
        rows = [(escape(one.pod), one.when, escape(f"{one.code}: {one.message}")) for one in report.waiting]
        console.print_rows(table, rows, _SHOWN)

    if report.requests:
        console.print()
        table = Table("request", "state", prose("what, or why not now"))
        rows = [(foreign(one.request), one.state, foreign(what)) for one in report.requests for what in _offers(one)]
        console.print_rows(table, rows, _SHOWN)


def _offers(one: RequestReport) -> list[str]:
    """What a request has or is offered, or why it waits."""
    found = []
    for offer in one.offers:
        on = "; ".join(f"{node} {','.join(map(str, gpus))}" for node, gpus in offer.nodes.items())
        where = f" on {on}" if on else f", to start at {moment(offer.start_ms)} at the latest"
        why = f" ({offer.why})" if offer.why else ""
        found.append(f"{offer.devices} {offer.resource} for {span(offer.duration_ms)}{where}{why}")
    return found or [f"{one.code}: {one.message}" if one.code else "it waits for its turn"]


def _spread(spread: ValueSpread) -> str:
    values = {"mean": spread.mean, "p50": spread.p50, "p95": spread.p95, "p99": spread.p99, "max": spread.max}
    return ", ".join(f"{name} {_time(value)}" for name, value in values.items() if value is not None) or "none"


def _time(seconds: float) -> str:
    for unit, length_s in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{round(seconds, 1):g} s"
