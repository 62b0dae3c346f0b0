# SPDX-License-Identifier: Apache-2.0
"""`dovetail idle-policy`."""

from __future__ import annotations

import logging

import click

from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.log import log_options, start_log
from dovetail.cli.quantities import DurationParam
from dovetail.cli.service import address_option, first_of, serve
from dovetail.cli.watchdog import watchdog_option
from dovetail.kube.api.errors import KubeError

_log = logging.getLogger("dovetail.idlepolicy")
_LEAST_NOTIFY_S = 600
"""Agents report pods that are idle for that long."""


@click.command(name="idle-policy")
@kubeconfig_options
@click.option(
    "--notify-after", "notify_after_s", type=DurationParam(_LEAST_NOTIFY_S), default="1h", show_default=True,
    help="The owner of a pod gets a notice when it is idle for that long.",
)  # fmt: skip
@click.option(
    "--act-after", "act_after_s", type=DurationParam(_LEAST_NOTIFY_S), default="4h", show_default=True,
    help="A workload whose owner consents is stopped when all of its pods are idle for that long.",
)  # fmt: skip
@click.option(
    "--grace", "grace_s", type=DurationParam(), default="1h", show_default=True,
    help="It is stopped that long after the notice at the earliest.",
)  # fmt: skip
@click.option(
    "--acts-per-hour", type=click.IntRange(1, 60), default=10, show_default=True, help="How many are stopped at most."
)
@click.option(
    "--exempt-namespace", "exempt", metavar="NAMESPACE", multiple=True,
    help="No notice and no act in this namespace. May be repeated.",
)  # fmt: skip
@address_option("--listen", "0.0.0.0:10357", 'HOST:PORT for health and metrics; "" for none.')
@watchdog_option
@log_options
def command(
    kubeconfig: str | None,
    context: str | None,
    notify_after_s: float,
    act_after_s: float,
    grace_s: float,
    acts_per_hour: int,
    exempt: tuple[str, ...],
    listen: str,
    watchdog_s: float,
    log_level: str,
    log_format: str,
) -> None:
    """Write notices about idle pods, and suspend or scale to zero the idle workloads whose owners consent to it.

    A GPUStack with idle.enabled runs it. Runs until it gets SIGTERM or SIGINT (exit code 0).
    """
    from dovetail.idlepolicy.decision import IdlePolicy
    from dovetail.idlepolicy.run import IdlePolicyOptions, run

    if act_after_s < notify_after_s:
        raise click.UsageError("--act-after must be at least --notify-after: nothing is stopped without a notice")
    start_log(log_level, log_format)
    policy = IdlePolicy(round(1000 * notify_after_s), round(1000 * act_after_s), round(1000 * grace_s), acts_per_hour)
    options = IdlePolicyOptions(policy, frozenset(exempt), listen)
    config = config_of(kubeconfig, context)
    try:
        serve(run(config, options), _log, watchdog_s=watchdog_s)
    except* (KubeError, OSError) as errors:
        raise click.ClickException(f"{config.server}: {first_of(errors)}") from None
