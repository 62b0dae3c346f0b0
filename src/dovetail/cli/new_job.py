# SPDX-License-Identifier: Apache-2.0
"""The job that `dovetail run` creates: its options, its objects, their creation, and the lines that are printed."""

from __future__ import annotations

import getpass
import random
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
import yaml
from msgspec import Struct

from dovetail.advice.lint.rule import Facts
from dovetail.cli import wait_report
from dovetail.cli.logs_report import writer
from dovetail.cli.named_jobs import JobSource
from dovetail.cli.output import count, write_json
from dovetail.jobs.changes import NotDone
from dovetail.jobs.cluster import JobCluster
from dovetail.jobs.finding import NamedJob
from dovetail.jobs.gpu_request import GpuRequest, NodeOffer, offered, products_meant
from dovetail.jobs.logs import LogRequest
from dovetail.jobs.manifests import LONGEST_NAME, NEW_KINDS, JobRequest, kind_for
from dovetail.jobs.waiting import failure
from dovetail.kube.translate.annotation_values import NAME
from dovetail.kube.translate.durations import duration_ms
from dovetail.views.shape_types import ShapeError

Document = dict[str, Any]
_JOB_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""The characters of suffixes that the API server makes: runs of one name have run times in common."""
_NAMES = {"job": "Job", "jobset": "JobSet", "pytorchjob": "PyTorchJob"}
_WHY_KIND = {
    "job": "an indexed Job with a Service, as the cluster serves no JobSets",
    "jobset": "a JobSet, as the cluster serves these",
}
"""Of several nodes, where no kind was asked for."""


class RunOptions(Struct, frozen=True):
    """How a job is run, beside what it is."""

    kind: str | None
    dry_run: bool
    output: str | None
    wait: bool
    follow: bool
    force: bool
    files: tuple[str, ...]


def request_of(
    name: str, namespace: str, command: Sequence[str], scheduler_name: str, facts: Facts, options: Mapping[str, Any]
) -> JobRequest:
    """Raises UsageError, and ClickException for a model that no node has."""
    gpus: GpuRequest = options["gpus"]
    nodes = None
    if facts.nodes is not None:
        nodes = [NodeOffer(one.labels, one.allocatable) for one in facts.nodes]
    gpus = offered(gpus, nodes)
    try:
        products = products_meant(gpus, nodes)
    except ShapeError as error:
        raise click.ClickException(str(error)) from error
    user = options["user"] if options["user"] is not None else _login()
    for option, value in (("--queue", options["queue"]), ("--user", user)):
        if value and NAME.fullmatch(value) is None:
            raise click.UsageError(f"{option}: {value!r} is no name that a label can have")
    return JobRequest(
        name=_name(name, options["image"]),
        namespace=namespace,
        image=options["image"],
        command=tuple(command),
        gpus=gpus,
        nodes=options["nodes"],
        products=products,
        queue=options["queue"],
        user=user,
        runtime=options["runtime"],
        runtime_s=duration_ms(options["runtime"]) // 1000 if options["runtime"] else 0,
        cpu_milli=options["cpu_milli"] * gpus.gpus,
        memory_bytes=options["memory_bytes"] * gpus.gpus,
        env=options["env"],
        resources=options["resources"],
        annotations=options["annotations"],
        priority_class=options["priority_class"],
        scheduler_name=scheduler_name,
        compute_domain=options["compute_domain"],
    )


def _name(name: str, image: str) -> str:
    """The name of the job: one that is made of that of the image where none is asked for. Raises UsageError."""
    if not name:
        base = re.sub(r"[^a-z0-9-]+", "-", image.rpartition("/")[2].partition("@")[0].partition(":")[0].lower())
        base = base.lstrip("-0123456789")[: LONGEST_NAME - 6].strip("-") or "job"
        return f"{base}-{''.join(random.choices(_SUFFIX, k=5))}"
    if not _JOB_NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise click.UsageError(
            f"{name!r} is no name of a job: at most {LONGEST_NAME} small letters, digits and -, a letter first; the "
            "command of the job comes after --"
        )
    return name


def _login() -> str:
    """The login name as a label; "" if there is none that a label can have."""
    try:
        user = re.sub(r"[^A-Za-z0-9_.-]+", "-", getpass.getuser())[:63].strip("-_.")
    except (KeyError, OSError):
        return ""
    return user


async def kind_of(cluster: JobCluster, request: JobRequest, wanted: str | None) -> str:
    """What the job is made as. Raises NotDone for a kind that is not served."""
    if wanted is None:
        return kind_for(request.nodes, cluster.serves)
    if not cluster.serves(NEW_KINDS[wanted].resource):
        served = [kind for kind, one in NEW_KINDS.items() if cluster.serves(one.resource)]
        raise NotDone(f"the cluster serves no {_NAMES[wanted]}s: --kind {' or '.join(served)}")
    return wanted


def print_objects(made: list[Document], kind: str, output: str) -> None:
    if output == "name":
        click.echo(f"{kind}/{made[0]['metadata']['name']}")
    elif output == "json":
        write_json(made[0] if len(made) == 1 else {"apiVersion": "v1", "kind": "List", "items": made})
    else:
        click.echo(yaml.safe_dump_all(made, sort_keys=False), nl=False)


def create_job(source: JobSource, request: JobRequest, made: list[Document], kind: str, how: RunOptions) -> None:
    async def create(cluster: JobCluster) -> NamedJob:
        await cluster.create(made, source.namespace, owned=True)
        return await cluster.find(source.namespace, request.name, kind)

    job = source.run(create)
    if how.output is not None:
        print_objects(made, kind, how.output)
    else:
        click.echo(sentence(request, kind, kind_asked=how.kind is not None), err=how.follow)
    if not (how.wait or how.follow):
        return

    async def ended(cluster: JobCluster) -> NamedJob:
        if how.follow:
            everything = LogRequest()
            last = await cluster.follow_logs(
                job, everything, writer(job, everything), wait_report.EVERY_S, wait_report.shower()
            )
        else:
            last, _ = await cluster.wait(job, "done", wait_report.EVERY_S, wait_report.shower())
        return last

    try:
        last = source.run(ended)
    except KeyboardInterrupt:
        click.echo(f"The job goes on: `dovetail logs -f {job.namespace}/{job.name}` follows it.", err=True)
        sys.exit(130)
    if last.ended == "failed":
        raise click.ClickException(f"{last.title} {failure(last)}")


def sentence(request: JobRequest, kind: str, *, kind_asked: bool) -> str:
    """What is printed of a job that was created as this kind; why it is of that kind unless that was asked for."""
    gpus = request.gpus
    each = "no GPU"
    if gpus.milli:
        each = f"{gpus.milli / 1000:g} of a GPU"
    elif gpus.resource:
        name = gpus.resource.rpartition("/")[2]
        each = f"{gpus.count} {name}" if name.startswith("mig-") else count(gpus.count, "GPU")
    model = f" ({', '.join(request.products)})" if request.products else ""
    note = f" It is {_WHY_KIND[kind]}." if request.nodes > 1 and not kind_asked else ""
    pods = f"{count(request.nodes, 'pod')} with {each}" + (" each" if request.nodes > 1 else "")
    queue = f", queue {request.queue}" if request.queue else ""
    place = f"{request.namespace}/{request.name}"
    return (
        f"{_NAMES[kind]} {place} created: {pods}{model}{queue}.{note}\n"
        f"`dovetail logs -f {place}` follows it; `dovetail why {place}` explains why it waits."
    )
