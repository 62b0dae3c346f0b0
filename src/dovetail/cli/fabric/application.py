# SPDX-License-Identifier: Apache-2.0
"""What `dovetail fabric import --apply` writes: labels of nodes, and the status of the Fabric.

Rules
- Only nodes whose labels change are written. A node that is in no source any more loses what an earlier import wrote.
- The labels that nodes had before are a source of the Fabric, too, where they are of a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from dovetail.cli.cluster import run
from dovetail.cli.fabric.sources import CLUSTER, SourceChoice, nodes_of
from dovetail.cli.kubeconfig import config_of
from dovetail.cli.output import count
from dovetail.kube.fabric_changes import (
    LABEL_MANAGER,
    LabelledNode,
    read_fabric_object,
    try_import,
    write_imported,
    write_labels,
)

if TYPE_CHECKING:
    from dovetail.topology.fabric import FabricFinding, FabricReading, Labels
    from dovetail.topology.node_list import ListedNode


def apply_import(
    choice: SourceChoice,
    sources: Mapping[str, FabricReading],
    findings: Mapping[str, Sequence[FabricFinding]],
    keys: Sequence[str] | None,
    *,
    dry_run: bool,
) -> None:
    """Write what follows from the first source. Raises FabricError, and ClickException for an error of the cluster."""
    from dovetail.topology import node_labels
    from dovetail.topology.fabric import FabricError, labels_of
    from dovetail.topology.fabric_record import Document, status_of, writers_of

    nodes = nodes_of(choice) or ()
    labels = labels_of(sources[choice.files[0]], keys)
    written = tuple(next(iter(labels.values()), {}))
    readings = dict(sources)
    with suppress(FabricError):
        readings[CLUSTER] = node_labels.of_nodes(nodes)
    every = (*written, *(key for key in node_labels.KEYS if key not in written))
    config = config_of(choice.kubeconfig, choice.context)
    before = run(read_fabric_object(config), config.server).get("status")

    def status(nodes: Sequence[ListedNode]) -> Document:
        return status_of(readings, written, findings, writers_of(nodes, every), datetime.now(UTC), before)

    changed = list(_changed(nodes, labels))
    run(try_import(config, changed, status(nodes)), config.server)
    if not dry_run:
        run(write_labels(config, changed), config.server)
        # Read again: the labels have a writer and a time now.
        run(write_imported(config, status(nodes_of(choice) or ())), config.server)
    taken = sum(not one.labels for one in changed)
    done = "would be written" if dry_run else "written"
    gone = f", {count(taken, 'node')} without them now" if taken else ""
    click.echo(f"labels of {count(len(changed), 'node')} {done}{gone}; {len(labels) + taken - len(changed)} had them")


def _changed(nodes: Sequence[ListedNode], labels: Mapping[str, Labels]) -> Iterator[LabelledNode]:
    for node in nodes:
        own = node.metadata
        wanted = labels.get(own.name, {})
        ours = {
            name.removeprefix("f:")
            for entry in own.managed_fields
            if entry.manager == LABEL_MANAGER
            for name in entry.fields.metadata.labels
        }
        if ours != set(wanted) or any(own.labels.get(key) != value for key, value in wanted.items()):
            yield LabelledNode(own.name, own.uid, wanted)
