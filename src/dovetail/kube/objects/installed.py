# SPDX-License-Identifier: Apache-2.0
"""What an installation consists of, as far as its status is read: Deployments, DaemonSets, StatefulSets, their pods,
leases, and definitions. Rules of the structs: see `base`.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from dovetail.kube.objects.base import ObjectMeta, Wire
from dovetail.kube.objects.containers import ContainerWaiting
from dovetail.kube.objects.stack import StackMeta
from dovetail.kube.objects.topology import Condition


class ImageOfContainer(Wire, frozen=True):
    name: str = ""
    image: str = ""


class InstalledPodSpec(Wire, frozen=True):
    node_name: str = ""
    containers: tuple[ImageOfContainer, ...] = ()


class InstalledTemplate(Wire, frozen=True):
    spec: InstalledPodSpec = InstalledPodSpec()


class InstalledSpec(Wire, frozen=True):
    """`replicas` is of Deployments and StatefulSets."""

    replicas: int = 1
    template: InstalledTemplate = InstalledTemplate()


class InstalledStatus(Wire, frozen=True):
    """The second three are of DaemonSets."""

    observed_generation: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    updated_number_scheduled: int = 0
    conditions: tuple[Condition, ...] = ()


class InstalledWorkload(Wire, frozen=True):
    """A Deployment, a DaemonSet or a StatefulSet."""

    metadata: StackMeta = StackMeta()
    spec: InstalledSpec = InstalledSpec()
    status: InstalledStatus = InstalledStatus()


class InstalledContainerState(Wire, frozen=True):
    waiting: ContainerWaiting | None = None


class InstalledContainer(Wire, frozen=True):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: InstalledContainerState = InstalledContainerState()


class InstalledPodStatus(Wire, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[InstalledContainer, ...] = ()


class InstalledPod(Wire, frozen=True):
    """A pod of the operator, the scheduler or the endpoints of agents."""

    metadata: ObjectMeta = ObjectMeta()
    spec: InstalledPodSpec = InstalledPodSpec()
    status: InstalledPodStatus = InstalledPodStatus()


class HeldLeaseSpec(Wire, frozen=True):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    renew_time: datetime | None = None


class HeldLease(Wire, frozen=True):
    """Which replica leads. The times are of its holder's clock."""

    metadata: ObjectMeta = ObjectMeta()
    spec: HeldLeaseSpec = HeldLeaseSpec()


class DefinitionNames(Wire, frozen=True):
    plural: str = ""
    kind: str = ""


class DefinitionVersion(Wire, frozen=True):
    name: str = ""
    served: bool = False


class DefinitionSpec(Wire, frozen=True):
    group: str = ""
    names: DefinitionNames = field(default_factory=DefinitionNames)
    versions: tuple[DefinitionVersion, ...] = ()


class InstalledDefinition(Wire, frozen=True):
    """A CustomResourceDefinition without its schema."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DefinitionSpec = DefinitionSpec()
