# SPDX-License-Identifier: Apache-2.0
"""The plan that `dovetail drain` prints."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.markup import escape
from dovetail.cli.output import count, gpus, span, start
from dovetail.core.model import Maintenance
from dovetail.core.reasons import Expected, Sure
from dovetail.views.drain_types import DrainedNode, DrainedPod, DrainPlan
from dovetail.views.names import some

_PODS_SHOWN = 40


def show(plan: DrainPlan, now_ms: int, console: Console, maintenance: Maintenance) -> None:
    """Print the plan."""
    pods = [pod for node in plan.nodes for pod in node.pods]
    if pods or plan.elsewhere:
        table = Table("node", "pod", "queue", right("GPUs"), "what", "left", right("lost GPU-min"), prose("why"))
        for pod in [*pods, *plan.elsewhere][:_PODS_SHOWN]:
            table.add_row(*_row(pod, now_ms))
        console.print(table)
        if len(pods) + len(plan.elsewhere) > _PODS_SHOWN:
            console.print(f"and {len(pods) + len(plan.elsewhere) - _PODS_SHOWN} more pods: -o json has all")
        named = [f"{count(len(plan.jobs), 'job')} ({escape(some(plan.jobs))})"] if plan.jobs else []
        named += [f"{count(plan.other_jobs, 'job')} of other namespaces"] if plan.other_jobs else []
        jobs, queues = " and ".join(named), count(len(plan.queues), "queue")
        elsewhere = f", {count(_number(plan.elsewhere), 'pod')} of them on other nodes" if plan.elsewhere else ""
        are = "is" if plan.lost_gpu_minutes == 1 else "are"
        lost = f"{count(plan.lost_gpu_minutes, 'GPU-minute')} of work {are} lost"
        console.print(
            f"{count(_number(pods) + _number(plan.elsewhere), 'pod')} of {jobs} in {queues}{elsewhere}; {lost}."
        )
    for node in plan.nodes:
        console.print(_empty(node, now_ms))
    begins_ms, mode = max(now_ms, maintenance.start_ms), maintenance.drain
    late = [pod for pod in pods if not pod.left_ms or (maintenance.start_ms and pod.left_ms > begins_ms)]
    if late and maintenance.start_ms and mode != "Evict":
        console.print(f"At {_time(begins_ms)} {count(_number(late), 'pod')} will still be there, by what is known now.")
    if late and mode == "WaitForJobs":
        console.print("--wait-checkpoint moves pods that save their work; --evict evicts the others, too.")
    elif late and mode == "WaitForCheckpoint":
        console.print("--evict evicts pods that stay, too.")
    others = sum(node.others for node in plan.nodes)
    if others:
        console.print(f"Left alone: {count(others, 'pod')} of other schedulers without GPUs, as of DaemonSets.")


def _number(pods: Iterable[DrainedPod]) -> int:
    return sum(pod.count for pod in pods)


def _row(pod: DrainedPod, now_ms: int) -> tuple[str, ...]:
    left = start(Expected(pod.sure, pod.left_ms, ""), now_ms)
    lost = str(pod.lost_gpu_minutes) if pod.lost_gpu_minutes else "-"
    return (
        pod.node,
        escape(f"{count(pod.count, 'pod')} {pod.pod}" if pod.count > 1 else pod.pod),
        escape(pod.queue) or "-",
        gpus(pod.gpus_milli),
        pod.what,
        left,
        lost,
        escape(pod.basis),
    )


def _empty(node: DrainedNode, now_ms: int) -> str:
    if not node.empty_ms:
        return f"[bold]{node.node}[/bold]: {escape(node.basis)}."
    if node.empty_ms <= now_ms:
        return f"[bold]{node.node}[/bold]: {escape(node.basis)}."
    about = "" if node.sure is Sure.KNOWN else "about "
    when = f"{about}{span(node.empty_ms - now_ms)}, at {_time(node.empty_ms)}"
    return f"[bold]{node.node}[/bold] is empty in {when}: {escape(node.basis)}."


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
