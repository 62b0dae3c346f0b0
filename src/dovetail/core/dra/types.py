# SPDX-License-Identifier: Apache-2.0
"""The types of devices by claim: frozen records of ResourceSlices, DeviceClasses and ResourceClaims.

Rules: a record has all that the allocation depends on, with defaults applied. It leaves out opaque configuration, which
the driver code (`kube`) adds when it writes an allocation. Capacities are exact integers in thousandths of the
quantity's unit (`_milli`), as quantities may be fractions of one. Attribute and capacity names are qualified: a bare
name gets the driver's domain.
Source: k8s.io/api/resource/v1 (1.37).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dovetail.core.model import NodeTerm, Problem, Toleration

DeviceEffect = Literal["None", "NoSchedule", "NoExecute"]
AllocationMode = Literal["ExactCount", "All"]
SHARED = ""
"""The node of a slice that is for several nodes."""


class Version(Struct, frozen=True):
    """A semantic version attribute, as it is written."""

    text: str


Scalar = bool | int | str | Version
Value = Scalar | tuple[Scalar, ...]
"""An attribute; a tuple is a list of values of one type."""


class DeviceTaint(Struct, frozen=True):
    """`added_ms` is epoch milliseconds, 0 unknown."""

    key: str
    value: str
    effect: DeviceEffect
    added_ms: int = 0


class RequestPolicy(Struct, frozen=True):
    """The valid requests for a capacity of a shared device: one of `valid_milli`, or from `least_milli` in steps up to
    `most_milli` (None: the capacity itself). A request that does not name it consumes `default_milli`."""

    default_milli: int
    valid_milli: tuple[int, ...] = ()
    least_milli: int | None = None
    most_milli: int | None = None
    step_milli: int | None = None


class Capacity(Struct, frozen=True):
    """`written` is its name as the slice writes it, with a domain or without, which requests and results use; "" where
    it is not known: then both names are accepted."""

    milli: int
    policy: RequestPolicy | None = None
    written: str = ""


class CounterUse(Struct, frozen=True):
    """What a device consumes of a counter set of its pool: (counter, milli), sorted."""

    counter_set: str
    amounts: tuple[tuple[str, int], ...]


class Device(Struct, frozen=True):
    """`attributes` and `capacity` are by qualified name ("domain/name"), sorted. `node`, `node_terms` and `all_nodes`
    are where it can be used if its slice leaves that to each device; see `Slice`. `binds_to_node` restricts an
    allocation to the chosen node. `conditions` are binding conditions: the driver waits for them before the bind."""

    name: str
    attributes: tuple[tuple[str, Value], ...] = ()
    capacity: tuple[tuple[str, Capacity], ...] = ()
    taints: tuple[DeviceTaint, ...] = ()
    consumes: tuple[CounterUse, ...] = ()
    shareable: bool = False
    """`allowMultipleAllocations`."""
    node: str = SHARED
    node_terms: tuple[NodeTerm, ...] | None = None
    all_nodes: bool = False
    binds_to_node: bool = False
    conditions: tuple[str, ...] = ()
    failure_conditions: tuple[str, ...] = ()


class CounterSet(Struct, frozen=True):
    """(counter, milli), sorted."""

    name: str
    counters: tuple[tuple[str, int], ...]


class Slice(Struct, frozen=True):
    """A ResourceSlice. One of `node`, `node_terms`, `all_nodes` and `per_device` is where its devices can be used: on
    one node, on the nodes that the terms match, everywhere, or as each device states. `pool_slices` of generation
    `generation` make the pool complete. `problem` is the fault that makes its pool invalid."""

    name: str
    driver: str
    pool: str
    generation: int
    pool_slices: int
    node: str = SHARED
    node_terms: tuple[NodeTerm, ...] | None = None
    all_nodes: bool = False
    per_device: bool = False
    devices: tuple[Device, ...] = ()
    counter_sets: tuple[CounterSet, ...] = ()
    problem: Problem | None = None


class DeviceClass(Struct, frozen=True):
    """`selectors` are CEL expressions that must all hold. `extended_resource` is the resource name that stands for one
    device of this class in a container's requests, "" for none; `created_ms` orders classes with the same name."""

    name: str
    selectors: tuple[str, ...] = ()
    extended_resource: str = ""
    created_ms: int = 0


class DeviceRequest(Struct, frozen=True):
    """One exact request, or one alternative of `alternatives` (firstAvailable). `name` is "main" or "main/sub".
    `amounts` are the capacities requested of each device (milli, by name as written), for shareable devices."""

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    mode: AllocationMode = "ExactCount"
    count: int = 1
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    amounts: tuple[tuple[str, int], ...] = ()


class Constraint(Struct, frozen=True):
    """Devices of the named requests (empty: of all) have the same value (`match`) or pairwise different values
    (`distinct`) of an attribute; the other name is ""."""

    requests: tuple[str, ...] = ()
    match: str = ""
    distinct: str = ""


class ClaimSpec(Struct, frozen=True, cache_hash=True):
    """What a claim requests; equal specs request the same. `requests[i]` are the alternatives of the i-th request in
    the order of preference; an exact request has one. The hash is computed once, since every pod looks specs up."""

    requests: tuple[tuple[DeviceRequest, ...], ...] = ()
    constraints: tuple[Constraint, ...] = ()


class Grant(Struct, frozen=True):
    """One allocated device of a claim: an entry of `status.allocation.devices.results`. `share` is the id of its share
    of a shareable device ("" for whole devices); `consumed` is what it consumes of it, (name, milli), sorted by the
    device's qualified names: a name is as the slice writes it, or qualified. The conditions are those of the
    device."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    share: str = ""
    consumed: tuple[tuple[str, int], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    conditions: tuple[str, ...] = ()
    failure_conditions: tuple[str, ...] = ()


class Allocation(Struct, frozen=True):
    """The devices of a claim, and where they can be used: on one `node`, on the nodes that the terms match, or, where
    both are empty, everywhere."""

    grants: tuple[Grant, ...] = ()
    node: str = SHARED
    node_terms: tuple[NodeTerm, ...] | None = None


class Claim(Struct, frozen=True):
    """A ResourceClaim. `owner_pod` is the uid of the pod that it was made for, "" where it has none. `reserved_for` are
    the uids of the consumers, at most 256. `allocation` None: nothing is allocated. If its devices have binding
    conditions, `failed` is the reason why they will never be ready ("": they may become ready), and `unready_ms` is
    since when they are awaited (epoch ms; 0: they are ready, or it is unknown)."""

    uid: str
    namespace: str
    name: str
    spec: ClaimSpec
    owner_pod: str = ""
    allocation: Allocation | None = None
    reserved_for: tuple[str, ...] = ()
    deleting: bool = False
    problem: Problem | None = None
    failed: str = ""
    unready_ms: int = 0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"
