# SPDX-License-Identifier: Apache-2.0
"""`dovetail run`."""

from __future__ import annotations

import getpass
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import yaml
from msgspec import Struct

from dovetail.advice.lint.rule import Facts
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.logs import writer
from dovetail.cli.named_jobs import JobSource
from dovetail.cli.output import count, namespace_option, write_json
from dovetail.cli.quantities import DurationParam
from dovetail.cli.scheduling import scheduler_name_option
from dovetail.cli.shape import beside_options, gpus_option
from dovetail.cli.submission import cluster_facts, examined, file_facts, report
from dovetail.cli.wait import EVERY_S, shower
from dovetail.core.quantities import QuantityError, parse
from dovetail.jobs.changes import NotDone
from dovetail.jobs.cluster import JobCluster
from dovetail.jobs.finding import NamedJob
from dovetail.jobs.gpu_request import GpuRequest, NodeOffer, offered, products_meant
from dovetail.jobs.logs import LogRequest
from dovetail.jobs.manifests import LONGEST_NAME, NEW_KINDS, JobRequest, kind_for
from dovetail.jobs.waiting import failure
from dovetail.kube.translate.annotations import NAME
from dovetail.views.shape import ShapeError

Document = dict[str, Any]
_COMMAND = "dovetail.command"
_JOB_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,253}")
_RESOURCE = _KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9./_-]{0,251}[A-Za-z0-9])?")
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""The characters of suffixes that the API server makes: runs of one name have run times in common."""
_NAMES = {"job": "Job", "jobset": "JobSet", "pytorchjob": "PyTorchJob"}
_WHY_KIND = {
    ("job", True): "an indexed Job with a Service, as the cluster serves no JobSets",
    ("jobset", True): "a JobSet, as the cluster serves these",
    ("job", False): "a Job",
}


class _AfterDashes(click.Command):
    """What comes after `--` is the command of the job, whatever it looks like."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, dashes, command = args, "--" in args, list[str]()
        if dashes:
            at = args.index("--")
            own, command = args[:at], args[at + 1 :]
        ctx.meta[_COMMAND] = tuple(command)
        return super().parse_args(ctx, own)


class RunOptions(Struct, frozen=True):
    """How a job is run, beside what it is."""

    kind: str | None
    dry_run: bool
    output: str | None
    wait: bool
    follow: bool
    force: bool
    files: tuple[str, ...]


def _pairs(pattern: re.Pattern[str], what: str) -> Callable[..., dict[str, str]]:
    """The values of an option KEY=VALUE that may be repeated."""

    def read(_ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
        found = {}
        for value in values:
            key, equals, text = value.partition("=")
            if not equals or not pattern.fullmatch(key):
                raise click.BadParameter(f"{value!r} is not {what}")
            found[key] = text
        return found

    return read


def _amounts(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    found = _pairs(_RESOURCE, "RESOURCE=AMOUNT, such as rdma/hca=1")(ctx, param, values)
    for name, amount in found.items():
        try:
            parse(amount)
        except QuantityError as error:
            raise click.BadParameter(f"{name}: {error}") from error
    return found


@click.command(name="run", cls=_AfterDashes)
@click.argument("name", required=False, default="")
@click.option("--image", required=True, metavar="IMAGE", help="Container image, with a tag or digest.")
@gpus_option("GPUs of each node: 8, 8xH100, 1xmig-3g.20gb, 0.5 (half of one), 0 for none.")
@click.option("--nodes", type=click.IntRange(1, 10_000), default=1, show_default=True,
              help="How many nodes: one pod for each, all of which start together.")  # fmt: skip
@click.option("-q", "--queue", default="", metavar="QUEUE", help="Queue. Default: that of the namespace.")
@click.option("--time", "runtime", metavar="DURATION", default=None,
              help="Longest run time, such as 4h: pods that run longer are ended.")  # fmt: skip
@beside_options
@click.option("-e", "--env", metavar="KEY=VALUE", multiple=True, callback=_pairs(_VARIABLE, "KEY=VALUE"),
              help="Environment variable; may be repeated.")  # fmt: skip
@click.option("--resource", "resources", metavar="NAME=AMOUNT", multiple=True, callback=_amounts,
              help="A further resource of each pod, such as rdma/hca=1; may be repeated.")  # fmt: skip
@click.option("--annotation", "annotations", metavar="KEY=VALUE", multiple=True, callback=_pairs(_KEY, "KEY=VALUE"),
              help="Annotation of the pods, such as dovetail.dev/topology-required=rack; may be repeated.")  # fmt: skip
@click.option("--priority-class", default="", metavar="NAME", help="PriorityClass of the pods.")
@click.option(
    "--user", default=None, metavar="NAME", help="The user that the job counts for. Default: your login name."
)
@click.option("--kind", type=click.Choice(list(NEW_KINDS)), default=None,
              help="What to make. Default: a Job for one node, for several a JobSet where the cluster serves these, "
              "else an indexed Job.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the objects; create none.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json", "name"]), default=None,
              help="Print the objects, or their names, instead of a sentence.")  # fmt: skip
@click.option("--wait", is_flag=True, help="Wait until the job has ended.")
@click.option("-f", "--follow", is_flag=True, help="Show what its pods write, until the job has ended.")
@click.option("--force", is_flag=True, help="Create the objects although the linter finds errors in them.")
@click.option("--file", "files", metavar="PATH", multiple=True,
              help="With --dry-run: read the nodes from files, as `dovetail snapshot` writes them.")  # fmt: skip
@namespace_option
@scheduler_name_option
@kubeconfig_options
def command(
    name: str,
    namespace: str | None,
    scheduler_name: str,
    kubeconfig: str | None,
    context: str | None,
    **options: Any,
) -> None:
    """Run a command on GPUs: dovetail run [NAME] --image IMAGE --gpus 8xH100 --nodes 4 -- COMMAND ARGS...

    Makes a Job, a JobSet or a PyTorchJob that `dovetail lint` finds no fault in, and creates it. Without a COMMAND the
    image's own runs. A pod finds the others by MASTER_ADDR, MASTER_PORT, NNODES and NODE_RANK; torchrun needs no
    arguments. Exit code with --wait or --follow: 0 if the job succeeds, 1 if it fails.
    """
    how = RunOptions(
        **{field: options.pop(field) for field in ("kind", "dry_run", "output", "wait", "follow", "force", "files")}
    )
    if how.files and not how.dry_run:
        raise click.UsageError("--file needs --dry-run: nothing can be created in files")
    if how.dry_run and (how.wait or how.follow):
        raise click.UsageError("--dry-run creates nothing to wait for")
    config = None if how.files else config_of(kubeconfig, context)
    space = namespace or (config.namespace if config is not None else "default")
    facts = file_facts(how.files) if config is None else cluster_facts(config)
    words = click.get_current_context().meta[_COMMAND]
    request = _request(name, space, words, scheduler_name, facts, options)
    if config is None:
        kind = how.kind or "job"
        made, found = examined(NEW_KINDS[kind].make(request), facts)
        report(found, force=how.force)
        _print(made, kind, how.output or "yaml")
        return
    source = JobSource(config, space, scheduler_name)
    kind = source.run(lambda cluster: _kind(cluster, request, how.kind))
    made, found = examined(NEW_KINDS[kind].make(request), facts)
    report(found, force=how.force)
    if how.dry_run:
        _print(made, kind, how.output or "yaml")
        return
    _create(source, request, made, kind, how)


def _request(
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
    runtime = options["runtime"] or ""
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
        runtime=runtime,
        runtime_s=int(DurationParam().convert(runtime, None, None)) if runtime else 0,
        cpu_milli=options["cpu_milli"] * gpus.gpus,
        memory_bytes=options["memory_bytes"] * gpus.gpus,
        env=options["env"],
        resources=options["resources"],
        annotations=options["annotations"],
        priority_class=options["priority_class"],
        scheduler_name=scheduler_name,
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
        user = re.sub(r"[^A-Za-z0-9_.-]+", "-", getpass.getuser()).strip("-_.")[:63]
    except (KeyError, OSError):
        return ""
    return user


async def _kind(cluster: JobCluster, request: JobRequest, wanted: str | None) -> str:
    """What the job is made as. Raises NotDone for a kind that is not served."""
    if wanted is None:
        return kind_for(request.nodes, cluster.serves)
    if not cluster.serves(NEW_KINDS[wanted].resource):
        served = [kind for kind, one in NEW_KINDS.items() if cluster.serves(one.resource)]
        raise NotDone(f"the cluster serves no {_NAMES[wanted]}s: --kind {' or '.join(served)}")
    return wanted


def _print(made: list[Document], kind: str, output: str) -> None:
    if output == "name":
        click.echo(f"{kind}/{made[0]['metadata']['name']}")
    elif output == "json":
        write_json(made[0] if len(made) == 1 else {"apiVersion": "v1", "kind": "List", "items": made})
    else:
        click.echo(yaml.safe_dump_all(made, sort_keys=False), nl=False)


def _create(source: JobSource, request: JobRequest, made: list[Document], kind: str, how: RunOptions) -> None:
    async def create(cluster: JobCluster) -> NamedJob:
        await cluster.create(made, source.namespace, owned=True)
        return await cluster.find(source.namespace, request.name, kind)

    job = source.run(create)
    if how.output is not None:
        _print(made, kind, how.output)
    else:
        click.echo(_created(request, kind, how), err=how.follow)
    if not (how.wait or how.follow):
        return

    async def ended(cluster: JobCluster) -> NamedJob:
        if how.follow:
            everything = LogRequest()
            last = await cluster.follow_logs(job, everything, writer(job, everything), EVERY_S, shower())
        else:
            last, _ = await cluster.wait(job, "done", EVERY_S, shower())
        return last

    try:
        last = source.run(ended)
    except KeyboardInterrupt:
        click.echo(f"The job goes on: `dovetail logs -f {job.namespace}/{job.name}` follows it.", err=True)
        sys.exit(130)
    if last.ended == "failed":
        raise click.ClickException(f"{last.title} {failure(last)}")


def _created(request: JobRequest, kind: str, how: RunOptions) -> str:
    gpus = request.gpus
    each = "no GPU"
    if gpus.milli:
        each = f"{gpus.milli / 1000:g} of a GPU"
    elif gpus.resource:
        each = (
            count(gpus.count, "GPU")
            if not gpus.resource.rpartition("/")[2].startswith("mig-")
            else (f"{gpus.count} {gpus.resource.rpartition('/')[2]}")
        )
    model = f" ({', '.join(request.products)})" if request.products else ""
    what = _WHY_KIND.get((kind, request.nodes > 1)) if how.kind is None else None
    pods = f"{count(request.nodes, 'pod')} of {each}" if request.nodes > 1 else f"1 pod with {each}"
    queue = f", queue {request.queue}" if request.queue else ""
    note = f" It is {what}." if what and request.nodes > 1 else ""
    place = f"{request.namespace}/{request.name}"
    return (
        f"{_NAMES[kind]} {place} created: {pods}{model}{queue}.{note}\n"
        f"`dovetail logs -f {place}` follows it; `dovetail why {place}` explains why it waits."
    )
