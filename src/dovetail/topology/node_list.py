# SPDX-License-Identifier: Apache-2.0
"""Kubernetes nodes as the API server and `kubectl get nodes -o json` list them: what the readers of the network above
them need."""

from __future__ import annotations

from msgspec import Struct, field

from dovetail.core.json_text import JsonError, decode_json
from dovetail.topology.fabric import FabricError


class ListedMetadata(Struct):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = field(default="", name="resourceVersion")
    labels: dict[str, str] = {}


class ListedSpec(Struct):
    provider_id: str = field(default="", name="providerID")


class ListedNode(Struct):
    metadata: ListedMetadata
    spec: ListedSpec = field(default_factory=ListedSpec)


class ListedNodes(Struct):
    items: list[ListedNode]


def listed_nodes(text: str) -> list[ListedNode]:
    """Raises FabricError."""
    try:
        return decode_json(text, ListedNodes).items
    except JsonError as error:
        raise FabricError(f"no list of nodes: {error}: pass the output of `kubectl get nodes -o json`") from error
