# SPDX-License-Identifier: Apache-2.0
"""What `dovetail fabric measure` does: the groups, their jobs, and what the Fabric gets of the results.

Rules
- What earlier measurements marked, and this one has not judged, stays until its own time. Rings judge nothing, and a
  pair with a slow node judges no wider part.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import click
from msgspec import Struct

from dovetail.cli.cluster import ClusterSource, run
from dovetail.cli.console import Console
from dovetail.cli.named_jobs import JobSource
from dovetail.cli.wait_report import EVERY_S
from dovetail.jobs.cluster import JobCluster
from dovetail.jobs.measuring import TORCH_COMMAND, MeasureAnswer, MeasureJob, MeasureRequest, measure
from dovetail.kube.fabric_changes import write_measured
from dovetail.topology import hostlist, nccl_output
from dovetail.topology.fabric import FabricError
from dovetail.topology.fabric_measured import PAIR, FabricGroup, GroupResult, SlowResult, groups_of, with_expected
from dovetail.views.fabric_groups import expected_mbps, gpu_nodes

Document = dict[str, Any]
_MOST_GROUPS = 10_000
_MOST_NODES = 120
"""Of one group: a pod names each of its nodes in a term, and the scheduler reads so many (`kube.translate.limits`)."""


class MeasurePlan(Struct, frozen=True):
    """The groups with what is expected of each, how many GPUs each node has, and how many nodes were left out."""

    groups: tuple[FabricGroup, ...]
    expected: tuple[int, ...]
    gpus: int
    left_out: int


def planned(source: ClusterSource, options: Mapping[str, Any]) -> MeasurePlan:
    """Raises ClickException where there is nothing to measure."""
    try:
        named = frozenset(hostlist.expand(options["nodes"])) if options["nodes"] else frozenset()
    except FabricError as error:
        raise click.UsageError(f"--nodes: {error}") from error
    state = source.state()
    nodes, gpus, left_out = gpu_nodes(state, named)
    if missing := named - {node.name for node in nodes}:
        raise click.ClickException(
            f"{', '.join(sorted(missing)[:3])}: no node with {gpus} usable GPUs; see `dovetail nodes`"
        )
    levels = state.cluster.fabric.levels
    wanted = options["levels"] or (*levels, "")
    for level in wanted:
        if level not in (*levels, ""):
            known = ", ".join(levels) or "none"
            raise click.UsageError(f"--level: no node has a place at {level!r}: the levels are {known}")
    groups = tuple(groups_of(nodes, levels, wanted, options["shapes"] or (PAIR,)))
    if not groups:
        raise click.ClickException("there are no two nodes with GPUs to measure between: see `dovetail fabric show`")
    if len(groups) > _MOST_GROUPS:
        raise click.ClickException(f"{len(groups)} groups are more than {_MOST_GROUPS}: choose with --level or --nodes")
    if (most := max(len(one.nodes) for one in groups)) > _MOST_NODES:
        raise click.ClickException(
            f"a ring of {most} nodes is more than one job can name, which is {_MOST_NODES}: choose with --nodes"
        )
    return MeasurePlan(groups, tuple(expected_mbps(state, one.nodes, gpus) for one in groups), gpus, left_out)


def measured(
    source: ClusterSource, plan: MeasurePlan, options: Mapping[str, Any], command: Sequence[str]
) -> list[GroupResult]:
    """The results in the order of the plan. Raises ClickException where jobs cannot be created."""
    assert source.config is not None
    config = source.config
    run_id = f"{time.time_ns() // 1_000_000:x}"[-8:]
    jobs = [MeasureJob(f"fabric-{run_id}-{at}", one.nodes, plan.gpus) for at, one in enumerate(plan.groups)]
    request = MeasureRequest(
        namespace=options["namespace"] or config.namespace,
        image=options["image"],
        command=tuple(command) or TORCH_COMMAND,
        queue=options["queue"],
        priority_class=options["priority_class"],
        runtime=f"{round(options['runtime'])}s",
        runtime_s=round(options["runtime"]),
        wait_s=options["wait_s"],
        at_once=options["at_once"],
        resources=tuple(options["resources"].items()),
        env=tuple(options["env"].items()),
        annotations=tuple(options["annotations"].items()),
        scheduler_name=source.scheduler_name,
    )
    found: dict[str, GroupResult] = {}
    console = Console(stderr=True)

    def done(job: MeasureJob, answer: MeasureAnswer) -> None:
        at = jobs.index(job)
        found[job.name] = _result(plan.groups[at], plan.expected[at], answer)
        console.print(f"{len(found)} of {len(jobs)} measured")

    async def work(cluster: JobCluster) -> None:
        await measure(cluster, jobs, request, EVERY_S, done)

    JobSource(config, source.scheduler_name, options["namespace"]).run(work)
    return with_expected([found[job.name] for job in jobs])


def _result(group: FabricGroup, expected: int, answer: MeasureAnswer) -> GroupResult:
    try:
        return GroupResult(group, nccl_output.read(answer.text).mbps, expected)
    except FabricError as error:
        return GroupResult(group, None, expected, answer.why or str(error))


def write_results(
    source: ClusterSource, results: Sequence[GroupResult], slow: Sequence[SlowResult], keep_s: float, image: str
) -> None:
    """Write them into the Fabric. Raises ClickException."""
    assert source.config is not None

    def status_after(before: Mapping[str, Any]) -> Document:
        return status_of_results(results, slow, timedelta(seconds=keep_s), image, before, datetime.now(UTC))

    run(write_measured(source.config, status_after), source.config.server)


def status_of_results(
    results: Sequence[GroupResult],
    slow: Sequence[SlowResult],
    keep: timedelta,
    image: str,
    before: Mapping[str, Any],
    now: datetime,
) -> Document:
    """The status that `results` leave of what was `before`."""
    nodes = {one.name for one in slow if not one.level}
    counted = [one.group for one in results if one.mbps is not None and one.group.shape == PAIR and one.expected_mbps]
    seen = {mark for one in counted if not one.of or nodes.isdisjoint(one.nodes) for mark in one.marks()}
    seen |= {(one.level, one.name) for one in slow}
    kept = [
        one
        for one in before.get("slow", ())
        if (one.get("level", ""), one["name"]) not in seen and datetime.fromisoformat(one["expiresAt"]) > now
    ]
    new = [
        {
            "level": one.level, "name": one.name, "measuredMBps": one.mbps, "expectedMBps": one.expected_mbps,
            "measuredAt": _text(now), "expiresAt": _text(now + keep),
        }
        for one in slow
    ]  # fmt: skip
    by_level: dict[str, list[GroupResult]] = {}
    for one in results:
        by_level.setdefault(one.group.level, []).append(one)
    levels = [_level(level, of_level, image, now) for level, of_level in by_level.items()]
    others = [one for one in before.get("measured", ()) if one.get("level", "") not in by_level]
    return {"slow": [*kept, *new], "measured": [*others, *levels]}


def _level(level: str, results: Sequence[GroupResult], image: str, now: datetime) -> Document:
    rates = [one.mbps for one in results if one.mbps is not None]
    expected = [one.expected_mbps for one in results if one.expected_mbps]
    found: Document = {"level": level, "groups": len(results), "failed": len(results) - len(rates)}
    if rates:
        found |= {"slowestMBps": min(rates), "medianMBps": int(median(rates))}
    if expected:
        found |= {"expectedMBps": int(median(expected))}
    return {**found, "measuredAt": _text(now), "image": image[:1024]}


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
