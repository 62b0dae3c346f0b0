# SPDX-License-Identifier: Apache-2.0
"""Why something is not placed: a closed set of reasons, each NEVER or NOT_YET, with the numbers.

NEVER: nothing that finishes or leaves helps; the pod or the cluster itself must change. NOT_YET: it can start when
others leave, or when an object that it waits for appears. Texts of the node rules are kube-scheduler's own where it has
the rule, so that dashboards and people recognise them.
"""

from __future__ import annotations

from enum import Enum, StrEnum

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.devices.mig.plan import InstanceChange


class When(StrEnum):
    NEVER = "Never"
    NOT_YET = "NotYet"


class Reason(Enum):
    """(code, text). Node rules first, in the order in which they are asked; then what concerns the pod or gang."""

    NODE_INVALID = ("NodeInvalid", "node(s) whose own object is invalid")
    UNSCHEDULABLE = ("NodeUnschedulable", "node(s) were unschedulable")
    TAINT = ("TaintNotTolerated", "node(s) had untolerated taint(s)")
    NODE_AFFINITY = ("NodeAffinityMismatch", "node(s) didn't match Pod's node affinity/selector")
    PLUGIN_GONE = ("DevicePluginGone", "node(s) whose kubelet has no GPU device plugin at this moment")
    QUARANTINED = ("NodeQuarantined", "node(s) that are quarantined, to be rebooted or repaired")
    MAINTENANCE = ("NodeMaintenance", "node(s) in maintenance, which have to get empty before the pod would end")
    SPARE = ("SpareNode", "node(s) that are spares of their domain (Fabric spec.spares)")
    HOST_PORT = ("HostPortTaken", "node(s) didn't have free ports for the requested pod ports")
    TOO_MANY_PODS = ("TooManyPods", "Too many pods")
    INSUFFICIENT = ("InsufficientResource", "Insufficient")
    GPU_SHARE = ("InsufficientGpuShare", "node(s) had no GPU with the requested share free")
    GPU_MEMORY = ("GpuTooSmall", "node(s) whose GPUs, or the parts of them, have less memory than requested")
    GPU_ISOLATION = ("GpuIsolationTooWeak", "node(s) whose GPUs are shared with less isolation than the pod demands")
    GPU_PARTS = ("GpuPartsOnly", "node(s) that offer parts of GPUs, of which several are no GPUs that work together")
    NVLINK = ("NvlinkMissing", "node(s) had no free GPUs that NVLinks connect")
    NOMINATED = ("HeldForNominatedPods", "node(s) whose room is held for nominated pods")
    VOLUME_NODE = ("VolumeNodeConflict", "node(s) had volume node affinity conflict")
    VOLUME_LIMIT = ("VolumeLimitReached", "node(s) exceed max volume count")
    SPREAD_LABEL = (
        "SpreadLabelMissing",
        "node(s) didn't match pod topology spread constraints (missing required label)",
    )
    SPREAD = ("SpreadConstraint", "node(s) didn't match pod topology spread constraints")
    AFFINITY = ("PodAffinity", "node(s) didn't match pod affinity rules")
    ANTI_AFFINITY = ("PodAntiAffinity", "node(s) didn't match pod anti-affinity rules")
    EXISTING_ANTI_AFFINITY = ("ExistingPodAntiAffinity", "node(s) didn't satisfy existing pods anti-affinity rules")
    DEVICES = ("DevicesNotAllocatable", "node(s) that cannot allocate the devices that the pod claims")
    CLAIM_NODE = ("DeviceClaimElsewhere", "node(s) where the devices that the pod's claims have cannot be used")
    KUBELET = ("KubeletWouldReject", "node(s) whose kubelet would reject the pod")
    REJECTED = ("KubeletRejected", "node(s) whose kubelet rejected pods of the same owner")
    BIND_BACKOFF = ("BindBackoff", "node(s) that refused this pod a moment ago")
    OUTSIDE_DOMAIN = ("OutsideDomain", "node(s) outside of the domain that holds the rest of the gang")

    INVALID = ("InvalidInput", "a value that cannot be honoured as written")
    GATED = ("SchedulingGated", "scheduling gates are not removed yet")
    HELD = ("Held", "the job is held (dovetail.dev/hold)")
    DELETING = ("BeingDeleted", "the pod is being deleted")
    NO_NODES = ("NoNodes", "no nodes available to schedule pods")
    NO_NODE_FITS = ("NoNodeFits", "no node fits")
    GANG_MISSING = ("GangMissing", "the gang that the pod names does not exist yet")
    GANG_INCOMPLETE = ("GangIncomplete", "fewer pods exist than the gang needs to start")
    GANG_TOO_LARGE = ("GangTooLarge", "the gang needs more than the cluster has when empty")
    GANG_DOES_NOT_FIT = ("GangDoesNotFit", "the gang needs more room than is free now")
    GANG_BROKEN = ("GangBroken", "pods of the gang failed for good, and the others are too few")
    GANG_FULL = ("GangFull", "the gang has as many pods as it may have")
    SEARCH_LIMIT = ("SearchLimit", "the search for a placement was stopped at its limit; a placement may exist")
    QUEUE_MISSING = ("QueueMissing", "the queue that the pod names does not exist")
    QUEUE_INVALID = ("QueueInvalid", "the queue of the pod cannot be used as it is written")
    QUEUE_NOT_LEAF = ("QueueNotLeaf", "the queue of the pod holds queues, and so no jobs")
    QUEUE_STOPPED = ("QueueStopped", "the queue is stopped, and starts no jobs")
    QUEUE_BUDGET = ("QueueBudgetUsed", "the queue has used its budget of the period, and starts no jobs")
    QUEUE_FORBIDDEN = ("QueueForbidden", "the pod's namespace may not use the queue")
    QUEUES_MIXED = ("QueuesMixed", "the pods of the gang name different queues")
    QUEUE_LIMIT = ("QueueLimit", "the queue would go beyond its limit")
    BEYOND_GUARANTEE = ("BeyondGuarantee", "what must not be preempted has to stay within its queue's guarantee")
    RESERVED = ("RoomReserved", "the room is held for a job that waits longer")
    HEADROOM = ("HeadroomKept", "the room is kept for more instances of a serving workload")
    EVICTING = ("WaitingForEvictions", "the room is held, and its victims are ending")
    CLAIM_MISSING = ("VolumeClaimMissing", "persistentvolumeclaim not found")
    CLAIM_UNBOUND = ("VolumeClaimUnbound", "pod has unbound immediate PersistentVolumeClaims")
    CLAIM_IN_USE = ("VolumeClaimInUse", "the ReadWriteOncePod claim is in use by another pod")
    CLAIM_TAKEN = ("VolumeClaimTaken", "the claim of an ephemeral volume was not created for this pod")
    DEVICE_CLAIM = ("DeviceClaimMissing", "resourceclaim not found")
    DEVICE_CLAIM_INVALID = ("DeviceClaimInvalid", "a resourceclaim that cannot be honoured as written")
    DEVICE_CLAIM_TAKEN = ("DeviceClaimTaken", "resourceclaim that others have")
    PLANE_MISSING = ("PlaneMissing", "the control plane that the request belongs to does not exist")
    PLANE_INVALID = ("PlaneInvalid", "the control plane of the request cannot be used as it is written")
    PLANE_SILENT = ("PlaneSilent", "no heartbeat has come from the agent of the control plane")
    PLANE_LIMIT = ("PlaneLimit", "the control plane has as many as it may have")
    OFFER_OUTSTANDING = ("OfferOutstanding", "another offer to the same control plane is not answered yet")
    OFFER_GONE = ("OfferGone", "the offer that the answer names is not there any more")
    COUNTER_REFUSED = ("CounterOfferRefused", "the counter-offer goes beyond what was asked for at first")
    TOO_EARLY = ("TooEarly", "no alternative may start yet")
    TOO_LATE = ("TooLate", "the latest start of each alternative has passed")
    BACKING_OFF = ("BackingOff", "offers were declined or not answered")
    LEASE_MISSING = ("LeaseMissing", "the lease that the pod names is not live")
    LEASE_FORBIDDEN = ("LeaseForbidden", "the lease that the pod names belongs to another control plane")
    LEASE_FENCED = ("LeaseFenced", "the fence that the pod shows is not that of its lease")
    LEASE_ENDING = ("LeaseEnding", "the lease that the pod names is being taken back")
    LEASE_NEEDED = ("LeaseNeeded", "pods of a control plane get devices within a lease only")
    LEASE_FULL = ("LeaseFull", "the lease has no room left for the pod")
    DEVICE_CLAIM_STUCK = ("DeviceClaimStuck", "the devices of a resourceclaim will not become ready")

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        self.text = text

    # Each member is one object. Enum's own is a function in Python, and reasons are looked up for every workload.
    __hash__ = object.__hash__


class NodeCount(Struct, frozen=True):
    """`nodes` nodes refused for one reason. `detail` narrows it (the resource, the taint); `nearest` is the node that
    came closest, with the numbers, or ""."""

    reason: Reason
    nodes: int
    when: When
    detail: str = ""
    nearest: str = ""

    def __str__(self) -> str:
        text = f"{self.reason.text} {self.detail}".rstrip() if self.detail else self.reason.text
        return f"{self.nodes} {text}" + (f" ({self.nearest})" if self.nearest else "")


class Repartition(Struct, frozen=True):
    """A proposal to change the MIG layout of idle cards of a node."""

    node: str
    changes: tuple[InstanceChange, ...]

    def __str__(self) -> str:
        return f"{self.node}: {'; '.join(str(change) for change in self.changes)}"


class Sure(StrEnum):
    """How sure an expected start is. Known: all pods whose end it waits for have limits of their run times. Learned:
    some of these ends are estimates. Unknown: there is no expected start."""

    KNOWN = "Known"
    LEARNED = "Learned"
    UNKNOWN = "Unknown"


class Expected(Struct, frozen=True):
    """When a job starts at the latest: `start_ms` (epoch ms, 0 where it is not known), and `basis`, what that is worked
    out from, or why it is not known."""

    sure: Sure
    start_ms: int = 0
    basis: str = ""


class Refusal(Struct, frozen=True):
    """Why a pod or gang is pending. `nodes` counts the nodes that refuse the pod (of a gang, its hardest pod), out of
    `total_nodes`. `repartition` would make the MIG instances that are lacking. `expected` is that of a job with a
    reservation. `reclaim` is the outcome of the search for victims, "" where there was none."""

    reason: Reason
    when: When
    detail: str = ""
    nodes: tuple[NodeCount, ...] = ()
    total_nodes: int = 0
    repartition: Repartition | None = None
    expected: Expected | None = None
    reclaim: str = ""

    @property
    def head(self) -> str:
        """The reason without the count of nodes."""
        return f"{self.reason.text}: {self.detail}" if self.detail else self.reason.text

    def __str__(self) -> str:
        if self.repartition is not None:
            return f"{replace(self, repartition=None)} It would fit with idle cards divided anew: {self.repartition}."
        if not self.nodes:
            return self.head
        counted = ", ".join(str(count) for count in self.nodes)
        if self.reason is Reason.NO_NODE_FITS:
            return f"0/{self.total_nodes} nodes are available: {counted}."
        refused = sum(count.nodes for count in self.nodes)
        return f"{self.head}. {refused}/{self.total_nodes} nodes have no room for one of its pods: {counted}."
