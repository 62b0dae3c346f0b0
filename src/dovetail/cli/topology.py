# SPDX-License-Identifier: Apache-2.0
"""`dovetail topology`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.cluster import ClusterSource, late_cluster_options
from dovetail.cli.console import Console
from dovetail.cli.extras import plot_option
from dovetail.cli.files import text_of
from dovetail.cli.names import complete_nodes
from dovetail.core.devices.layout import LayoutError

if TYPE_CHECKING:
    from dovetail.views.topology_types import NodeInside, NodeQuestion, NodeTopology, Topology

_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_OUTPUT_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(name="topology")
@click.argument("what", metavar="FILE|NODE", shell_complete=complete_nodes)
@click.option("--product", metavar="NAME", help="GPU model, GFD label or nvidia-smi name; sets the rates of the links.")
@plot_option("Also draw a picture.", "FILE.png")
@click.option("--nccl", type=_OUTPUT_FILE, metavar="FILE.xml", help="Also write the topology for NCCL_TOPO_FILE.")
@click.option("--pod", metavar="[NAMESPACE/]NAME", help="With --nccl: write only the devices of this pod of the node.")
@late_cluster_options
@answer_option
def command(
    cluster: Callable[[], ClusterSource],
    what: str,
    product: str | None,
    plot: Path | None,
    nccl: Path | None,
    pod: str | None,
    form: AnswerForm,
) -> None:
    """Show how the GPUs of a node are wired, and the bandwidth of every set of them.

    FILE is the output of `nvidia-smi topo -m`, or a topology XML of NCCL (NCCL_TOPO_DUMP_FILE); - is stdin. If there is
    no such file, the argument is a NODE of the cluster: then the answer also has the pods that hold its GPUs, and the
    policies of its kubelet. The running scheduler answers, if there is one; else the cluster is read.
    """
    from dovetail.cli.topology_report import show, show_node
    from dovetail.views.topology_types import Topology

    for option, path in (("--plot", plot), ("--nccl", nccl)):
        if path is not None and not path.parent.is_dir():
            raise click.BadParameter(f"there is no folder {str(path.parent)!r}", param_hint=option)
    if pod is not None and nccl is None:
        raise click.UsageError("--pod needs --nccl")
    found: Topology | NodeInside
    wiring: Topology | None
    if what == "-" or (Path(what).exists() and not Path(what).is_dir()):
        chosen = click.get_current_context().params
        cluster_choice = {name: chosen[name] for name in ("kubeconfig", "context")} | {"file": chosen["files"]}
        _refuse(f"{what} is a file: {{}} needs a NODE", nccl=nccl, **cluster_choice)
        found = wiring = _of_file(what, product)
    else:
        if not _NODE_NAME.fullmatch(what):
            raise click.ClickException(f"{what}: not a file, and not a valid name of a node")
        _refuse(f"there is no file {what}: {{}} needs a FILE", product=product)
        answer = _of_node(what, cluster, pod, nccl is not None)
        found, wiring = answer.inside, answer.inside.topology
        if nccl is not None:
            _write(nccl, answer.nccl)
    if form.whole:
        write_answer(form, "Topology" if isinstance(found, Topology) else "NodeTopology", found)
    elif isinstance(found, Topology):
        show(found, Console())
    else:
        show_node(found, Console())
    if plot is not None:
        _draw(wiring, plot, what)


def _refuse(message: str, **options: object) -> None:
    """Raises UsageError with the message for the first option that is used; {} is its name."""
    for name, value in options.items():
        if value:
            raise click.UsageError(message.format(f"--{name}"))


def _of_file(file: str, product: str | None) -> Topology:
    from dovetail.views.topology import topology

    try:
        return topology(text_of(file), product)
    except LayoutError as error:
        if error.field == "product":
            raise click.BadParameter(error.message, param_hint="--product") from error
        raise click.ClickException(f"{file}: {error}") from error


def _of_node(name: str, cluster: Callable[[], ClusterSource], pod: str | None, for_nccl: bool) -> NodeTopology:
    from dovetail.views.topology_types import NodeQuestion

    try:
        source = cluster()
        key = pod if pod is None or "/" in pod else f"{source.namespace}/{pod}"
        asked = NodeQuestion(name, for_nccl, key or "")
        return _asked(source, asked) or _read(source, asked)
    except click.ClickException as error:
        before = "--nccl: nothing was written" if for_nccl else f"{name}: not a file"
        raise click.ClickException(f"{before}{': ' if for_nccl else ', and '}{error.message}") from error


def _asked(source: ClusterSource, asked: NodeQuestion) -> NodeTopology | None:
    """The answer of the running scheduler."""
    from dovetail.kube.objects.views import NODE_TOPOLOGIES
    from dovetail.kube.reading.views import ViewRequest
    from dovetail.views.topology_types import NodeTopology

    query = {"node": asked.node} | ({"nccl": "true"} if asked.nccl else {}) | ({"pod": asked.pod} if asked.pod else {})
    return source.ask(ViewRequest(NODE_TOPOLOGIES, source.namespace, query=query), NodeTopology)


def _read(source: ClusterSource, asked: NodeQuestion) -> NodeTopology:
    """Raises ClickException."""
    from dovetail.views.names import JobNotFound
    from dovetail.views.node import NotForNccl, ReadObjects, node_topology

    read = source.read()
    try:
        return node_topology(read.state, ReadObjects(read.feed.node_records.gpu_node, read.feed.notes), asked)
    except (JobNotFound, NotForNccl) as error:
        raise click.ClickException(str(error)) from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
    Console(stderr=True).print(f"written: {path}")


def _draw(found: Topology | None, plot: Path, what: str) -> None:
    if found is None:
        raise click.ClickException(f"nothing to draw: the wiring of the GPUs of {what} is not known")
    # Imported here: matplotlib takes half a second to load.
    from dovetail.views.topology_plot import draw

    try:
        draw(found, plot)
    except OSError as error:
        raise click.ClickException(f"cannot write the picture: {error}") from error
    Console(stderr=True).print(f"drawn: {plot}")
