# SPDX-License-Identifier: Apache-2.0
"""Which devices a pod of an endpoint asks for, for how long, and with which gang it negotiates.

Rules
- Pods of a gang that ask for the same are one request to the broker: they get their devices together or not at all.
- A gang is the annotation `dovetail.dev/gang`, else the PodGroup of the pod, else the object that controls it (a Job),
  else the pod alone. It negotiates once as many pods are there as it needs to start.
- The term is `dovetail.dev/lease-duration`, else `activeDeadlineSeconds`, else ten minutes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dovetail.agentplanes import names
from dovetail.agentplanes.host_pod import MODEL_LABEL, NotCarried
from dovetail.apiserver.objects import Object, object_at, objects_at, text_at, value_at
from dovetail.apiserver.pods import requests_of
from dovetail.core.bargaining.types import LeaseAlternative, ServiceClass
from dovetail.core.model import GPU
from dovetail.core.quantities import QuantityError
from dovetail.kube.api.resources import NAME
from dovetail.kube.translate.annotation_values import LONGEST_TERM_MS
from dovetail.kube.translate.annotations import LEASE_CLASS, LEASE_DURATION, PREFIX, TABLE

DEFAULT_MS = 600_000
MOST_DEVICES, MOST_PER_POD = 1024, 64
_GANG, _GANG_MIN = "dovetail.dev/gang", "dovetail.dev/gang-min"
_MIG = re.compile(r"nvidia\.com/mig-[0-9a-z.+-]+")
GroupMinima = Mapping[tuple[str, str], int]
"""By namespace and name of each PodGroup of the endpoint, how many pods it needs to start."""


class PodWant(Struct, frozen=True):
    """What one pod asks for: `gpus` devices of one node. CPU and memory are for each device."""

    gpus: int
    resource: str = GPU
    models: tuple[str, ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    duration_ms: int = DEFAULT_MS
    service: ServiceClass = ServiceClass.BURST

    def alternative(self, pods: int) -> LeaseAlternative:
        """What so many of them ask the broker for."""
        return LeaseAlternative(
            count=pods * self.gpus, per_node=self.gpus, resource=self.resource, models=self.models,
            cpu_milli=self.cpu_milli, memory_bytes=self.memory_bytes, duration_ms=self.duration_ms,
            service=self.service,
        )  # fmt: skip

    def held_by(self, alternative: LeaseAlternative) -> bool:
        """Whether a lease of this has devices for such a pod."""
        return (alternative.resource, alternative.per_node) == (self.resource, self.gpus)


class PodGang(Struct, frozen=True):
    """With which pods a pod negotiates. `missing` is the PodGroup that it names and that is not there."""

    digest: str
    least: int = 1
    missing: str = ""


def want_of(pod: Object) -> PodWant | NotCarried | None:
    """What the pod asks for; None for a pod without devices."""
    try:
        requests = requests_of(pod)
    except QuantityError as error:
        return NotCarried(str(error), "InvalidInput")
    devices = {name: n for name, n in requests.items() if n and (name == GPU or _MIG.fullmatch(name))}
    if not devices:
        return None
    if len(devices) > 1:
        return NotCarried(f"the pod asks for {' and '.join(sorted(devices))}; a lease is of one kind of device")
    ((resource, gpus),) = devices.items()
    if gpus > MOST_PER_POD:
        return NotCarried(f"the pod asks for {gpus} devices; at most {MOST_PER_POD} are on one node")
    annotations = object_at(pod, "metadata.annotations")
    duration_ms = _duration_ms(pod, annotations)
    if isinstance(duration_ms, NotCarried):
        return duration_ms
    service = _value(annotations, LEASE_CLASS, ServiceClass.BURST.value)
    if isinstance(service, NotCarried):
        return service
    model = object_at(pod, "spec.nodeSelector").get(MODEL_LABEL)
    if model is not None and not (isinstance(model, str) and NAME.fullmatch(model)):
        return NotCarried(f"spec.nodeSelector[{MODEL_LABEL}]: no product has this name", "InvalidInput")
    return PodWant(
        gpus, resource, (model,) if model else (), -(-requests.get("cpu", 0) // gpus),
        -(-requests.get("memory", 0) // gpus), duration_ms, ServiceClass(service),
    )  # fmt: skip


def _duration_ms(pod: Object, annotations: Object) -> Any:
    """The term of the lease in ms, or why it is none."""
    deadline_s = value_at(pod, "spec.activeDeadlineSeconds")
    deadline_ms = deadline_s * 1000 if isinstance(deadline_s, int) and deadline_s > 0 else DEFAULT_MS
    return _value(annotations, LEASE_DURATION, min(LONGEST_TERM_MS, deadline_ms))


def _value(annotations: Object, name: str, default: Any) -> Any:
    """The value of an annotation as its row of the table parses it, or why it cannot be carried."""
    key, text = TABLE[name], annotations.get(PREFIX + name)
    if text is None:
        return default
    try:
        return key.parse(str(text)[:100])
    except ValueError:
        return NotCarried(f"annotation {PREFIX}{name}: {str(text)[:100]!r} {key.rule}", "InvalidInput")


def gang_of(pod: Object, groups: GroupMinima) -> PodGang:
    """The gang of the pod."""
    annotations = object_at(pod, "metadata.annotations")
    namespace, uid = text_at(pod, "metadata.namespace"), text_at(pod, "metadata.uid")
    named = str(annotations.get(_GANG_MIN, ""))[:9]
    least = int(named) if named.isdecimal() else 1
    if gang := annotations.get(_GANG):
        return PodGang(names.digest("gang", namespace, str(gang)), least)
    if group := text_at(pod, "spec.schedulingGroup.podGroupName"):
        known = groups.get((namespace, group))
        return PodGang(
            names.digest("group", namespace, group), max(least, known or 1), "" if known is not None else group
        )
    for owner in objects_at(pod, "metadata.ownerReferences"):
        if owner.get("controller") is True:
            return PodGang(names.digest("owner", text_at(owner, "uid")), least)
    return PodGang(names.digest("pod", uid), least)
