# SPDX-License-Identifier: Apache-2.0
"""`dovetail scheduler`."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click

from dovetail.cli.extras import needs
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.log import log_options, start_log
from dovetail.cli.scheduling import (
    fabric_option,
    policy_option,
    quarantine_budget_option,
    scheduler_name_option,
    scoring_of,
)
from dovetail.cli.service import address_option, first_of, serve
from dovetail.cli.watchdog import watchdog_option
from dovetail.kube.api.errors import KubeError
from dovetail.kube.namespaces import SYSTEM_NAMESPACE

_log = logging.getLogger("dovetail.scheduler")


def _default_recording() -> Path | None:
    """A folder in the user's state directory (XDG Base Directory Specification); None if the user has no home."""
    try:
        home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    except RuntimeError as error:
        _log.warning("nothing is recorded: %s: set a directory by --recording, or use --no-recording", error)
        return None
    return home / "dovetail" / "recording"


@click.command(name="scheduler")
@kubeconfig_options
@scheduler_name_option
@fabric_option
@policy_option
@click.option("--leader-elect/--no-leader-elect", default=True, show_default=True, help="Only the leader writes.")
@click.option("--lease-namespace", default=SYSTEM_NAMESPACE, show_default=True, help="Namespace of the lease.")
@click.option("--lease-name", default="dovetail-scheduler", show_default=True, help="Name of the lease.")
@address_option("--listen", "0.0.0.0:10351", 'HOST:PORT for health and metrics; "" for none.')
@click.option(
    "--authorize-metrics",
    is_flag=True,
    help="Serve /metrics only for bearer tokens that the API server authorizes for it.",
)
@click.option(
    "--start-deadline",
    "start_deadline_s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds after which a gang that started only in part is released.",
)
@click.option(
    "--broken-deadline",
    "broken_deadline_s",
    type=click.FloatRange(min=0),
    default=900.0,
    show_default=True,
    help="Seconds after which a gang with a pod that failed for good is released; 0 for never.",
)
@click.option(
    "--consolidate",
    "moves_per_hour",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="The most pods to move per hour so that waiting jobs fit; 0 for none.",
)
@click.option(
    "--drain-evictions",
    "drains_per_hour",
    type=click.IntRange(min=0),
    default=120,
    show_default=True,
    help="The most pods to evict per hour from nodes in maintenance; 0 for none.",
)
@quarantine_budget_option(
    "The most GPU nodes to quarantine at a time, as a number or a part of all, then at least one; 0 for none.",
    default="10%",
)
@click.option(
    "--recording",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory in which decisions are recorded, for `dovetail replay`. Default: dovetail/recording in "
    "$XDG_STATE_HOME or ~/.local/state.",
)
@click.option("--no-recording", is_flag=True, help="Do not record.")
@click.option(
    "--recording-mib",
    type=click.IntRange(min=16),
    default=512,
    show_default=True,
    help="The most MiB of the recording; the oldest segments are deleted.",
)
@click.option(
    "--divide-mig",
    is_flag=True,
    help="Let the agents repartition idle MIG GPUs for pods that wait for an instance that no GPU has.",
)
@click.option(
    "--deletion-costs/--no-deletion-costs",
    default=True,
    show_default=True,
    help="Write on GPU pods of ReplicaSets which of them a scale-down should delete first, to free whole nodes.",
)
@address_option(
    "--views",
    "",
    "HOST:PORT at which to answer views.dovetail.dev, through the API server, which must reach HOST. 0.0.0.0 or [::]: "
    'the address towards the API server. "" for none.',
)
@watchdog_option
@log_options
def command(
    kubeconfig: str | None,
    context: str | None,
    scheduler_name: str,
    fabric: tuple[str, ...],
    scoring: str,
    leader_elect: bool,
    lease_namespace: str,
    lease_name: str,
    listen: str,
    authorize_metrics: bool,
    start_deadline_s: float,
    broken_deadline_s: float,
    moves_per_hour: int,
    drains_per_hour: int,
    budget: str,
    recording: Path | None,
    no_recording: bool,
    recording_mib: int,
    divide_mig: bool,
    deletion_costs: bool,
    views: str,
    watchdog_s: float,
    log_level: str,
    log_format: str,
) -> None:
    """Schedule the pods of a cluster that name this scheduler.

    Runs until it gets SIGTERM or SIGINT (exit code 0) or loses its lease (exit code 1; its Deployment restarts it).
    """
    from dovetail.core.policy import Policy
    from dovetail.kube.translate.quarantine_budget import with_budget
    from dovetail.scheduler.binder import NotLeader
    from dovetail.scheduler.serve import LeadershipLost, SchedulerOptions, run

    if recording is not None and no_recording:
        raise click.UsageError("--recording and --no-recording exclude each other")
    if views:
        needs("views")
    start_log(log_level, log_format)
    policy = with_budget(
        Policy(
            fabric=fabric,
            attempts_per_step=64,
            start_deadline_ms=int(start_deadline_s * 1000),
            broken_deadline_ms=int(broken_deadline_s * 1000),
            moves_per_hour=moves_per_hour,
            drains_per_hour=drains_per_hour,
            scoring=scoring_of(scoring),
        ),
        budget,
    )
    options = SchedulerOptions(
        scheduler_name=scheduler_name,
        leader_elect=leader_elect,
        lease_namespace=lease_namespace,
        lease_name=lease_name,
        listen=listen,
        authorize_metrics=authorize_metrics,
        policy=policy,
        recording=None if no_recording else recording or _default_recording(),
        recording_mib=recording_mib,
        divide_mig=divide_mig,
        deletion_costs=deletion_costs,
        views=views,
    )
    config = config_of(kubeconfig, context)
    try:
        serve(run(config, options), _log, watchdog_s=watchdog_s)
    except* (LeadershipLost, NotLeader, KubeError, OSError) as errors:
        raise click.ClickException(f"{config.server}: {first_of(errors)}") from None
