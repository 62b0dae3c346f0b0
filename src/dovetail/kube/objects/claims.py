# SPDX-License-Identifier: Apache-2.0
"""Devices by claim on the wire: ResourceSlice, DeviceClass, ResourceClaim, DeviceTaintRule. Rules of the structs: see
`objects`.

Parameters of opaque configurations are read as they are, since they are only handed on. A ResourceClaimTemplate is read
from manifests alone: on a cluster a controller makes its claims, and only these matter to a scheduler.
Source: k8s.io/api resource/v1 (1.37).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import field

from dovetail.kube.objects.base import NodeSelector, ObjectMeta, Quantities, Quantity, Wire


class DeviceAttribute(Wire, frozen=True):
    """One of them is set. Empty lists do not occur."""

    number: int | None = field(default=None, name="int")
    flag: bool | None = field(default=None, name="bool")
    text: str | None = field(default=None, name="string")
    version: str | None = None
    numbers: tuple[int, ...] = field(default=(), name="ints")
    flags: tuple[bool, ...] = field(default=(), name="bools")
    texts: tuple[str, ...] = field(default=(), name="strings")
    versions: tuple[str, ...] = ()


class CapacityRange(Wire, frozen=True):
    least: Quantity | None = field(default=None, name="min")
    most: Quantity | None = field(default=None, name="max")
    step: Quantity | None = None


class RequestPolicy(Wire, frozen=True):
    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(Wire, frozen=True):
    value: Quantity = 0
    request_policy: RequestPolicy | None = None


class Counter(Wire, frozen=True):
    value: Quantity = 0


class CounterSet(Wire, frozen=True):
    name: str = ""
    counters: dict[str, Counter] = field(default_factory=dict)


class CounterConsumption(Wire, frozen=True):
    counter_set: str = ""
    counters: dict[str, Counter] = field(default_factory=dict)
    compatibility_groups: tuple[str, ...] = ()


class DeviceTaint(Wire, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: datetime | None = None


class SliceDevice(Wire, frozen=True):
    name: str = ""
    attributes: dict[str, DeviceAttribute] = field(default_factory=dict)
    capacity: dict[str, DeviceCapacity] = field(default_factory=dict)
    consumes_counters: tuple[CounterConsumption, ...] = ()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool = False


class SlicePool(Wire, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(Wire, frozen=True):
    driver: str = ""
    pool: SlicePool = SlicePool()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: tuple[SliceDevice, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()


class TaintSelector(Wire, frozen=True):
    """What is None selects all."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Wire, frozen=True):
    """Without a selector the rule is about no device."""

    device_selector: TaintSelector | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRule(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()


class CelSelector(Wire, frozen=True):
    expression: str = ""


class DeviceSelector(Wire, frozen=True):
    cel: CelSelector | None = None


class OpaqueConfiguration(Wire, frozen=True):
    driver: str = ""
    parameters: Any = None


class ClassConfiguration(Wire, frozen=True):
    opaque: OpaqueConfiguration | None = None


class DeviceClassSpec(Wire, frozen=True):
    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[ClassConfiguration, ...] = ()
    extended_resource_name: str = ""


class DeviceClass(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceToleration(Wire, frozen=True, omit_defaults=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(Wire, frozen=True):
    requests: Quantities = field(default_factory=dict)


class DerivedAttribute(Wire, frozen=True):
    name: str = ""


class ExactRequest(Wire, frozen=True):
    """Also an alternative of `firstAvailable`, which has a name of its own and no admin access."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None
    derived_attributes: tuple[DerivedAttribute, ...] = ()


class DeviceRequest(Wire, frozen=True):
    """One of `exactly` and `first_available` is set."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: tuple[ExactRequest, ...] = ()


class DeviceConstraint(Wire, frozen=True):
    """One of the attributes is set."""

    requests: tuple[str, ...] = ()
    match_attribute: str = ""
    distinct_attribute: str = ""


class ClaimConfiguration(Wire, frozen=True):
    requests: tuple[str, ...] = ()
    opaque: OpaqueConfiguration | None = None


class DeviceClaim(Wire, frozen=True):
    # Declared without omitempty upstream: servers write null.
    requests: tuple[DeviceRequest, ...] | None = None
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[ClaimConfiguration, ...] = ()


class ResourceClaimSpec(Wire, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class DeviceResult(Wire, frozen=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str = field(default="", name="shareID")
    consumed_capacity: Quantities = field(default_factory=dict)


class AllocatedDevices(Wire, frozen=True):
    results: tuple[DeviceResult, ...] = ()


class AllocationResult(Wire, frozen=True):
    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None
    allocation_timestamp: datetime | None = None


class Consumer(Wire, frozen=True, omit_defaults=True):
    """The pod or other object that a claim is reserved for."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceCondition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    message: str = ""


class DeviceStatus(Wire, frozen=True):
    """The driver's status of an allocated device."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str = field(default="", name="shareID")
    # Without omitempty, too.
    conditions: tuple[DeviceCondition, ...] | None = None


class ResourceClaimStatus(Wire, frozen=True):
    allocation: AllocationResult | None = None
    reserved_for: tuple[Consumer, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()


class ClaimMeta(ObjectMeta, frozen=True):
    finalizers: tuple[str, ...] = ()


class ResourceClaim(Wire, frozen=True):
    metadata: ClaimMeta = ClaimMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ClaimTemplateSpec(Wire, frozen=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimTemplateSpec = ClaimTemplateSpec()
