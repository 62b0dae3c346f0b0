# SPDX-License-Identifier: Apache-2.0
"""Claims, volumes, storage classes, and what a node's CSI drivers can attach. Rules of the structs: see `objects`."""

from __future__ import annotations

from msgspec import field

from dovetail.kube.objects.base import LabelSelector, NodeSelector, ObjectMeta, Quantities, Wire


class StorageRequest(Wire, frozen=True):
    requests: Quantities = field(default_factory=dict)


class PersistentVolumeClaimSpec(Wire, frozen=True):
    volume_name: str = ""
    storage_class_name: str | None = None
    access_modes: tuple[str, ...] = ()
    resources: StorageRequest = StorageRequest()
    selector: LabelSelector | None = None
    volume_mode: str = "Filesystem"


class PersistentVolumeClaim(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class ClaimReference(Wire, frozen=True):
    namespace: str = ""
    name: str = ""


class CSISource(Wire, frozen=True):
    driver: str = ""


class VolumeNodeAffinity(Wire, frozen=True):
    required: NodeSelector | None = None


class PersistentVolumeSpec(Wire, frozen=True):
    storage_class_name: str = ""
    capacity: Quantities = field(default_factory=dict)
    access_modes: tuple[str, ...] = ()
    claim_ref: ClaimReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSISource | None = None
    volume_mode: str = "Filesystem"


class PersistentVolumeStatus(Wire, frozen=True):
    phase: str = ""


class PersistentVolume(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class TopologyRequirement(Wire, frozen=True):
    key: str = ""
    values: tuple[str, ...] = ()


class TopologyTerm(Wire, frozen=True):
    match_label_expressions: tuple[TopologyRequirement, ...] = ()


class StorageClass(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologyTerm, ...] = ()


class AttachLimit(Wire, frozen=True):
    """`count` None: the driver has no limit."""

    count: int | None = None


class CSINodeDriver(Wire, frozen=True):
    name: str = ""
    allocatable: AttachLimit | None = None


class CSINodeSpec(Wire, frozen=True):
    drivers: tuple[CSINodeDriver, ...] | None = None


class CSINode(Wire, frozen=True):
    """Its name is that of its node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CSINodeSpec = CSINodeSpec()
