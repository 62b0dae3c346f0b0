# SPDX-License-Identifier: Apache-2.0
"""A pod as the resource managers of a kubelet see it: container by container, in their order.

Rules
- Devices of plugins concern every pod, CPUs and memory only Guaranteed ones. A pod without devices that is Guaranteed
  by no version's rules can be refused by no manager: it is None here.
- A limit without a request is the request, as the API server has it. Amounts that cannot be read count as absent: the
  pod waits for that reason anyway. Fractions of a unit are rounded up, as the kubelet does.
- An empty `spec.resources` counts as none.
Not known here: devices of DRA claims, resizing in place, ephemeral containers (which are never managed).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from dovetail.core.bounded_cache import Remembered
from dovetail.core.devices.kubelet.pods import (
    CPU,
    Amounts,
    Asked,
    ManagedContainer,
    ManagedKind,
    ManagedPod,
    Qos,
    managed,
)
from dovetail.core.quantities import MAX_AMOUNT, QuantityError, parse
from dovetail.kube.objects.base import Quantity
from dovetail.kube.objects.pods import SIDECAR, ResourceRequirements
from dovetail.kube.objects.pods import Container as WireContainer
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.translate.limits import is_native

_Items = tuple[tuple[str, Quantity], ...]
_Parts = tuple[_Items, _Items, ManagedKind]


def managed_of(pod: PodObject) -> ManagedPod | None:
    """None where no manager can refuse it. Pods of one template share the answer."""
    spec = pod.spec
    init = [
        _parts(c, ManagedKind.SIDECAR if c.restart_policy == SIDECAR else ManagedKind.INIT)
        for c in spec.init_containers
    ]
    main = [_parts(c, ManagedKind.APP) for c in spec.containers]
    requests, limits = _items(spec.resources)
    if not main:
        return None
    return _remembered((*init, *main), requests, limits, tuple(spec.overhead.items()))


def _parts(container: WireContainer, kind: ManagedKind) -> _Parts:
    return (*_items(container.resources), kind)


def _items(resources: ResourceRequirements) -> tuple[_Items, _Items]:
    return tuple(resources.requests.items()), tuple(resources.limits.items())


def _managed(containers: tuple[_Parts, ...], requests: _Items, limits: _Items, overhead: _Items) -> ManagedPod | None:
    found = ManagedPod(
        tuple(
            ManagedContainer(_amounts((*own_limits, *own_requests)), _amounts(own_limits), kind)
            for own_requests, own_limits, kind in containers
        ),
        Asked(_amounts((*limits, *requests)), _amounts(limits)) if requests or limits else None,
        overhead=_amounts(overhead),
    )
    devices = any(not is_native(name) for container in found.containers for name, _ in container.limits)
    guaranteed = Qos.GUARANTEED in (found.qos(True, True), found.qos(False, True))
    return found if devices or guaranteed else None


_remembered: Remembered[ManagedPod | None] = Remembered(8192, _managed)


def _amounts(items: Iterable[tuple[str, Quantity]]) -> Amounts:
    """Of what is there twice the last counts."""
    found = {}
    for name, quantity in items:
        try:
            value = parse(str(quantity)) * (1000 if name == CPU else 1)
        except QuantityError:
            continue
        if value > 0 and (name == CPU or managed(name) or not is_native(name)):
            found[name] = min(ceil(value), MAX_AMOUNT)
        else:
            found.pop(name, None)
    return tuple(sorted(found.items()))
