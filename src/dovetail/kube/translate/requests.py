# SPDX-License-Identifier: Apache-2.0
"""The effective requests of a pod, computed exactly as in kube-scheduler and the kubelet.

Rules
- A limit without a request is the request (the API server sets it already; this is the backstop).
- Containers run together, after the init containers. A sidecar (an init container that always restarts) keeps running
  beside everything after it. The pod needs the largest sum that occurs.
- For a pod with statuses the maximum counts of the spec, the allocation by the kubelet, and the values in force. The
  spec does not count once the kubelet has reported the resize as infeasible.
- Pod-level requests replace cpu, memory and hugepages; then the overhead is added.
- Sums are exact and rounded up once, at the end. Zero amounts are left out. Of more than MOST_RESOURCES resources the
  native ones and GPUs are kept, and the first of the others by name.
- GPUs and all other extended resources are whole numbers, with equal request and limit.
- A quantity that breaks a rule gives a Problem and counts as absent. One above the maximum counts as the maximum.
- The containers are listed individually if one requests a resource that a device claim may provide.
- All results that depend on the quantities are computed together, once for all pods of a template. They include the
  input of the kubelet's managers (see `managed`) and the misspelt names of MIG slices (see `fractions`).
Source: k8s.io/component-helpers/resource/helpers.go (1.37), core validation of ResourceRequirements.
Not supported: node-allocatable resources of DRA claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from dovetail.core import model
from dovetail.core.bounded_cache import Remembered
from dovetail.core.devices.kubelet.pods import ManagedKind, ManagedPod
from dovetail.core.dra.extended import IMPLICIT
from dovetail.core.model import CPU, MEMORY, Problem
from dovetail.core.quantities import MAX_AMOUNT, QuantityError, parse
from dovetail.kube.objects.base import Quantity
from dovetail.kube.objects.pods import SIDECAR, ContainerStatus, Pod, PodStatus, ResourceRequirements
from dovetail.kube.translate.fractions import Misspelt, misspelt
from dovetail.kube.translate.limits import MOST_RESOURCES, counts_always, is_native
from dovetail.kube.translate.managed import managed_of

Resources = tuple[tuple[str, int], ...]
Amounts = dict[str, Fraction]
_Items = tuple[tuple[str, Quantity], ...]


class _Parts(NamedTuple):
    """The inputs of one container's requests; `allocated` and `in_force` are None if the status lacks them."""

    requests: _Items
    limits: _Items
    name: str = ""
    sidecar: bool = False
    allocated: _Items | None = None
    in_force: _Items | None = None


class _Container(NamedTuple):
    """The three views of one container's requests that upstream sums up separately."""

    name: str
    sidecar: bool
    spec: Amounts
    allocated: Amounts
    in_force: Amounts


class Effective(NamedTuple):
    """The amounts by resource in the core's units, sorted by name; the problems of the quantities; the containers if a
    claim may provide devices for them; the pod as a kubelet's managers see it (None: none of them can refuse it); the
    misspelt names of MIG slices."""

    resources: Resources
    problems: tuple[Problem, ...]
    containers: tuple[model.Container, ...]
    managed: ManagedPod | None
    misspelt: tuple[Misspelt, ...]


def effective(pod: Pod) -> Effective:
    """The effective requests of a pod.

    The result depends only on the quantities and is cached by them: pods of one template share it.
    """
    spec, status = pod.spec, pod.status
    reported = {s.name: s for s in (*status.init_container_statuses, *status.container_statuses)}
    infeasible = any(c.type == "PodResizePending" and c.reason == "Infeasible" for c in status.conditions)
    main = tuple([_parts(c.resources, reported.get(c.name), c.name, c.restart_policy) for c in spec.containers])
    init = tuple([_parts(c.resources, reported.get(c.name), c.name, c.restart_policy) for c in spec.init_containers])
    return _remembered(main, init, _parts(spec.resources, status), tuple(spec.overhead.items()), infeasible)


def _parts(
    asked: ResourceRequirements, status: ContainerStatus | PodStatus | None, name: str = "", restarts: str = ""
) -> _Parts:
    """The inputs of a container, or of the pod as a whole."""
    requests, limits = tuple(asked.requests.items()), tuple(asked.limits.items())
    allocated = status.allocated_resources if status is not None else None
    in_force = status.resources.requests if status is not None and status.resources is not None else None
    return _Parts(
        requests, limits, name, restarts == SIDECAR,
        tuple(allocated.items()) if allocated else None, tuple(in_force.items()) if in_force else None,
    )  # fmt: skip


def _effective(
    containers: tuple[_Parts, ...],
    init_containers: tuple[_Parts, ...],
    pod_level: _Parts,
    overhead_items: _Items,
    infeasible: bool,
) -> Effective:
    problems: list[Problem] = []
    main = [_read(parts, infeasible, f"spec.containers[{i}]", problems) for i, parts in enumerate(containers)]
    init = [_read(parts, infeasible, f"spec.initContainers[{i}]", problems) for i, parts in enumerate(init_containers)]
    overhead = _amounts(overhead_items, "spec.overhead", problems)
    allocated = _amounts(pod_level.allocated or (), "status.allocatedResources", problems)
    in_force = _amounts(pod_level.in_force or (), "status.resources.requests", problems)

    total = {} if infeasible else _together(main, init, lambda c: c.spec)
    if pod_level.allocated is not None and pod_level.in_force is not None:
        # The kubelet's sums for the whole pod, which include pod-level requests and the overhead.
        _raise_to(total, allocated)
        _raise_to(total, in_force)
    elif any(one.in_force is not one.spec or one.allocated is not one.spec for one in (*main, *init)):
        _raise_to(total, _together(main, init, lambda c: c.allocated))
        _raise_to(total, _together(main, init, lambda c: c.in_force))

    asked = _pod_level(pod_level, total, problems)
    if asked:
        whole = dict(asked)
        if pod_level.in_force is not None:
            whole = {} if infeasible else whole
            _raise_to(whole, allocated)
            _raise_to(whole, in_force)
        total.update({name: value for name, value in whole.items() if _at_pod_level(name)})
    _add(total, overhead)
    if len(total) > MOST_RESOURCES:
        rule = f"ask for too many resources; the limit is {MOST_RESOURCES}"
        problems.insert(0, Problem("spec.containers[*].resources", str(len(total)), rule))
        total = dict(sorted(total.items(), key=lambda item: (not counts_always(item[0]), item[0]))[:MOST_RESOURCES])
    managed = None
    if containers:
        kinds = [
            (p.requests, p.limits, ManagedKind.SIDECAR if p.sidecar else ManagedKind.INIT) for p in init_containers
        ]
        kinds += [(p.requests, p.limits, ManagedKind.APP) for p in containers]
        managed = managed_of(kinds, pod_level.requests, pod_level.limits, overhead_items)
    wrong = [
        found
        for place, every in (("initContainers", init_containers), ("containers", containers))
        for i, p in enumerate(every)
        for found in misspelt(f"spec.{place}[{i}].resources", p.limits, p.requests)
    ]
    # A user reads no more problems than that, and a pod can have thousands.
    return Effective(_rounded(total), tuple(problems[:MOST_RESOURCES]), _listed(init, main), managed, tuple(wrong))


_remembered: Remembered[Effective] = Remembered(8192, _effective)


def _listed(init: list[_Container], main: list[_Container]) -> tuple[model.Container, ...]:
    if not any(amount and _may_be_claimed(name) for one in (*init, *main) for name, amount in one.spec.items()):
        return ()
    passing = [(one, not one.sidecar) for one in init] + [(one, False) for one in main]
    return tuple(model.Container(one.name, _rounded(one.spec, zeros=True), passes) for one, passes in passing)


def _may_be_claimed(name: str) -> bool:
    return not is_native(name) or name.startswith(IMPLICIT)


def _read(parts: _Parts, infeasible: bool, path: str, problems: list[Problem]) -> _Container:
    spec = _requests(parts, f"{path}.resources", problems)
    status = f"the status of {path}"
    fallback: Amounts = {} if infeasible else spec
    allocated = fallback if parts.allocated is None else _amounts(parts.allocated, status, problems)
    in_force = allocated if parts.in_force is None else _amounts(parts.in_force, status, problems)
    return _Container(parts.name, parts.sidecar, spec, allocated, in_force)


def _requests(parts: _Parts, path: str, problems: list[Problem]) -> Amounts:
    limits = _amounts(parts.limits, f"{path}.limits", problems)
    requests = _amounts(parts.requests, f"{path}.requests", problems)
    written = dict(parts.limits)
    for name, request in requests.items():
        at, shown = f"{path}.requests[{name}]", str(dict(parts.requests)[name])
        can_differ = is_native(name) and not name.startswith("hugepages-")
        if name not in written and not can_differ:
            problems.append(Problem(at, shown, f"needs an equal limit: set {path}.limits[{name}] to {shown}"))
        elif name in limits and (request > limits[name] if can_differ else request != limits[name]):
            rule = "must not be more than the limit" if can_differ else "must equal the limit"
            problems.append(Problem(at, shown, f"{rule}; nearest valid value: {written[name]}"))
    return {**limits, **requests}


def _pod_level(parts: _Parts, total: Amounts, problems: list[Problem]) -> Amounts:
    """The pod-level requests. A pod-level limit is the request of a resource that no container requests."""
    requests = _amounts(parts.requests, "spec.resources.requests", problems)
    limits = _amounts(parts.limits, "spec.resources.limits", problems)
    defaults = {name: limit for name, limit in limits.items() if name not in total}
    return {name: value for name, value in {**defaults, **requests}.items() if _at_pod_level(name)}


def _at_pod_level(name: str) -> bool:
    return name in (CPU, MEMORY) or name.startswith("hugepages-")


def _together(main: list[_Container], init: list[_Container], view: Callable[[_Container], Amounts]) -> Amounts:
    """The peak sum of one view of the containers over the life of the pod."""
    total: Amounts = {}
    beside: Amounts = {}
    peak: Amounts = {}
    for container in main:
        _add(total, view(container))
    for container in init:
        if container.sidecar:
            _add(total, view(container))
            _add(beside, view(container))
            _raise_to(peak, beside)
        else:
            now = dict(beside)
            _add(now, view(container))
            _raise_to(peak, now)
    _raise_to(total, peak)
    return total


def _add(total: Amounts, more: Mapping[str, Fraction]) -> None:
    for name, value in more.items():
        total[name] = total[name] + value if name in total else value


def _raise_to(total: Amounts, floor: Mapping[str, Fraction]) -> None:
    for name, value in floor.items():
        if name not in total or total[name] < value:
            total[name] = value


def _amounts(items: Iterable[tuple[str, Quantity]], path: str, problems: list[Problem]) -> Amounts:
    found: Amounts = {}
    for name, quantity in items:
        at, text = f"{path}[{name}]", str(quantity)
        try:
            value = parse(text)
        except QuantityError as error:
            problems.append(Problem(at, text, str(error)))
            continue
        if value < 0:
            problems.append(Problem(at, text, "must not be negative; nearest valid value: 0"))
        elif value.denominator != 1 and not is_native(name):
            problems.append(Problem(at, text, f"must be a whole number; nearest valid value: {ceil(value)}"))
        else:
            found[name] = value
    return found


def _rounded(total: Amounts, *, zeros: bool = False) -> Resources:
    found = []
    for name in sorted(total):
        amount = min(ceil(total[name] * 1000 if name == CPU else total[name]), MAX_AMOUNT)
        if amount or zeros:
            found.append((name, amount))
    return tuple(found)


@lru_cache(maxsize=4096)
def node_amounts(items: _Items) -> tuple[Resources, tuple[Problem, ...]]:
    """A node's allocatable amounts in the core's units, sorted by name."""
    problems: list[Problem] = []
    return _rounded(_amounts(items, "status.allocatable", problems)), tuple(problems)
