# SPDX-License-Identifier: Apache-2.0
"""`dovetail agent inspect`."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dovetail.agent.health import xids
from dovetail.agent.machine.host import Host, Unread
from dovetail.agent.machine.sysfs import Sysfs, SysfsError, SysfsNumaNode
from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.console import Console
from dovetail.cli.extras import needs

if TYPE_CHECKING:
    from dovetail.agent.exporter.coverage import MetricCoverage

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(name="inspect")
@click.option(
    "--sysfs-root", type=_FOLDER, default="/sys", show_default=True, metavar="DIR", help="Where sysfs is mounted."
)
@click.option(
    "--proc-root", type=_FOLDER, default="/proc", show_default=True, metavar="DIR", help="Where procfs is mounted."
)
@click.option("--node", metavar="NAME", help="Name of the node in the printed GPUNode. Default: this machine's name.")
@answer_option
def command(sysfs_root: Path, proc_root: Path, node: str | None, form: AnswerForm) -> None:
    """Show the GPUs of this machine, their topology, and what could not be read.

    Reads NVML and the kernel, changes nothing, and needs no cluster, no GPU and no root. In the JSON answer, `host` has
    all that was found, `gpuNode` is the GPUNode that the agent would publish, and `metrics` counts the metrics of each
    GPU and lists the absent ones by reason.
    """
    needs("agent")
    from dovetail.agent.publish.gpunode import document, gpu_node
    from dovetail.agent.publish.gpunode_status import status_of
    from dovetail.cli.agent.inspect_report import Inspection, metrics_table, show

    name = node or socket.gethostname().lower()
    sysfs = Sysfs(sysfs_root, proc_root)
    host, nodes, unread, metrics = _look(sysfs)
    if form.whole:
        published = gpu_node(name, {}, {"status": document(status_of(host, unread=unread))})
        inspection = Inspection(host, nodes, published, metrics, xids.default().version)
        write_answer(form, "AgentInspection", inspection)
        return
    console = Console()
    show(name, host, nodes, (*host.unread, *unread), console)
    if metrics.read:
        console.print("\n[bold]Metrics[/bold]")
        console.print(metrics_table(metrics))


def _look(sysfs: Sysfs) -> tuple[Host, tuple[SysfsNumaNode, ...], tuple[Unread, ...], MetricCoverage]:
    from dovetail.agent.exporter.coverage import MetricCoverage, coverage
    from dovetail.agent.machine.discovery import discover
    from dovetail.agent.machine.nvml import Nvml, NvmlError

    metrics = MetricCoverage()
    try:
        with Nvml() as nvml:
            host = discover(nvml, sysfs)
            metrics = coverage(nvml, sysfs.proc)
    except NvmlError as error:
        host = discover(error, sysfs)
    try:
        return host, sysfs.numa_nodes, (), metrics
    except SysfsError as error:
        return host, (), (Unread("numaNodes", str(error)),), metrics
