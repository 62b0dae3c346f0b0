# SPDX-License-Identifier: Apache-2.0
"""An object of any kind that the operator makes, as it is in the cluster now."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, field

from dovetail.kube.api.resources import Resource
from dovetail.kube.objects.base import Wire
from dovetail.operator.rendering.stack_objects import MANAGED_BY, Document


class ManagedPart(Wire, frozen=True):
    """An entry of metadata.managedFields."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    fields_v1: dict[str, Any] = field(default_factory=dict, name="fieldsV1")


class LiveMeta(Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[dict[str, Any], ...] = ()
    managed_fields: tuple[ManagedPart, ...] = ()


class LiveObject(Struct, rename="camel", frozen=True):
    """The fields of all kinds in `kinds.OWNED`; what a kind does not have is None."""

    metadata: LiveMeta = LiveMeta()
    spec: Any = None
    data: Any = None
    binary_data: Any = None
    immutable: Any = None
    rules: Any = None
    aggregation_rule: Any = None
    subjects: Any = None
    role_ref: Any = None
    handler: Any = None
    overhead: Any = None
    scheduling: Any = None
    value: Any = None
    global_default: Any = None
    preemption_policy: Any = None
    description: Any = None
    address_type: Any = None
    endpoints: Any = None
    ports: Any = None
    secrets: Any = None
    image_pull_secrets: Any = None
    automount_service_account_token: Any = None
    status: Any = None

    @property
    def content(self) -> Document:
        """What a user writes of an object: all but its status and what the API server fills into its metadata."""
        fields = msgspec.structs.asdict(self)
        named = zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True)
        found = {wire: fields[name] for name, wire in named if name not in ("metadata", "status")}
        meta = self.metadata
        return {name: value for name, value in found.items() if value is not None} | {
            "metadata": {
                "name": meta.name, "namespace": meta.namespace, "labels": meta.labels,
                "annotations": meta.annotations, "finalizers": list(meta.finalizers),
                "ownerReferences": list(meta.owner_references),
            }
        }  # fmt: skip

    def owned_by(self, uid: str) -> bool:
        """Whether it bears the operator's label and names the stack of this uid as its owner."""
        key, value = MANAGED_BY
        owners = (owner.get("uid") for owner in self.metadata.owner_references)
        return self.metadata.labels.get(key) == value and uid in owners


class ObjectRef(Struct, frozen=True, cache_hash=True):
    """Which object it is."""

    resource: Resource
    namespace: str
    name: str

    @property
    def path(self) -> str:
        return self.resource.path(self.namespace or None, self.name)

    def __str__(self) -> str:
        place = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.resource.kind} {place}"


def digest(document: Any) -> bytes:
    """Equal documents have equal digests, whatever the order of their fields."""
    return hashlib.blake2b(msgspec.json.encode(document, order="sorted"), digest_size=16).digest()
