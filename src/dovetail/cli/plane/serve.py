# SPDX-License-Identifier: Apache-2.0
"""`dovetail plane serve`."""

from __future__ import annotations

import ipaddress
import logging
from pathlib import Path

import click

from dovetail.agentplanes.facts import CarryLimits
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.log import log_options, start_log
from dovetail.cli.scheduling import scheduler_name_option
from dovetail.cli.service import address_option, first_of, serve
from dovetail.cli.watchdog import watchdog_option
from dovetail.kube.api.errors import KubeError

_log = logging.getLogger("dovetail.agentplanes")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(name="serve")
@kubeconfig_options
@click.option(
    "--state",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory of the endpoints' data; it belongs to one process at a time.",
)
@click.option("--plane", metavar="NAMESPACE/NAME", default="", help="The one control plane to serve. Default: all.")
@address_option("--address", "0.0.0.0:8443", "HOST:PORT of the endpoints.")
@click.option("--url", default="", help="URL under which agents reach the endpoints. Default: that of --address.")
@click.option("--tls-cert", type=_FILE, help="Certificate of the endpoints as PEM; read again when it is replaced.")
@click.option("--tls-key", type=_FILE, help="Key of the certificate as PEM.")
@click.option("--tls-ca", type=_FILE, help="Certificates as PEM by which agents know the endpoints.")
@click.option(
    "--most-pods",
    type=click.IntRange(min=1),
    default=CarryLimits().pods,
    show_default=True,
    help="The most pods that one control plane has on the host.",
)
@click.option(
    "--most-requests",
    type=click.IntRange(min=1),
    default=CarryLimits().requests,
    show_default=True,
    help="The most lease requests that one control plane has open.",
)
@click.option(
    "--pods-per-second",
    type=click.FloatRange(min=0, min_open=True),
    default=CarryLimits().creations_per_s,
    show_default=True,
    help="How many pods a second one control plane may create on the host, after a burst of 50.",
)
@click.option(
    "--keep-logs",
    type=click.IntRange(min=0),
    default=CarryLimits().logs_s,
    show_default=True,
    help="Seconds for which a pod that has ended is kept on the host, so that its logs can be read.",
)
@scheduler_name_option
@address_option("--listen", "0.0.0.0:10354", 'HOST:PORT for health and metrics; "" for none.')
@watchdog_option
@log_options
def command(
    kubeconfig: str | None,
    context: str | None,
    state: Path,
    plane: str,
    address: str,
    url: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    most_pods: int,
    most_requests: int,
    pods_per_second: float,
    keep_logs: int,
    scheduler_name: str,
    listen: str,
    watchdog_s: float,
    log_level: str,
    log_format: str,
) -> None:
    """Serve a Kubernetes endpoint for each AgentControlPlane with `backend: api`, and carry its pods into leases.

    Runs until it gets SIGTERM or SIGINT (exit code 0). Pods and leases stay, and the next process goes on with them.
    """
    from dovetail.agentplanes.certificates import CertificateFiles
    from dovetail.agentplanes.serving import ServeOptions, run
    from dovetail.apiserver.sqlite_log import StoreUnreadable
    from dovetail.plane.kubernetes import KubernetesBroker

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key are needed together")
    if tls_cert is None and not _is_loopback(address):
        raise click.UsageError(f"--tls-cert and --tls-key are needed at {address}: tokens would be readable")
    if plane and plane.count("/") != 1:
        raise click.UsageError("--plane must be NAMESPACE/NAME")
    start_log(log_level, log_format)
    config = config_of(kubeconfig, context)
    try:
        options = ServeOptions(
            folder=state,
            address=address,
            url=url.rstrip("/"),
            certificate=CertificateFiles(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None,
            authority=tls_ca.read_text() if tls_ca is not None else "",
            plane=plane,
            scheduler_name=scheduler_name,
            listen=listen,
            limits=CarryLimits(
                pods=most_pods, requests=most_requests, creations_per_s=pods_per_second, logs_s=keep_logs
            ),
        )
        serve(run(config, options, KubernetesBroker), _log, watchdog_s=watchdog_s)
    except* (KubeError, StoreUnreadable, OSError) as errors:
        raise click.ClickException(f"{config.server}: {first_of(errors)}") from None


def _is_loopback(value: str) -> bool:
    host = value.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
