# SPDX-License-Identifier: Apache-2.0
"""`dovetail operator`."""

from __future__ import annotations

import logging

import click

from dovetail import __version__
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.log import log_options, start_log
from dovetail.cli.service import address_option, first_of, serve
from dovetail.cli.watchdog import watchdog_option
from dovetail.kube.api.errors import KubeError
from dovetail.kube.namespaces import SYSTEM_NAMESPACE

_log = logging.getLogger("dovetail.operator")


@click.command(name="operator")
@kubeconfig_options
@click.option(
    "--image",
    default="",
    help="The image that scheduler and agents run unless the GPUStack names one. Default: that of --pod, else "
    f"dovetail:{__version__}.",
)
@click.option("--pod", metavar="NAMESPACE/NAME", default="", help="The operator's own pod.")
@click.option("--leader-elect/--no-leader-elect", default=True, show_default=True, help="Only the leader writes.")
@click.option("--lease-namespace", default=SYSTEM_NAMESPACE, show_default=True, help="Namespace of the lease.")
@click.option("--lease-name", default="dovetail-operator", show_default=True, help="Name of the lease.")
@address_option("--listen", "0.0.0.0:10353", 'HOST:PORT for health and metrics; "" for none.')
@watchdog_option
@log_options
def command(
    kubeconfig: str | None,
    context: str | None,
    image: str,
    pod: str,
    leader_elect: bool,
    lease_namespace: str,
    lease_name: str,
    listen: str,
    watchdog_s: float,
    log_level: str,
    log_format: str,
) -> None:
    """Install what a GPUStack describes, and keep it so.

    Runs until it gets SIGTERM or SIGINT (exit code 0) or loses its lease (exit code 1; its Deployment restarts it).
    """
    from dovetail.operator.run import LeaseLost, OperatorOptions, run

    start_log(log_level, log_format)
    options = OperatorOptions(
        leader_elect=leader_elect,
        lease_namespace=lease_namespace,
        lease_name=lease_name,
        listen=listen,
        image=image,
        pod=pod,
    )
    config = config_of(kubeconfig, context)
    try:
        serve(run(config, options), _log, watchdog_s=watchdog_s)
    except* (LeaseLost, KubeError, OSError) as errors:
        raise click.ClickException(f"{config.server}: {first_of(errors)}") from None
