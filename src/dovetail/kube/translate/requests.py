# SPDX-License-Identifier: Apache-2.0
"""How much a pod asks for: its effective requests, exactly as kube-scheduler and the kubelet count them.

Rules
- A limit without a request is the request (the API server has done that already; here it is the backstop).
- Containers run together after the init containers; a sidecar (an init container that restarts always) runs on beside
  everything that comes after it. The pod needs the largest sum that occurs.
- Of a pod with statuses counts the largest of what the spec asks, what the kubelet allocated and what is in force; the
  spec does not count once the kubelet has called the resize infeasible.
- Pod-level requests replace cpu, memory and hugepages; then the overhead is added.
- Sums are exact and rounded up once, at the end. What is zero is left out. Of more than MOST_RESOURCES resources those
  of Kubernetes and GPUs are told, and the first of the others by name.
- GPUs and all other extended resources are whole numbers, and request and limit are the same.
- A quantity that breaks a rule gives a Problem and counts as absent. One that is too large counts as the largest.
- Containers are told one by one where one asks for a resource for which devices by claim may stand in.
- All that follows from the quantities is worked out together, once for all pods of a template: also what the managers
  of a kubelet read (see `managed`), and which names of MIG slices are misspelt (see `fractions`).
Source: k8s.io/component-helpers/resource/helpers.go (1.37), core validation of ResourceRequirements.
Not known here: node-allocatable resources of DRA claims.
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
from dovetail.kube.objects.base import Quantities, Quantity
from dovetail.kube.objects.pods import SIDECAR, Container, ContainerStatus, Pod
from dovetail.kube.translate.fractions import Misspelt, misspelt
from dovetail.kube.translate.limits import MOST_RESOURCES, counts_always, is_native
from dovetail.kube.translate.managed import managed_of

Resources = tuple[tuple[str, int], ...]
Amounts = dict[str, Fraction]
_Items = tuple[tuple[str, Quantity], ...]


class _Parts(NamedTuple):
    """What the requests of one container depend on; `allocated` and `in_force` are None where no status tells."""

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
    """Amounts by resource in the core's units, sorted by name, what is wrong with the pod's quantities, its containers
    where they matter, the pod as a kubelet's managers see it (None: none of them can refuse it), and the misspelt names
    of MIG slices."""

    resources: Resources
    problems: tuple[Problem, ...]
    containers: tuple[model.Container, ...]
    managed: ManagedPod | None
    misspelt: tuple[Misspelt, ...]


def effective(pod: Pod) -> Effective:
    """How much a pod asks for.

    The answer depends on the quantities alone and is remembered by them: pods of one template share it.
    """
    spec, status = pod.spec, pod.status
    reported = {s.name: s for s in (*status.init_container_statuses, *status.container_statuses)}
    infeasible = any(c.type == "PodResizePending" and c.reason == "Infeasible" for c in status.conditions)
    main = tuple([_parts(c, reported.get(c.name)) for c in spec.containers])
    init = tuple([_parts(c, reported.get(c.name)) for c in spec.init_containers])
    return _remembered(
        main,
        init,
        _Parts(
            tuple(spec.resources.requests.items()),
            tuple(spec.resources.limits.items()),
            allocated=_items(status.allocated_resources),
            in_force=_items(status.resources.requests) if status.resources is not None else None,
        ),
        tuple(spec.overhead.items()),
        infeasible,
    )


def _parts(container: Container, status: ContainerStatus | None) -> _Parts:
    requests, limits = tuple(container.resources.requests.items()), tuple(container.resources.limits.items())
    sidecar = container.restart_policy == SIDECAR
    if status is None:
        return _Parts(requests, limits, container.name, sidecar)
    in_force = _items(status.resources.requests) if status.resources is not None else None
    return _Parts(requests, limits, container.name, sidecar, _items(status.allocated_resources), in_force)


def _items(quantities: Quantities | None) -> _Items | None:
    return tuple(quantities.items()) if quantities else None


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
        # The kubelet's sums for the whole pod; they include pod-level requests and the overhead.
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
    # Nobody reads more of them, and a pod can have thousands.
    return Effective(_rounded(total), tuple(problems[:MOST_RESOURCES]), _told(init, main), managed, tuple(wrong))


_remembered: Remembered[Effective] = Remembered(8192, _effective)


def _told(init: list[_Container], main: list[_Container]) -> tuple[model.Container, ...]:
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
    """Requests of the pod as a whole. Its limits stand in for what nobody below it requests."""
    requests = _amounts(parts.requests, "spec.resources.requests", problems)
    limits = _amounts(parts.limits, "spec.resources.limits", problems)
    defaults = {name: limit for name, limit in limits.items() if name not in total}
    return {name: value for name, value in {**defaults, **requests}.items() if _at_pod_level(name)}


def _at_pod_level(name: str) -> bool:
    return name in (CPU, MEMORY) or name.startswith("hugepages-")


def _together(main: list[_Container], init: list[_Container], view: Callable[[_Container], Amounts]) -> Amounts:
    """What one view of the containers sums up to at the moment when most runs together."""
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
