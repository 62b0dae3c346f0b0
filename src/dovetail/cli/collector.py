# SPDX-License-Identifier: Apache-2.0
"""`dovetail collector`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.log import log_options, start_log
from dovetail.cli.price_options import price_options
from dovetail.cli.quantities import DurationParam
from dovetail.cli.scheduling import scheduler_name_option
from dovetail.cli.service import address_option, first_of, serve
from dovetail.cli.watchdog import watchdog_option
from dovetail.kube.api.errors import KubeError

if TYPE_CHECKING:
    from dovetail.cost.price_sources import PriceSources

_log = logging.getLogger("dovetail.collector")


@click.command(name="collector")
@kubeconfig_options
@scheduler_name_option
@click.option(
    "--store",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The file of the history; it is made if it is not there. One process writes it.",
)
@click.option(
    "--days-by-hour",
    type=click.IntRange(2, 3660),
    default=35,
    show_default=True,
    help="Days for which use is kept by hour.",
)
@click.option(
    "--days-by-day",
    type=click.IntRange(1, 3660),
    default=400,
    show_default=True,
    help="Days for which use is kept by day.",
)
@click.option(
    "--days-of-records",
    type=click.IntRange(1, 3660),
    default=400,
    show_default=True,
    help="Days for which GPUs, pods, and what they held are kept after their end.",
)
@click.option(
    "--write-every",
    "write_s",
    type=click.FloatRange(0.1, 60),
    default=5.0,
    show_default=True,
    help="Seconds between two writes; a killed process loses at most what happened since the last.",
)
@click.option(
    "--agent-namespace", metavar="NAMESPACE", default="dovetail-agent", show_default=True,
    help='Where the agents run, which know how GPUs are used; "" for no use.',
)  # fmt: skip
@address_option("--listen", "0.0.0.0:10355", 'HOST:PORT for health and metrics; "" for none.')
@address_option(
    "--answers", "", "HOST:PORT for a process that answers history, report, cost, idle and advise through the API "
    'server; "" for none.',
)  # fmt: skip
@click.option(
    "--publish-every", "publish_s", type=DurationParam(), default=None, metavar="DURATION",
    help="Publish the history at /history for a Prometheus so often, as in 10m; default: never.",
)  # fmt: skip
@click.option(
    "--publish-token", "token", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="File with the bearer token that requests for /history need: it has the names of all namespaces.",
)  # fmt: skip
@price_options
@watchdog_option
@log_options
def command(
    kubeconfig: str | None,
    context: str | None,
    scheduler_name: str,
    store: Path,
    days_by_hour: int,
    days_by_day: int,
    days_of_records: int,
    write_s: float,
    agent_namespace: str,
    listen: str,
    answers: str,
    prices: PriceSources,
    publish_s: float | None,
    token: Path | None,
    watchdog_s: float,
    log_level: str,
    log_format: str,
) -> None:
    """Write the history of a cluster into a file: GPUs, what pods held of them, and how jobs went.

    Follows the cluster as the scheduler does, decides nothing, and needs only rights to read. Runs until it gets
    SIGTERM or SIGINT. `dovetail history --store FILE` reads the file, also meanwhile. The options of prices are for the
    answers (--answers).
    """
    from dovetail.history.collector.run import CollectorOptions, run
    from dovetail.history.sqlite.retention import Retention
    from dovetail.history.store import StoreError

    if days_by_day < days_by_hour:
        raise click.UsageError("--days-by-day must be at least --days-by-hour: days are made of hours that are dropped")
    if publish_s and not listen:
        raise click.UsageError("--publish-every needs --listen: a Prometheus reads the history there")
    _check_token(publish_s, token)
    start_log(log_level, log_format)
    retention = Retention(days_by_hour, days_by_day, days_of_records)
    options = CollectorOptions(
        store,
        retention,
        scheduler_name,
        listen,
        write_s,
        agent_namespace,
        answers=answers,
        prices=prices,
        publish_s=publish_s or 0.0,
        token=token,
    )
    config = config_of(kubeconfig, context)
    try:
        serve(run(config, options), _log, watchdog_s=watchdog_s)
    except* StoreError as errors:
        raise click.ClickException(str(first_of(errors))) from None
    except* (KubeError, OSError) as errors:
        raise click.ClickException(f"{config.server}: {first_of(errors)}") from None


def _check_token(publish_s: float | None, token: Path | None) -> None:
    """Raises UsageError where the history would be published to nobody."""
    from dovetail.history.collector.endpoints import SHORTEST_TOKEN

    if publish_s is None:
        return
    if token is None:
        raise click.UsageError("--publish-every needs --publish-token: the history has the names of all namespaces")
    try:
        length = len(token.read_bytes().strip())
    except OSError as error:
        raise click.UsageError(f"--publish-token: {token} cannot be read: {error.strerror}") from error
    if length < SHORTEST_TOKEN:
        raise click.UsageError(f"--publish-token: {token} has {length} characters: use {SHORTEST_TOKEN} at least")
