# SPDX-License-Identifier: Apache-2.0
"""`dovetail run`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.names import complete_queues
from dovetail.cli.output import namespace_option
from dovetail.cli.quantities import DurationParam
from dovetail.cli.scheduling import scheduler_name_option
from dovetail.cli.shape import beside_options, gpus_option
from dovetail.core.quantities import QuantityError, parse

KINDS = ("job", "jobset", "pytorchjob")
"""The names of `manifests.NEW_KINDS`, which are not imported for the options."""
_COMMAND = "dovetail.command"
_DASHES = "The command of the job comes after --."
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,253}")
_RESOURCE = _KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9./_-]{0,251}[A-Za-z0-9])?")


class AfterDashes(click.Command):
    """What comes after `--` is the command of the job, whatever it looks like."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, dashes, command = args, "--" in args, list[str]()
        if dashes:
            at = args.index("--")
            own, command = args[:at], args[at + 1 :]
        ctx.meta[_COMMAND] = tuple(command)
        try:
            super().parse_args(ctx, own)
        except click.NoSuchOption as error:
            if dashes:
                raise
            raise click.UsageError(f"{error.format_message()} {_DASHES}", ctx) from error
        if ctx.args:
            raise click.UsageError(f"What is {ctx.args[0]!r}? {_DASHES}", ctx)
        return ctx.args


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


def variable_pairs(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """The values of --env KEY=VALUE, checked."""
    return _pairs(_VARIABLE, "KEY=VALUE")(ctx, param, values)


def annotation_pairs(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """The values of --annotation KEY=VALUE, checked."""
    return _pairs(_KEY, "KEY=VALUE")(ctx, param, values)


def command_after_dashes() -> tuple[str, ...]:
    """What came after `--`."""
    words: tuple[str, ...] = click.get_current_context().meta[_COMMAND]
    return words


def resource_pairs(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """The values of --resource NAME=AMOUNT, checked."""
    found = _pairs(_RESOURCE, "RESOURCE=AMOUNT, such as rdma/hca=1")(ctx, param, values)
    for name, amount in found.items():
        try:
            parse(amount)
        except QuantityError as error:
            raise click.BadParameter(f"{name}: {error}") from error
    return found


def _runtime(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """As it is written: it is what the annotation of the job gets."""
    if value is not None:
        DurationParam().convert(value, param, ctx)
    return value or ""


@click.command(name="run", cls=AfterDashes, context_settings={"allow_extra_args": True})
@click.argument("name", required=False, default="")
@click.option("--image", required=True, metavar="IMAGE", help="Container image, with a tag or digest.")
@gpus_option("GPUs of each node: 8, 8xH100, 1xmig-3g.20gb, 0.5 (half of one), 0 for none.")
@click.option("--nodes", type=click.IntRange(1, 10_000), default=1, show_default=True,
              help="How many nodes: one pod for each, all of which start together.")  # fmt: skip
@click.option(
    "-q",
    "--queue",
    default="",
    metavar="QUEUE",
    help="Queue. Default: that of the namespace.",
    shell_complete=complete_queues,
)
@click.option("--time", "runtime", metavar="DURATION", default=None, callback=_runtime,
              help="Longest run time, such as 4h: pods that run longer are ended.")  # fmt: skip
@beside_options
@click.option("-e", "--env", metavar="KEY=VALUE", multiple=True, callback=variable_pairs,
              help="Environment variable; may be repeated.")  # fmt: skip
@click.option("--resource", "resources", metavar="NAME=AMOUNT", multiple=True, callback=resource_pairs,
              help="A further resource of each pod, such as rdma/hca=1; may be repeated.")  # fmt: skip
@click.option("--annotation", "annotations", metavar="KEY=VALUE", multiple=True, callback=annotation_pairs,
              help="Annotation of the pods, such as dovetail.dev/topology-required=rack; may be repeated.")  # fmt: skip
@click.option("--compute-domain", is_flag=True,
              help="NVLink between nodes: make a ComputeDomain, and claim a channel of it in each pod.")  # fmt: skip
@click.option("--priority-class", default="", metavar="NAME", help="PriorityClass of the pods.")
@click.option(
    "--user", default=None, metavar="NAME", help="The user that the job counts for. Default: your login name."
)
@click.option("--kind", type=click.Choice(KINDS), default=None,
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
    from dovetail.cli.named_jobs import JobSource
    from dovetail.cli.new_job import RunOptions, create_job, kind_of, print_objects, request_of
    from dovetail.cli.submission import cluster_facts, examined, file_facts, report
    from dovetail.jobs.manifests import NEW_KINDS

    how = RunOptions(
        **{field: options.pop(field) for field in ("kind", "dry_run", "output", "wait", "follow", "force", "files")}
    )
    for option, value in (("--kubeconfig", kubeconfig), ("--context", context)):
        if how.files and value is not None:
            raise click.UsageError(f"--file and {option} both choose the cluster: use one of them")
    if how.files and not how.dry_run:
        raise click.UsageError("--file needs --dry-run: nothing can be created in files")
    if options["compute_domain"] and options["nodes"] < 2:
        raise click.UsageError("--compute-domain is for several nodes: a single one has NVLink without it")
    if how.dry_run and (how.wait or how.follow):
        raise click.UsageError("--dry-run creates nothing to wait for")
    config = None if how.files else config_of(kubeconfig, context)
    space = namespace or (config.namespace if config is not None else "default")
    facts = file_facts(how.files) if config is None else cluster_facts(config)
    request = request_of(name, space, command_after_dashes(), scheduler_name, facts, options)
    if config is None:
        kind = how.kind or "job"
        made, found = examined(NEW_KINDS[kind].make(request), facts)
        report(found, force=how.force)
        print_objects(made, kind, how.output or "yaml")
        return
    source = JobSource(config, scheduler_name, namespace)
    kind = source.run(lambda cluster: kind_of(cluster, request, how.kind))
    made, found = examined(NEW_KINDS[kind].make(request), facts)
    report(found, force=how.force)
    if how.dry_run:
        print_objects(made, kind, how.output or "yaml")
        return
    create_job(source, request, made, kind, how)
