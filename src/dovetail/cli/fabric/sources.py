# SPDX-License-Identifier: Apache-2.0
"""The options of `dovetail fabric`, and the sources that it reads: files, and the labels of the nodes of a cluster.

Rules
- Without a FILE the cluster is the source. --kubeconfig and --context mean --cluster.
- With --cluster, hosts of files get the names of the cluster's nodes. If these have no labels of a network, they are no
  source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from dovetail.cli.console import Console
from dovetail.cli.files import text_of
from dovetail.cli.kubeconfig import config_of, kubeconfig_options
from dovetail.cli.output import printable

if TYPE_CHECKING:
    from dovetail.topology.fabric import FabricFinding, FabricReading
    from dovetail.topology.node_list import ListedNode

Command = TypeVar("Command", bound=Callable[..., Any])
FORMAT_NAMES = ("ibnetdiscover", "topology.yaml", "topology.conf", "aws", "gcp", "oci", "lldp", "node-labels", "csv")
CLUSTER = "cluster"
"""The name of the source that is a cluster's labels."""


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


def source_options(*, required: bool = False) -> Callable[[Command], Command]:
    """FILE..., --format, --nodes, --cluster and those of a kubeconfig: the command gets a `choice`."""

    def decorated(command: Command) -> Command:
        command = _chosen(command)
        command = kubeconfig_options(command)
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


def _chosen(command: Command) -> Any:
    def chosen(**options: Any) -> None:
        choice = SourceChoice(**{name: options.pop(name) for name in SourceChoice.__struct_fields__})
        command(choice=choice, **options)

    chosen.__doc__ = command.__doc__
    chosen.__dict__.update(command.__dict__)
    return chosen


def read_sources(choice: SourceChoice, *, labels: bool = True) -> dict[str, FabricReading]:
    """The reading of each source by its name; with `labels` those of the cluster are one. Raises ClickException."""
    from dovetail.cli.cluster import run
    from dovetail.topology import node_labels
    from dovetail.topology.fabric import FabricError
    from dovetail.topology.node_list import listed_nodes
    from dovetail.views.fabric import MOST_BYTES, live_nodes, node_names, read_fabric

    if len(set(choice.files)) < len(choice.files):
        raise click.UsageError("a FILE is there twice")
    if choice.live and choice.nodes is not None:
        raise click.UsageError("--nodes and a cluster both name the nodes: use one of them")
    found = {}
    at = choice.nodes or CLUSTER
    try:
        nodes: Sequence[ListedNode] | None = None
        if choice.live:
            config = config_of(choice.kubeconfig, choice.context)
            nodes = run(live_nodes(config), config.server)
        elif choice.nodes is not None:
            nodes = listed_nodes(text_of(choice.nodes, most_bytes=MOST_BYTES))
        if choice.live and labels and nodes is not None:
            try:
                found[CLUSTER] = node_labels.of_nodes(nodes)
            except FabricError as error:
                if not choice.files:
                    raise
                Console(stderr=True).print(f"note: {CLUSTER}: {error}", markup=False)
        names = node_names(nodes) if nodes is not None else None
        for at in choice.files:
            found[at] = read_fabric(text_of(at, most_bytes=MOST_BYTES), choice.format_name, names)
    except FabricError as error:
        raise click.ClickException(f"{at}: {error}") from error
    return found


def print_findings(source: str, findings: Sequence[FabricFinding], console: Console) -> None:
    """The findings of a source, the errors first."""
    for one in sorted(findings, key=lambda one: not one.kind.is_error):
        text = f"{source}: {one.severity}: {one.code}: {one.what}; {one.kind.fix}"
        console.print(printable(text), markup=False)
