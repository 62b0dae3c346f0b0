# SPDX-License-Identifier: Apache-2.0
"""The work of a pod: its family, its maximum run time, and the loss when it is evicted.

Rules
- The family is `NAMESPACE/KIND/NAME@IMAGE`: kind and name of the workload object from the pod's labels, else of its
  controller, else of the pod itself, and the image of its first container.
- The parts that differ between runs are removed from the end of NAME: whole numbers (the Jobs of a CronJob, dates),
  unique suffixes of the API server and the controllers of Kubernetes (5 to 10 of the characters
  bcdfghjklmnpqrstvwxz2456789), hexadecimal hashes of 7 to 40 characters with a digit, and UUIDs. Parts are separated by
  `-`, `.` or `_`; the first part always stays. So `nightly-29345670`, `nightly-x7k2p` and `nightly-3f2a91c` are one
  family.
- Of several limits of the run time the smallest counts: annotations and activeDeadlineSeconds, of the pod and of the
  object that declares its gang. For all other values the object takes precedence over its pods.
Source: k8s.io/apimachinery pkg/util/rand (the characters), k8s.io/kubernetes pkg/controller/cronjob/utils.go.
"""

from __future__ import annotations

import re

from dovetail.core.bounded_cache import Remembered, remembered, same
from dovetail.core.model import Work
from dovetail.kube.gangs.declared import OwnerRef
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.annotations import WorkloadOptions

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_HASH = r"(?=[0-9a-f]*[0-9])[0-9a-f]{7,40}"
RUN = re.compile(rf"(?<=.)(?:[-._](?:[0-9]+|[bcdfghjklmnpqrstvwxz2456789]{{5,10}}|{_HASH}|{_UUID}))+\Z")
"""The parts at the end of a name that differ between runs."""
_GRACE_S = 30
_LONGEST = 512
"""The characters that are read of a name and of an image: the API server limits neither in a pod."""

# Equal for all pods of a job, and one object for all of them.
_shared = Remembered[Work](4096, same)


def work_of(obj: Pod, options: WorkloadOptions, owner: OwnerRef | None) -> Work:
    """The work of the pod from its own object; `owner` is the workload object that it belongs to."""
    meta, spec = obj.metadata, obj.spec
    kind, name = "Pod", meta.name
    if owner is not None:
        kind, name = owner.resource.kind, owner.name
    else:
        for reference in meta.owner_references:
            if reference.controller:
                kind, name = reference.kind, reference.name
                break
    image = spec.containers[0].image if spec.containers else ""
    deadline_ms = 1000 * (spec.active_deadline_seconds or 0)
    grace_s = _GRACE_S if spec.termination_grace_period_seconds is None else spec.termination_grace_period_seconds
    return _shared(
        Work(
            family=_family(meta.namespace, kind, name[:_LONGEST], image[:_LONGEST]),
            max_runtime_ms=min([ms for ms in (options.max_runtime_ms, deadline_ms) if ms > 0], default=0),
            checkpoint_interval_ms=options.checkpoint_interval_ms,
            startup_ms=options.startup_ms,
            preemptible=options.preemptible,
            movable=options.movable,
            preempts=spec.preemption_policy != "Never",
            # As in the API server, a negative value means one second.
            grace_ms=1000 * grace_s if grace_s >= 0 else 1000,
            headroom=options.headroom,
            headroom_within_ms=options.headroom_return_ms,
        )
    )


@remembered(4096)
def with_declared(own: Work, declared: WorkloadOptions, deadline_ms: int) -> Work:
    """The work of a pod; its gang is declared with these annotations and this limit of the run time (0: none)."""
    limits_ms = own.max_runtime_ms, declared.max_runtime_ms, deadline_ms
    return _shared(
        Work(
            family=own.family,
            max_runtime_ms=min([ms for ms in limits_ms if ms > 0], default=0),
            checkpoint_interval_ms=declared.checkpoint_interval_ms or own.checkpoint_interval_ms,
            startup_ms=declared.startup_ms or own.startup_ms,
            preemptible=own.preemptible if declared.preemptible is None else declared.preemptible,
            movable=own.movable if declared.movable is None else declared.movable,
            preempts=own.preempts,
            grace_ms=own.grace_ms,
            headroom=declared.headroom or own.headroom,
            headroom_within_ms=declared.headroom_return_ms if declared.headroom else own.headroom_within_ms,
        )
    )


@remembered(4096)
def _family(namespace: str, kind: str, name: str, image: str) -> str:
    return f"{namespace}/{kind}/{RUN.sub('', name)}@{image}"
