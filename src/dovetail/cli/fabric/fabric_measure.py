# SPDX-License-Identifier: Apache-2.0
"""`dovetail fabric measure`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from dovetail.cli.cluster import ClusterSource, cluster_options
from dovetail.cli.names import complete_queues
from dovetail.cli.output import namespace_option
from dovetail.cli.quantities import DurationParam
from dovetail.cli.run import AfterDashes, annotation_pairs, command_after_dashes, resource_pairs, variable_pairs

if TYPE_CHECKING:
    from dovetail.topology.fabric_measured import GroupResult

_SHAPES = ("pair", "ring")


@click.command(name="measure", cls=AfterDashes, context_settings={"allow_extra_args": True})
@click.option("--image", required=True, metavar="IMAGE", help="Image with PyTorch, or with what COMMAND needs.")
@click.option("--level", "levels", metavar="KEY", multiple=True,
              help='Only inside domains of this level, "" is all nodes; may be repeated. Default: all.')  # fmt: skip
@click.option("--shape", "shapes", type=click.Choice(_SHAPES), multiple=True,
              help="Pairs find what is slow, rings measure many at once; may be repeated. Default: pair.")  # fmt: skip
@click.option("--nodes", metavar="HOSTLIST", default="", help="Only these nodes, as gpu-[01-16].")
@click.option("--at-least", "percent", type=click.IntRange(1, 100), default=80, show_default=True,
              help="What is below so many percent of the expected bandwidth is slow.")  # fmt: skip
@click.option("--keep", type=DurationParam(), default="7d", show_default=True,
              help="How long a result counts for the scheduler.")  # fmt: skip
@click.option("--at-once", type=click.IntRange(1, 256), default=8, show_default=True, help="How many jobs at once.")
@click.option("--time", "runtime", type=DurationParam(), default="10m", show_default=True,
              help="Longest run time of a job.")  # fmt: skip
@click.option("--wait", "wait_s", type=DurationParam(), default="1h", show_default=True,
              help="How long a job may take, its waiting for GPUs included.")  # fmt: skip
@click.option("-q", "--queue", default="", metavar="QUEUE", help="Queue. Default: that of the namespace.",
              shell_complete=complete_queues)  # fmt: skip
@click.option("--priority-class", default="", metavar="NAME", help="PriorityClass of the pods; a low one.")
@click.option("--resource", "resources", metavar="NAME=AMOUNT", multiple=True, callback=resource_pairs,
              help="A further resource of each pod, such as rdma/hca=1; may be repeated.")  # fmt: skip
@click.option("-e", "--env", metavar="KEY=VALUE", multiple=True, callback=variable_pairs,
              help="Environment variable; may be repeated.")  # fmt: skip
@click.option("--annotation", "annotations", metavar="KEY=VALUE", multiple=True, callback=annotation_pairs,
              help="Annotation of the pods, such as that of their networks; may be repeated.")  # fmt: skip
@click.option("--write", is_flag=True, help="Write what is slow into the Fabric: gangs use it last.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured; create nothing.")
@namespace_option
@cluster_options
def command(source: ClusterSource, dry_run: bool, write: bool, percent: int, keep: float, **options: Any) -> None:
    """Measure the network between nodes, and compare it with what is expected there.

    One job for each group of nodes, with all their GPUs and a pod on each: an all-reduce by PyTorch, or COMMAND after
    --, whose output is that of nccl-tests. Jobs are preemptible and short, so that they run in gaps. They are deleted
    at their end. Exit code 1: something is slow, or was not measured.
    """
    from dovetail.cli.fabric.measurement import measured, planned
    from dovetail.cli.fabric.measurement_report import show_plan, show_results

    if source.config is None and not dry_run:
        raise click.UsageError("--file needs --dry-run: nothing can be measured in files")
    if dry_run and write:
        raise click.UsageError("--dry-run measures nothing to --write")
    plan = planned(source, options)
    if dry_run:
        show_plan(plan)
        return
    results: list[GroupResult] = measured(source, plan, options, command_after_dashes())
    slow = show_results(results, percent)
    if write:
        from dovetail.cli.fabric.measurement import write_results

        write_results(source, results, slow, keep, options["image"])
    sys.exit(1 if slow or any(one.mbps is None for one in results) else 0)
