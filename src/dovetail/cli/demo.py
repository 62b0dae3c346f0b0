# SPDX-License-Identifier: Apache-2.0
"""`dovetail demo`: a cluster in memory, the real scheduler on it, and what became of four jobs."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from dovetail.cli.cluster import now_ms, run, snapshot
from dovetail.cli.why import show
from dovetail.core.policy import Policy
from dovetail.kube.config import ClusterConfig
from dovetail.playground import Playground
from dovetail.scheduler.serve import Options
from dovetail.scheduler.serve import run as run_scheduler
from dovetail.views.why import Why, unhurried, why

_PATIENCE_S = 20.0
_TRAIN_SECONDS = 2
_JOBS = """\
train     a gang: 3 pods x 4 GPUs that start together, close to each other; runs 2 s
notebook  one pod, 1 GPU
eval      a gang: 2 pods x 4 GPUs; only 3 GPUs are left while train runs
huge      one pod that wants 16 GPUs of one node; no node has more than 8
"""
Document = dict[str, object]


@click.command(name="demo")
@click.option("--keep", is_flag=True, help="Leave the cluster running for kubectl until Ctrl-C.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(keep: bool, output: str) -> None:
    """Run a small cluster on this machine and show what Dovetail does with it.

    Two nodes of 8 GPUs in one rack, in memory, served as a Kubernetes API; the same scheduler that runs on a real
    cluster; four jobs. Needs no cluster, no container and no GPU.
    """
    logging.basicConfig(level="ERROR")
    console = Console(stderr=output == "json")
    stages = run(_demo(console, keep=keep, quiet=output == "json"), "the demo's cluster")
    if output == "json":
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(stages), indent=2) + b"\n")


async def _demo(console: Console, *, keep: bool, quiet: bool) -> dict[str, list[Why]]:
    began_s = time.monotonic()
    playground = Playground()
    url = await playground.start()
    config = ClusterConfig(url)
    for name in ("gpu-node-1", "gpu-node-2"):
        playground.put(_node(name))
    console.print("A cluster with 2 nodes of 8 GPUs, in one rack. Four jobs are submitted:")
    console.print(_JOBS, highlight=False)
    scheduler = asyncio.ensure_future(run_scheduler(config, Options(leader_elect=False, listen="")))
    try:
        for document in (_group("train", 3), *(_pod(f"train-{i}", 4, "train", _TRAIN_SECONDS) for i in range(3))):
            playground.put(document)
        await _until(config, scheduler, lambda answers: _states(answers, "train") == {"Bound"})
        for document in _jobs():
            playground.put(document)
        settled = await _until(config, scheduler, lambda answers: _states(answers, "notebook") == {"Bound"})
        explained: set[str] = set()
        if not quiet:
            _print(console, f"After {time.monotonic() - began_s:.1f} s", settled, explained)
        later = await _until(config, scheduler, lambda answers: _states(answers, "eval") == {"Bound"})
        if not quiet:
            _print(
                console,
                f"After {time.monotonic() - began_s:.1f} s: train has finished, eval has its GPUs",
                later,
                explained,
            )
            console.print(
                "Try it on your cluster: [bold]dovetail scheduler[/bold], then [bold]dovetail why POD[/bold]."
            )
        if keep:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "kubeconfig"
                playground.kubeconfig(path)
                console.print(f"The cluster goes on until Ctrl-C:\n  export KUBECONFIG={path}\n  kubectl get pods")
                await scheduler
        return {"settled": settled, "later": later}
    finally:
        scheduler.cancel()
        await asyncio.gather(scheduler, return_exceptions=True)
        await playground.stop()


async def _until(
    config: ClusterConfig, scheduler: asyncio.Future[None], done: Callable[[list[Why]], bool]
) -> list[Why]:
    """Ask `why` for every pod, again and again, until it is as wanted."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        answers = await _ask(config)
        if done(answers):
            return answers
        if scheduler.done():
            scheduler.result()
        if time.monotonic() > deadline_s:
            raise click.ClickException(f"the demo did not get there within {_PATIENCE_S:g} s; last seen: {answers}")
        await asyncio.sleep(0.2)


async def _ask(config: ClusterConfig) -> list[Why]:
    state = await snapshot(config, unhurried(Policy()), "dovetail")
    keys = sorted(pod.key for pod in state.roster.pods.values())
    return [why(state, key, now_ms()) for key in keys]


def _states(answers: list[Why], *jobs: str) -> set[str]:
    return {answer.state for answer in answers if answer.pod.split("/")[1].split("-")[0] in jobs}


def _print(console: Console, title: str, answers: list[Why], explained: set[str]) -> None:
    """Where everybody is, and why, unless that was explained before."""
    console.rule(title)
    table = Table("pod", "state", "node", box=None, pad_edge=False)
    for answer in answers:
        colour = {"Bound": "green", "Never": "red"}.get(answer.state, "yellow")
        table.add_row(answer.pod, f"[{colour}]{answer.state}[/{colour}]", answer.node)
    console.print(table)
    console.print()
    for answer in answers:
        if answer.code and answer.message not in explained:
            explained.add(answer.message)
            show(answer, console)
            console.print()


def _node(name: str) -> Document:
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    labels = {
        "kubernetes.io/hostname": name,
        "dovetail.dev/rack": "rack-1",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def _jobs() -> list[Document]:
    return [
        _pod("notebook", 1),
        _group("eval", 2),
        *(_pod(f"eval-{i}", 4, group="eval") for i in range(2)),
        _pod("huge", 16),
    ]


def _group(name: str, count: int) -> Document:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}},
    }


def _pod(name: str, gpus: int, group: str = "", seconds: int = 0) -> Document:
    limits = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {"playground.dovetail.dev/run-seconds": str(seconds)} if seconds else {},
        },
        "spec": {
            "schedulerName": "dovetail",
            **({"schedulingGroup": {"podGroupName": group}} if group else {}),
            "containers": [{"name": "main", "image": "busybox", "resources": {"limits": limits}}],
        },
    }
