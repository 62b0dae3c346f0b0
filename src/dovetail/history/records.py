# SPDX-License-Identifier: Apache-2.0
"""What is kept of the past: GPUs, holds, pods, use, and gaps.

Rules
- Times are epoch milliseconds, UTC. A record covers the time from `start_ms` on and before `end_ms`; an `end_ms` of 0
  is an end that is not known yet: it still is so.
- A GPU is named by its UUID, a pod by its uid. A GPU whose UUID is not known is named NODE/INDEX: where pods are only
  counted, the GPU that a pod holds is an assumption, and `named` of its hold is false.
- Amounts are thousandths of a GPU, as queues count them (`core.queues.device_units`).
- Amounts of use are integrals: thousandths times milliseconds. So they add up, however long the times are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

Health = Literal["healthy", "unhealthy"]
HoldKind = Literal["whole", "instance", "share", "claimed"]
Outcome = Literal["", "Completed", "Failed", "Preempted", "Evicted", "Deleted", "Lost"]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
USE_BINS = 20
"""The bins of a histogram of use: of 5 % each, the last one with 100 %."""


HOST_CPU, HOST_MEMORY = "host_cpu", "host_memory"
"""Activities that are no GPU's: the CPUs that the pod used of its node, in thousandths, and the most memory of the
hour, in MiB, each divided by the number of devices that the pod held."""


class Period(Struct, frozen=True):
    """From `start_ms` on and before `end_ms`."""

    start_ms: int
    end_ms: int

    @property
    def ms(self) -> int:
        return max(0, self.end_ms - self.start_ms)

    def clipped(self, start_ms: int, end_ms: int) -> Period:
        """The part of the times that is in the period; `end_ms` 0 is an end after it."""
        return Period(max(start_ms, self.start_ms), min(end_ms or self.end_ms, self.end_ms))


class GpuSpan(Struct, frozen=True, gc=False):
    """A GPU in a node for as long as nothing of this changed. `index` is its index in the node, `gpus` the number of
    GPUs of the node, of which each bears an equal part of the node's price. What is "" is not known. `spot`: the node
    can be interrupted."""

    gpu: str
    node: str
    index: int
    gpus: int
    model: str
    health: Health
    start_ms: int
    end_ms: int = 0
    instance_type: str = ""
    region: str = ""
    zone: str = ""
    spot: bool = False


class GpuHold(Struct, frozen=True, gc=False):
    """What a pod, or a lease, holds of a GPU: `milli` thousandths. `device` names the part: the MIG instance or the
    device by claim, "" for a whole GPU or a share."""

    pod_uid: str
    gpu: str
    milli: int
    kind: HoldKind
    start_ms: int
    end_ms: int = 0
    device: str = ""
    named: bool = True


class PodRecord(Struct, frozen=True, gc=False):
    """A pod that asked for GPUs, from the time when it was first seen. Times that have not come are 0.

    `job` is the name of its job in the namespace, `kind` the kind of the object that made the job. `lease` is the lease
    inside of which it runs. `gpus` is what it requests, in words; `gpu_milli` what that counts. `outcome` is how it
    ended: `Lost` if it was gone after a gap. `code` and `message` are why it failed or was evicted.
    `cpu_milli` and `memory_mib` are what it requests of its node, 0 for nothing, `checkpoint_interval_ms` how often it
    declares to save its work, 0 if it does not; records of an older program have 0 in all three."""

    uid: str
    namespace: str
    name: str
    job: str
    kind: str = ""
    user: str = ""
    queue: str = ""
    scheduler: str = ""
    lease: str = ""
    priority: int = 0
    labels: dict[str, str] = {}
    gpus: str = ""
    gpu_milli: int = 0
    node: str = ""
    submitted_ms: int = 0
    bound_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    restarts: int = 0
    outcome: Outcome = ""
    code: str = ""
    message: str = ""
    cpu_milli: int = 0
    memory_mib: int = 0
    checkpoint_interval_ms: int = 0


class UseHour(Struct, frozen=True):
    """How a pod used what it holds of a GPU within the hour that begins at `hour_ms`; `pod_uid` "" is the use of a GPU
    that no pod held.

    `measured_ms` is the time for which there are samples, and all else is about that time. `use` is the integral of
    real use (`monitoring.real_use`): thousandths of what the pod holds, times ms. `idle_ms` is the time below the
    threshold of idle GPUs, `memory_peak_mib` the most memory that was used. `histogram[i]` is the time in ms in which
    real use was in bin i of `USE_BINS`; `activity` has the integrals of the activities that make up real use and of
    others by which a bottleneck is recognized, in thousandths times ms, or bytes times ms / s, and what the pod used of
    its node (`HOST_CPU`, `HOST_MEMORY`). `used_until_ms` is the
    last time in the hour at which it was not idle, 0 if it was idle all the time.

    `source` is what measured: the node, and since when it counts. A source measures the whole hour, so a later record
    of the same source replaces the earlier one; those of two sources add up."""

    gpu: str
    pod_uid: str
    hour_ms: int
    measured_ms: int
    use: int
    idle_ms: int
    memory_peak_mib: int = 0
    histogram: tuple[int, ...] = ()
    activity: dict[str, int] = {}
    used_until_ms: int = 0
    source: str = ""

    def measured_since(self, since_ms: int) -> int:
        """The time that was measured from then on: of the hour in which it lies, at most what is left of it."""
        left_ms = self.hour_ms + HOUR_MS - max(since_ms, self.hour_ms)
        return max(0, min(self.measured_ms, left_ms))


class UseSum(Struct, frozen=True, gc=False):
    """How a pod used its GPUs in a period, all hours and GPUs added up (see `UseHour`)."""

    pod_uid: str
    measured_ms: int
    use: int
    idle_ms: int


class Gap(Struct, frozen=True):
    """A time for which nothing was recorded: what is known of it is what was so before and after."""

    start_ms: int
    end_ms: int
    reason: str


class HistoryBatch(Struct, frozen=True):
    """What is to be written at once. Spans and holds replace those with the same key (`gpu`, or `gpu`, `pod_uid` and
    `device`) and the same start; pods those of their uid; hours of use those of the same GPU, pod, hour and source.
    `until_ms` is the time up to which all is known then."""

    until_ms: int
    spans: Sequence[GpuSpan] = ()
    holds: Sequence[GpuHold] = ()
    pods: Sequence[PodRecord] = ()
    use: Sequence[UseHour] = ()
    gaps: Sequence[Gap] = ()
