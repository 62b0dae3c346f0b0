# SPDX-License-Identifier: Apache-2.0
"""The network above nodes, from files of other tools: the formats, and whose names are those of Kubernetes nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence

import yaml
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.fabric import FABRIC_NAME
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.resources import FABRICS, NODES
from dovetail.kube.reading.lists import ListRequest, read_lists
from dovetail.kube.yaml_text import read_yaml
from dovetail.topology import (
    aws_topology,
    fabric_table,
    gcp_topology,
    ibnetdiscover,
    lldp,
    node_labels,
    oci_topology,
    slurm_topology,
    ufm_links,
)
from dovetail.topology.fabric import FabricError, FabricReading, one_place_each
from dovetail.topology.fabric_record import RecordedFabric
from dovetail.topology.node_list import ListedNode

MOST_BYTES = 256 << 20
"""Of one file."""
_HEAD_CHARACTERS = 4096
_HOSTNAME = "kubernetes.io/hostname"


class FabricFormat(Struct, frozen=True):
    """A text is of this format if `begins` is found in its first characters."""

    name: str
    begins: re.Pattern[str]
    read: Callable[[str], FabricReading]
    read_nodes: Callable[[str, Container[str]], FabricReading] | None = None
    """Where hosts that are no nodes would change the places of others."""


def _read_yaml(text: str) -> FabricReading:
    try:
        return slurm_topology.read_yaml_value(read_yaml(text))
    except yaml.YAMLError as error:
        raise FabricError(f"it is no YAML: {' '.join(str(error).split())}") from error


FORMATS = (
    FabricFormat(
        "ibnetdiscover",
        re.compile(r"^(# Topology file: generated|(switch|ca)guid=0x)", re.M),
        ibnetdiscover.read,
        ibnetdiscover.read,
    ),
    FabricFormat("ufm", re.compile(r'"(source|destination)_(guid|port_dname)"\s*:'), ufm_links.read, ufm_links.read),
    FabricFormat("topology.yaml", re.compile(r"^\s*-\s+topology\s*:", re.M), _read_yaml),
    FabricFormat("topology.conf", re.compile(r"^\s*(switch|block)name\s*=", re.M | re.I), slurm_topology.read_conf),
    FabricFormat("aws", re.compile(r'\A\s*\{\s*"(Instances|NextToken)"\s*:'), aws_topology.read),
    FabricFormat(
        "gcp", re.compile(r'"(canIpForward|cpuPlatform|resourceStatus)"\s*:|"compute#instance'), gcp_topology.read
    ),
    FabricFormat(
        "oci",
        re.compile(r'"(compute-?)?(hpc-?island|network-?block|local-?block)-?id"\s*:', re.I),
        oci_topology.read,
    ),
    FabricFormat("lldp", re.compile(r'"lldp"\s*:'), lldp.read),
    FabricFormat("node-labels", re.compile(r'\A\s*\{\s*"apiVersion"\s*:\s*"v1"\s*,\s*"items"'), node_labels.read),
    FabricFormat("csv", re.compile(r"^(?:[^\n#,]+,)*\s*node\s*(,|$)", re.M), fabric_table.read),
)  # fmt: skip
"""The first that fits is taken."""


def read_fabric(text: str, name: str | None = None, nodes: NodeNames | None = None) -> FabricReading:
    """The reading of a text, whose hosts become `nodes`; `name` is the format, else its content decides.

    Raises FabricError, also if no host is one of the nodes."""
    head = text[:_HEAD_CHARACTERS]
    chosen = next((one for one in FORMATS if (one.name == name if name else one.begins.search(head))), None)
    if chosen is None:
        known = ", ".join(one.name for one in FORMATS)
        raise FabricError(f"its format is not known: it is none of {known}; name it with --format")
    if nodes is None:
        return chosen.read(text)
    reading = nodes.of(chosen.read_nodes(text, nodes.by_name) if chosen.read_nodes else chosen.read(text))
    if not reading.placements:
        raise FabricError("no host is one of the nodes: are they of one cluster?")
    return reading


async def live_nodes(config: ClusterConfig) -> tuple[ListedNode, ...]:
    """The nodes of a cluster. Raises KubeError, and FabricError if they may not be listed."""
    (reply,) = await read_lists(config, (ListRequest(NODES, ListedNode),))
    if reply.objects is None:
        raise FabricError(reply.unread)
    return reply.objects


async def live_fabric(config: ClusterConfig) -> RecordedFabric | None:
    """The Fabric of a cluster, None where there is none, or it may not be read. Raises KubeError."""
    (reply,) = await read_lists(config, (ListRequest(FABRICS, RecordedFabric),))
    return next((one for one in reply.objects or () if one.metadata.name == FABRIC_NAME), None)


class NodeNames(Struct, frozen=True):
    """The names of Kubernetes nodes by what other tools call them, in lower case."""

    by_name: Mapping[str, str]

    def of(self, reading: FabricReading) -> FabricReading:
        """The reading with Kubernetes' names, without hosts that are no nodes and findings about them."""
        known = {one.node: self.by_name.get(one.node.lower()) for one in reading.placements}
        placed = [replace(one, node=name) for one in reading.placements if (name := known[one.node])]
        placements, twice = one_place_each(placed)
        kept = [one for one in reading.findings if not one.node or one.node.lower() in self.by_name]
        return replace(reading, placements=placements, findings=(*kept, *twice))


def node_names(nodes: Sequence[ListedNode]) -> NodeNames:
    """A node has its own name, its label kubernetes.io/hostname, the last part of its providerID (on AWS the instance),
    and the part of its name before the first dot, if that is of one node."""
    short = Counter(node.metadata.name.partition(".")[0] for node in nodes)
    by_name: dict[str, str] = {}
    for node in nodes:
        name = node.metadata.name
        begins = name.partition(".")[0]
        others = (node.metadata.labels.get(_HOSTNAME, ""), node.spec.provider_id.rpartition("/")[2])
        for one in (*others, begins if short[begins] == 1 else ""):
            if one:
                by_name.setdefault(one.lower(), name)
    return NodeNames(by_name | {node.metadata.name.lower(): node.metadata.name for node in nodes})
