# SPDX-License-Identifier: Apache-2.0
"""The pods of a job, as a user sees them: what each of them does, and its place in the job.

Rule: the rank of a pod is the one that the scheduler wrote, else the index that its controller wrote.
"""

from __future__ import annotations

from typing import Literal

from msgspec import field

from dovetail.kube.gangs.ordinals import ordinals
from dovetail.kube.objects.base import ObjectMeta, Wire
from dovetail.kube.objects.containers import AnyContainerState
from dovetail.kube.objects.pods import SchedulingGroup
from dovetail.kube.objects.topology import Condition
from dovetail.kube.translate.annotations import RANK

PodState = Literal["waits", "starts", "runs", "ends", "succeeded", "failed"]
"""Without a node; bound, and its containers do not run yet; running; being deleted; over."""
_SCHEDULED = "PodScheduled"
UNTRIED = "no scheduler has tried it yet"
"""Why a pod waits that no scheduler has written a condition on."""


class JobContainerStatus(Wire, frozen=True):
    name: str = ""
    state: AnyContainerState = AnyContainerState()


class NamedContainer(Wire, frozen=True):
    name: str = ""


class JobPodSpec(Wire, frozen=True):
    node_name: str = ""
    scheduler_name: str = ""
    containers: tuple[NamedContainer, ...] = ()
    scheduling_group: SchedulingGroup | None = None


class JobPodStatus(Wire, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[JobContainerStatus, ...] = field(default_factory=tuple)


class JobPod(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: JobPodSpec = JobPodSpec()
    status: JobPodStatus = JobPodStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def state(self) -> PodState:
        phase = self.status.phase
        if phase in ("Succeeded", "Failed"):
            return "succeeded" if phase == "Succeeded" else "failed"
        if self.metadata.deletion_timestamp is not None:
            return "ends"
        if not self.spec.node_name:
            return "waits"
        return "runs" if phase == "Running" else "starts"

    @property
    def rank(self) -> int | None:
        """Its place in the job, from 0; None where nothing wrote one."""
        meta = self.metadata
        written, stated = meta.annotations.get(RANK, ""), ordinals(meta)
        if written.isdecimal() and len(written) < 10:
            return int(written)
        return stated[-1] if stated else None

    @property
    def why(self) -> str:
        """Why it waits for a node, by the scheduler's last word, or why its containers do not start; "" if nothing is
        known."""
        if not self.spec.node_name:
            return next((one.message for one in self.status.conditions if one.type == _SCHEDULED), UNTRIED)
        waiting = [one.state.waiting for one in self.status.container_statuses if one.state.waiting is not None]
        return next((f"{one.reason}: {one.message}".rstrip(": ") for one in waiting if one.reason), "")

    @property
    def how(self) -> str:
        """How it failed, in words."""
        ended = [one.state.terminated for one in self.status.container_statuses if one.state.terminated is not None]
        bad = next((one for one in ended if one.exit_code), None)
        if bad is not None:
            return f"exit code {bad.exit_code}" + (f" ({bad.reason})" if bad.reason not in ("", "Error") else "")
        return f"{self.status.reason}: {self.status.message}".strip(": ") or "failed"


def by_rank(pod: JobPod) -> tuple[int, str]:
    """The order in which pods are listed: by rank, those without one last."""
    rank = pod.rank
    return (rank if rank is not None else 1 << 30, pod.name)
