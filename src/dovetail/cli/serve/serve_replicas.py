# SPDX-License-Identifier: Apache-2.0
"""`dovetail serve replicas`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.log import log_options, start_log
from dovetail.cli.output import foreign, namespace_option
from dovetail.cli.prometheus import access_of, authority_option, tenant_option, token_option
from dovetail.cli.quantities import DurationParam
from dovetail.cli.service import address_option, first_of, serve
from dovetail.kube.api.errors import KubeError

if TYPE_CHECKING:
    from dovetail.replicas.count import ReplicaCount

_log = logging.getLogger("dovetail.replicas")
_MOST_REPLICAS = 10_000


@click.command(name="replicas")
@click.argument("workloads", metavar="[KIND/]NAME...", nargs=-1, required=True)
@namespace_option
@click.option("--prometheus", "url", metavar="URL", envvar="DOVETAIL_PROMETHEUS", required=True,
              help="The Prometheus with the metrics of the engines.")  # fmt: skip
@token_option
@authority_option
@tenant_option
@click.option("--requests", type=click.IntRange(1, 1 << 20), required=True,
              help="Requests, running and waiting, that a replica is to have at most.")  # fmt: skip
@click.option("--cache", "cache", type=click.IntRange(1, 100), default=80, show_default=True, metavar="PERCENT",
              help="Part of its KV cache that a replica is to use at most.")  # fmt: skip
@click.option("--min", "least", type=click.IntRange(1, _MOST_REPLICAS), default=1, show_default=True,
              help="Fewest replicas.")  # fmt: skip
@click.option("--max", "most", type=click.IntRange(1, _MOST_REPLICAS), default=100, show_default=True,
              help="Most replicas.")  # fmt: skip
@address_option("--listen", "", "HOST:PORT at which the numbers are metrics, until a signal. Default: print them once.")
@click.option("--interval", "every_s", type=DurationParam(5), default="30s", show_default=True,
              help="With --listen: how often they are worked out.")  # fmt: skip
@log_options
@kubeconfig_options
@answer_option
def command(
    workloads: tuple[str, ...], namespace: str | None, url: str, token: str | None, authority: str | None, tenant: str,
    requests: int, cache: int, least: int, most: int, listen: str, every_s: float, log_level: str, log_format: str,
    kubeconfig: str | None, context: str | None, form: AnswerForm,
) -> None:  # fmt: skip
    """Count the replicas that serving workloads need for their load and that can be placed now, for an autoscaler.

    KIND is deployment (also without KIND), statefulset or leaderworkerset. The load is that of their engines in a
    Prometheus; the running scheduler answers what can be placed, as it does to users of the namespace. With --listen
    the numbers are metrics that KEDA and HPA use. It changes nothing.

    Exit code 0. 1: something cannot be read. 2: wrong usage.
    """
    from dovetail.cli.cluster import run as run_once
    from dovetail.replicas.need import NeedTarget
    from dovetail.replicas.run import ReplicasAsked, counted, run
    from dovetail.replicas.workload import WorkloadError, named

    if least > most:
        raise click.UsageError(f"--min {least} is above --max {most}")
    config = config_of(kubeconfig, context)
    try:
        chosen = tuple(named(one) for one in dict.fromkeys(workloads))
    except WorkloadError as error:
        raise click.UsageError(str(error)) from error
    access = access_of(url, token, authority, tenant)
    asked = ReplicasAsked(namespace or config.namespace, chosen, NeedTarget(requests, cache, least, most), access)
    if listen:
        start_log(log_level, log_format)
        try:
            serve(run(config, asked, listen, every_s), _log)
        except* (KubeError, OSError) as errors:
            raise click.ClickException(f"{config.server}: {first_of(errors)}") from None
        return
    try:
        found = run_once(counted(config, asked), config.server)
    except* WorkloadError as errors:
        raise click.ClickException(str(first_of(errors))) from None
    if form.whole:
        write_answer(form, "ReplicaCount", found)
    else:
        _show(found)


def _show(found: tuple[ReplicaCount, ...]) -> None:
    console = Console()
    table = Table("workload", "kind", *map(right, ("replicas", "waiting", "needed", "desired")), prose("because"))
    for one in found:
        table.add_row(
            foreign(one.workload), one.workload_kind, str(one.current), str(one.waiting),
            *("-" if number is None else str(number) for number in (one.needed, one.desired)), foreign(one.because),
        )  # fmt: skip
    console.print(table)
