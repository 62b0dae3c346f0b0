# SPDX-License-Identifier: Apache-2.0
"""`dovetail agent run`."""

from __future__ import annotations

import logging
import os
import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dovetail.agent.options import AgentOptions
from dovetail.cli.extras import needs
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.log import log_options, start_log
from dovetail.cli.service import address_option, first_of, serve
from dovetail.cli.watchdog import watchdog_option
from dovetail.kube.api.errors import KubeError

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_log = logging.getLogger("dovetail.agent")
_Run = Callable[..., None]


def _folder(name: str, default: str, help_text: str) -> Callable[[_Run], _Run]:
    return click.option(name, type=_FOLDER, default=default, show_default=True, metavar="DIR", help=help_text)


def _command_line(text: str) -> str:
    try:
        shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from error
    return text


@click.command(name="run")
@kubeconfig_options
@click.option("--node-name", metavar="NAME", help="The Node of this machine. Default: $NODE_NAME, else the host name.")
@click.option("--device-plugin/--no-device-plugin", default=True, show_default=True, help="Offer GPUs as resources.")
@click.option(
    "--fence/--no-fence", default=True, show_default=True, help="NUMA guard: show an aligning kubelet the chosen GPUs."
)
@click.option("--claims/--no-claims", default=False, show_default=True, help="Offer GPUs to ResourceClaims (DRA).")
@click.option("--partitionable", is_flag=True, help="With --claims: make MIG instances for claims.")
@click.option("--labels/--no-labels", default=False, show_default=True, help="Write feature labels to the Node.")
@click.option(
    "--topology-objects/--no-topology-objects", default=False, show_default=True, help="Write a NodeResourceTopology."
)
@click.option(
    "--mig/--no-mig", default=False, show_default=True, help="Partition GPUs as a label or the scheduler requests."
)
@click.option(
    "--config",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="Device plugin configuration in NVIDIA's format (v1): a file, or a folder from which a label selects a file.",
)
@click.option("--mig-layouts", type=_FILE, metavar="FILE", help="Named MIG layouts: mig-parted's format, v1.")
@click.option(
    "--mig-observer",
    type=click.Path(path_type=Path),
    metavar="SOCKET",
    help="Socket of `dovetail agent observe`, for an agent without the privilege to read MIG instances.",
)
@click.option(
    "--xid-actions", type=_FILE, metavar="FILE", help="Actions of XIDs that replace the table's: `xid,action[,name]`."
)
@click.option(
    "--expected-gpus",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    metavar="NUMBER",
    help="How many GPUs this node should have; 0: those seen since its boot.",
)
@click.option(
    "--clean-period",
    type=click.FloatRange(0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a GPU must be without an error, after the remedy, before its quarantine ends.",
)
@click.option(
    "--exit-test",
    default="",
    metavar="COMMAND",
    callback=lambda _ctx, _param, value: _command_line(value),
    help="A test that a GPU must pass, too, before its quarantine ends. Its uuid is in $DOVETAIL_GPU_UUID.",
)
@click.option(
    "--exit-test-timeout",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="After how long the test has failed.",
)
@click.option(
    "--kubelet-config", type=_FILE, metavar="FILE", help="The kubelet's configuration, if its API cannot be read."
)
@_folder("--kubelet-folder", "/var/lib/kubelet", "The kubelet's folder, with its sockets.")
@_folder("--state-folder", "/var/lib/dovetail", "State that is kept across restarts.")
@_folder("--cdi-folder", "/var/run/cdi", "Where the container runtime looks for CDI specifications.")
@_folder("--mps-folder", "/run/dovetail/mps", "Folder that MPS daemons and their clients share.")
@_folder("--sysfs-root", "/sys", "Where the host's sysfs is.")
@_folder("--proc-root", "/proc", "Where the host's procfs is.")
@_folder("--dev-root", "/dev", "Where the host's devices are.")
@_folder("--driver-root", "/", "Where NVIDIA's driver is installed.")
@click.option("--dev-root-on-host", type=_FOLDER, metavar="DIR", help="--dev-root as the container runtime sees it.")
@click.option(
    "--driver-root-on-host", type=_FOLDER, metavar="DIR", help="--driver-root as the container runtime sees it."
)
@address_option("--listen", "0.0.0.0:10352", 'HOST:PORT for probes and metrics; "" for none.')
@address_option("--exporter", "0.0.0.0:9400", 'HOST:PORT for the metrics of the GPUs; "" for none.')
@click.option(
    "--exporter-counters",
    type=_FILE,
    metavar="FILE",
    help="Which metrics of the GPUs: a counter list of dcgm-exporter. Default: all.",
)
@address_option(
    "--exporter-dcgm",
    "localhost:5555",
    'HOST:PORT of a running DCGM, for profiling values of GPUs before Hopper; "" for none.',
)
@click.option(
    "--exporter-job-labels/--no-exporter-job-labels",
    default=False,
    show_default=True,
    help="Give metrics of allocated GPUs the labels queue, job and owner.",
)
@watchdog_option
@log_options
def command(
    kubeconfig: str | None,
    context: str | None,
    node_name: str | None,
    watchdog_s: float,
    log_level: str,
    log_format: str,
    **settings: Any,
) -> None:
    """Offer the GPUs of this machine to its kubelet, and publish them in the cluster.

    Runs until it gets SIGTERM or SIGINT (exit code 0). An error in the configuration ends it (exit code 1); any later
    error is logged, and what failed is tried again.
    """
    needs("agent")
    from dovetail.agent.checkpoint import CheckpointError
    from dovetail.agent.config import AgentConfigError
    from dovetail.agent.exporter.counter_list import CounterListError
    from dovetail.agent.health.watched import WatchedError
    from dovetail.agent.health.xids import XidActionsError
    from dovetail.agent.mig.layouts import MigLayoutError
    from dovetail.agent.run import run as run_agent
    from dovetail.kube.manifests.documents import ManifestError

    wrong_file = (AgentConfigError, CounterListError, MigLayoutError, ManifestError, XidActionsError)
    options = AgentOptions(node_name or os.environ.get("NODE_NAME") or socket.gethostname().lower(), **settings)
    if options.claims and options.device_plugin:
        raise click.UsageError(
            "--claims and --device-plugin would allocate the same GPUs twice: add --no-device-plugin to --claims"
        )
    if options.partitionable and not options.claims:
        raise click.UsageError("--partitionable needs --claims")
    start_log(log_level, log_format)
    config = config_of(kubeconfig, context)

    try:
        serve(run_agent(config, options), _log, watchdog_s=watchdog_s)
    except* (CheckpointError, WatchedError, *wrong_file, KubeError, OSError) as errors:
        raise click.ClickException(str(first_of(errors))) from None
