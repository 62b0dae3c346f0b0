# SPDX-License-Identifier: Apache-2.0
"""Kubernetes nodes as the API server and `kubectl get nodes -o json` list them: what the readers of the network above
them need."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct, field

from dovetail.core.json_text import JsonError, decode_json
from dovetail.topology.fabric import FabricError


class OwnedLabels(Struct):
    labels: dict[str, object] = field(default_factory=dict, name="f:labels")


class OwnedFields(Struct):
    metadata: OwnedLabels = field(default_factory=OwnedLabels, name="f:metadata")


class FieldManager(Struct):
    """An entry of managedFields: which labels it wrote, and when."""

    manager: str = ""
    time: datetime | None = None
    fields: OwnedFields = field(default_factory=OwnedFields, name="fieldsV1")


class ListedMetadata(Struct):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = field(default="", name="resourceVersion")
    labels: dict[str, str] = {}
    managed_fields: list[FieldManager] = field(default=[], name="managedFields")


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
