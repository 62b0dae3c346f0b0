# SPDX-License-Identifier: Apache-2.0
"""The options of `dovetail fabric`, and the sources that it reads: files, and the labels of the nodes of a cluster.

Rules
- Without a FILE the cluster is the source. --kubeconfig and --context mean --cluster.
- Where the cluster has a Fabric, `check` compares with what was imported there, too.
- With --cluster, hosts of files get the names of the cluster's nodes. If these have no labels of a network, they are no
  source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from dovetail.cli.console import Console
from dovetail.cli.files import text_of
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import printable

if TYPE_CHECKING:
    from dovetail.topology.fabric import FabricFinding, FabricReading
    from dovetail.topology.fabric_record import RecordedFabric
    from dovetail.topology.node_list import ListedNode
    from dovetail.views.spares import DomainSpares

FORMAT_NAMES = (
    *("ibnetdiscover", "ufm", "topology.yaml", "topology.conf"),
    *("aws", "gcp", "oci", "lldp", "node-labels", "csv"),
)
CLUSTER = "cluster"
"""The name of the source that is a cluster's labels."""
IMPORTED = "imported "
"""Before the name of a source of the Fabric."""


class SourceChoice(Struct, frozen=True):
    """The values of the options of `source_options`."""

    files: tuple[str, ...]
    format_name: str | None
    nodes: str | None
    cluster: bool
    kubeconfig: str | None
    context: str | None

    @property
    def live(self) -> bool:
        """Whether a cluster is read."""
        return self.cluster or not self.files or (self.kubeconfig, self.context) != (None, None)


def source_options(*, required: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """FILE..., --format, --nodes, --cluster and those of a kubeconfig: the command gets a `choice`."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        command = kubeconfig_options(_chosen(command))
        command = click.option(
            "--cluster", is_flag=True, help="Read the nodes of the cluster; implied by --kubeconfig and --context."
        )(command)
        command = click.option(
            "--nodes",
            metavar="FILE",
            help="Output of `kubectl get nodes -o json`: hosts get the names of its nodes; others are left out.",
        )(command)
        command = click.option(
            "--format",
            "format_name",
            type=click.Choice(FORMAT_NAMES),
            help="The format of all files; else their content decides.",
        )(command)
        return click.argument("files", metavar="FILE..." if required else "[FILE]...", nargs=-1, required=required)(
            command
        )

    return decorated


def _chosen(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def chosen(**options: Any) -> None:
        choice = SourceChoice(**{name: options.pop(name) for name in SourceChoice.__struct_fields__})
        command(choice=choice, **options)

    return chosen


def read_sources(choice: SourceChoice, *, labels: bool = True) -> dict[str, FabricReading]:
    """The reading of each source by its name; with `labels` those of the cluster are one. Raises ClickException."""
    from dovetail.topology.fabric import FabricError
    from dovetail.views.fabric import MOST_BYTES, node_names, read_fabric

    if len(set(choice.files)) < len(choice.files):
        raise click.UsageError("a FILE is there twice")
    nodes = nodes_of(choice)
    found = _labels(nodes, must=not choice.files) if choice.live and labels and nodes is not None else {}
    names = node_names(nodes) if nodes is not None else None
    for file in choice.files:
        try:
            found[file] = read_fabric(text_of(file, most_bytes=MOST_BYTES), choice.format_name, names)
        except FabricError as error:
            raise click.ClickException(f"{file}: {error}") from error
    return found


def recorded_of(choice: SourceChoice) -> RecordedFabric | None:
    """The Fabric of the cluster, if one is read and has it. Raises ClickException."""
    from dovetail.cli.cluster import run
    from dovetail.views.fabric import live_fabric

    if not choice.live:
        return None
    config = config_of(choice.kubeconfig, choice.context)
    return run(live_fabric(config), config.server)


def spares_of(choice: SourceChoice, fabric: RecordedFabric | None) -> tuple[DomainSpares, ...]:
    """The spares of a cluster whose Fabric has rules for them. Where the cluster cannot be read whole, that is printed,
    and there are none."""
    from dovetail.cli.cluster import run
    from dovetail.cli.scheduling import SCHEDULER_NAME, PolicyChoice
    from dovetail.views.spares import live_spares

    if fabric is None or not fabric.spec.spares:
        return ()
    config = config_of(choice.kubeconfig, choice.context)
    try:
        return run(live_spares(config, PolicyChoice().for_queries(), SCHEDULER_NAME), config.server)
    except click.ClickException as error:
        Console(stderr=True).print(printable(f"note: spares are not counted: {error.message}"), markup=False)
        return ()


def imports_of(fabric: RecordedFabric | None) -> dict[str, FabricReading]:
    """What was imported, by source. A source without places, and the labels of that time, are none."""
    from dovetail.topology.fabric import FabricError

    found = {}
    for one in fabric.status.sources if fabric is not None else ():
        if one.domains and one.name != CLUSTER:
            try:
                found[f"{IMPORTED}{one.name}"] = one.reading()
            except FabricError as error:
                raise click.ClickException(f"status.sources of the Fabric: {one.name}: {error}") from error
    return found


def nodes_of(choice: SourceChoice) -> Sequence[ListedNode] | None:
    """The nodes of the cluster, or of --nodes. Raises ClickException."""
    from dovetail.cli.cluster import run
    from dovetail.topology.fabric import FabricError
    from dovetail.topology.node_list import listed_nodes
    from dovetail.views.fabric import MOST_BYTES, live_nodes

    if choice.live and choice.nodes is not None:
        raise click.UsageError("--nodes and a cluster both name the nodes: use one of them")
    try:
        if choice.live:
            config = config_of(choice.kubeconfig, choice.context)
            return run(live_nodes(config), config.server)
        return listed_nodes(text_of(choice.nodes, most_bytes=MOST_BYTES)) if choice.nodes is not None else None
    except FabricError as error:
        raise click.ClickException(f"{choice.nodes or CLUSTER}: {error}") from error


def _labels(nodes: Sequence[ListedNode], *, must: bool) -> dict[str, FabricReading]:
    """The labels of the nodes as a source. Without labels of a network there is none, and `must` raises
    ClickException."""
    from dovetail.topology import node_labels
    from dovetail.topology.fabric import FabricError

    try:
        return {CLUSTER: node_labels.of_nodes(nodes)}
    except FabricError as error:
        if must:
            raise click.ClickException(f"{CLUSTER}: {error}") from error
        Console(stderr=True).print(f"note: {CLUSTER}: {error}", markup=False)
        return {}


def print_findings(source: str, findings: Sequence[FabricFinding], console: Console) -> None:
    """The findings of a source, the errors first."""
    for one in sorted(findings, key=lambda one: not one.kind.is_error):
        text = f"{source}: {one.severity}: {one.code}: {one.what}; {one.kind.fix}"
        console.print(printable(text), markup=False)
