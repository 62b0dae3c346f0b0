# SPDX-License-Identifier: Apache-2.0
"""The pod's need of each of its GPUs, and the resource names of MIG slices.

Rules
- `gpu-memory` and `gpu-fraction` apply to each GPU or replica that the pod requests; a pod has at most one of the two.
  For whole GPUs `gpu-memory` is the minimum memory of each. They request no devices: a container must do that.
- A MIG slice has the memory of its profile: it is compared with `gpu-memory`, and the scheduler never shares it.
- Whole GPUs and MIG slices have strong isolation, unless the node shares them, which the core checks. Replicas with a
  resource name of their own (`.shared`) never have it, and replicas of a MIG slice guarantee nothing.
- `gpu-memory-asleep` needs `gpu-memory`, and is less than that: it is of replicas, which several instances have of one
  GPU. The pods of a namespace take turns with each other, and with no others.
- A misspelt MIG resource is a Problem. A well-spelt one of an unknown product may still be offered by a node; the core
  reports it if no node does.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dovetail.core.bounded_cache import Remembered, remembered
from dovetail.core.devices.gpu_sharing import STRONG
from dovetail.core.devices.mig import names
from dovetail.core.devices.mig.products import GEOMETRIES
from dovetail.core.model import GPU, SHARED_GPU, Problem, Request
from dovetail.kube.objects.base import Quantity
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.annotations import (
    ASLEEP_MEMORY,
    FRACTION,
    ISOLATION,
    MEMORY,
    PREFIX,
    SLEEP_ENGINE,
    WorkloadOptions,
)  # fmt: skip
from dovetail.kube.translate.problems import shown

_Items = tuple[tuple[str, Quantity], ...]
Misspelt = tuple[str, str, str]
"""Path, name and amount of a resource."""


def with_share(request: Request, options: WorkloadOptions, namespace: str) -> Request:
    """The request with the share of each GPU in `options`. A pod that requests only MIG slices shares no GPU."""
    found = _remembered(request, options)
    return replace(found, turn_group=namespace) if found.gpu_asleep_mib else found


def _with_share(request: Request, options: WorkloadOptions) -> Request:
    asked = dict(request.resources)
    if GPU not in asked and SHARED_GPU not in asked:
        return request
    return replace(
        request,
        gpu_milli=options.gpu_milli,
        gpu_memory_mib=options.gpu_memory_mib,
        gpu_asleep_mib=options.gpu_asleep_mib if options.gpu_asleep_mib < options.gpu_memory_mib else 0,
        isolation="" if options.isolation == "none" else options.isolation,
    )


_remembered = Remembered[Request](4096, _with_share)


def share_problems(pod: Pod, resources: tuple[tuple[str, int], ...], options: WorkloadOptions) -> Iterable[Problem]:
    """The invalid GPU annotations of a pod that requests these amounts."""
    asked = tuple(name for name, _ in resources)
    for key in (MEMORY, FRACTION, ISOLATION, ASLEEP_MEMORY, SLEEP_ENGINE):
        if rule := _share_rule(key, asked, options):
            field = PREFIX + key
            yield Problem(f"metadata.annotations[{field}]", shown(pod.metadata.annotations[field]), rule)


@remembered(1024)
def _share_rule(key: str, resources: tuple[str, ...], options: WorkloadOptions) -> str:
    """The rule that the annotation breaks, beside the other annotations and the requested resources; "" for none."""
    slices = [(name, read) for name in resources if (read := names.read(name)) is not None]
    gpus = [name for name in (SHARED_GPU, GPU) if name in resources]
    if key == FRACTION:
        if not options.gpu_milli:
            return ""
        if options.gpu_memory_mib:
            return f"has the meaning of {PREFIX}{MEMORY}: leave one of them away"
        return "" if gpus else f"no container asks for {SHARED_GPU} or {GPU}"
    if key in (ASLEEP_MEMORY, SLEEP_ENGINE):
        return _sleep_rule(key, gpus, options)
    isolation = options.gpu_memory_mib if key == MEMORY else options.isolation
    if not isolation:
        return ""
    if not gpus and not slices:
        return f"no container asks for {SHARED_GPU}, {GPU} or a MIG slice ({names.FORM})"
    shared = next((name for name, read in slices if read.shared), "")
    if shared and isolation != "none":
        return f"nothing is promised of {shared}: ask for {shared.removesuffix(names.SHARED)}"
    if key == ISOLATION:
        weak = isolation == STRONG and SHARED_GPU in gpus
        return f"is never promised for {SHARED_GPU}: ask for {GPU} or a MIG slice ({names.FORM})" if weak else ""
    return next((rule for name, read in slices if (rule := _too_small(name, read, options.gpu_memory_mib))), "")


def _sleep_rule(key: str, gpus: list[str], options: WorkloadOptions) -> str:
    asleep_mib, awake_mib = options.gpu_asleep_mib, options.gpu_memory_mib
    if key == SLEEP_ENGINE:
        return f"needs {PREFIX}{ASLEEP_MEMORY} beside it" if options.sleep_engine and not asleep_mib else ""
    if not asleep_mib:
        return ""
    if not awake_mib:
        return f"needs {PREFIX}{MEMORY} beside it: the memory of the instance while it is awake"
    if asleep_mib >= awake_mib:
        return f"must be less than {PREFIX}{MEMORY}, which is {awake_mib}Mi; nearest valid value: {awake_mib - 1}Mi"
    return "" if gpus else f"no container asks for {SHARED_GPU} or {GPU}: a MIG slice has the memory of its profile"


def _too_small(name: str, read: names.Name, memory_mib: int) -> str:
    """The rule that is broken if no product has that much memory in a slice of this name; "" if one has."""
    having = [geometry for geometry in GEOMETRIES if geometry.find(read.profile) is not None]
    most = max((g.profiles[g.index(read.profile)].memory_mib for g in having), default=memory_mib)
    if most >= memory_mib:
        return ""
    enough = [p for geometry in having for p in geometry.profiles if p.memory_mib >= memory_mib]
    larger = min(enough, key=lambda profile: (profile.memory_mib, profile.resource), default=None)
    return f"{name} has {most} MiB: ask for {larger.resource if larger is not None else GPU}"


def misspelt(path: str, limits: _Items, requests: _Items) -> Iterable[Misspelt]:
    """The resources that look like MIG slices and are not spelt as in device plugins. `path` is that of the container's
    resources. A name in both limits and requests is returned once."""
    limited = {name for name, _ in limits}
    for place, name, amount in (
        *[("limits", name, amount) for name, amount in limits],
        *[("requests", name, amount) for name, amount in requests if name not in limited],
    ):
        if names.is_like(name) and names.read(name) is None:
            yield f"{path}.{place}[{name}]", name, str(amount)


@remembered(4096)
def name_problems(found: tuple[Misspelt, ...]) -> tuple[Problem, ...]:
    """A Problem for each misspelt resource, with the nearest valid name."""
    return tuple(Problem(field, amount, names.fault(name)) for field, name, amount in found)
