# SPDX-License-Identifier: Apache-2.0
"""`dovetail serve turns`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.log import log_options, start_log
from dovetail.cli.output import foreign, namespace_option
from dovetail.cli.quantities import DurationParam
from dovetail.cli.service import address_option, first_of, serve
from dovetail.kube.api.errors import KubeError

if TYPE_CHECKING:
    from dovetail.sleeping.run import InstanceTurn

_log = logging.getLogger("dovetail.turns")


@click.command(name="turns")
@namespace_option
@click.option(
    "--give",
    is_flag=True,
    help="Give the turns until a signal. Default: print which instances are awake, and which wait.",
)
@click.option("--least-awake", "least_awake_s", type=DurationParam(1), default="60s", show_default=True,
              help="How long an instance is awake at least before it has to make room.")  # fmt: skip
@click.option("--interval", "every_s", type=DurationParam(1), default="2s", show_default=True,
              help="With --give: how often the instances are asked what they do.")  # fmt: skip
@address_option("--listen", "", "With --give: HOST:PORT of the metrics.")
@log_options
@kubeconfig_options
@answer_option
def command(
    namespace: str | None, give: bool, least_awake_s: float, every_s: float, listen: str, log_level: str,
    log_format: str, kubeconfig: str | None, context: str | None, form: AnswerForm,
) -> None:  # fmt: skip
    """Show the inference engines of a namespace that take turns on GPUs, or give them their turns.

    Instances with the annotations dovetail.dev/gpu-memory-asleep and dovetail.dev/sleep-engine are placed so that each
    has its memory while it sleeps, and one of them at a time what it needs to be awake. With --give this process
    decides which, and calls the engines through the API server's proxy. Of several such processes one does it.

    Exit code 0. 1: the cluster cannot be read. 2: wrong usage.
    """
    from dovetail.cli.cluster import run as run_once
    from dovetail.sleeping.run import TurnOptions, read_turns, run

    if listen and not give:
        raise click.UsageError("--listen is for --give")
    config = config_of(kubeconfig, context)
    options = TurnOptions(namespace or config.namespace, round(least_awake_s * 1000), every_s, listen)
    if give:
        start_log(log_level, log_format)
        try:
            serve(run(config, options), _log)
        except* (KubeError, OSError) as errors:
            raise click.ClickException(f"{config.server}: {first_of(errors)}") from None
        return
    found = run_once(read_turns(config, options), config.server)
    if form.whole:
        write_answer(form, "InstanceTurn", found)
    else:
        _show(found)


def _show(found: tuple[InstanceTurn, ...]) -> None:
    if not found:
        click.echo("No instance of this namespace takes turns.")
        return
    console = Console()
    table = Table("instance", "gpus", "engine", "state", *map(right, ("awake", "asleep")), prose("because"))
    for one in found:
        table.add_row(
            foreign(one.name), foreign(",".join(one.gpus)), one.engine, one.state, f"{one.awake_mib} MiB",
            f"{one.asleep_mib} MiB", foreign(one.because),
        )  # fmt: skip
    console.print(table)
