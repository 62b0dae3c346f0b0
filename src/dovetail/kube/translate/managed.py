# SPDX-License-Identifier: Apache-2.0
"""A pod as the resource managers of a kubelet see it: container by container, in their order.

Rules
- Plugin devices are managed for every pod, CPUs and memory only for Guaranteed pods. For a pod without devices that is
  not Guaranteed under the rules of any version, the result is None: no manager can refuse it.
- A limit without a request is the request, as in the API server. Unreadable amounts count as absent: the pod stays
  pending for that reason anyway. Fractions of a unit are rounded up, as in the kubelet.
- An empty `spec.resources` counts as none.
Not supported: devices of DRA claims, in-place resize, ephemeral containers (which are never managed).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

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
from dovetail.kube.translate.limits import is_native

_Items = tuple[tuple[str, Quantity], ...]


def managed_of(
    containers: Iterable[tuple[_Items, _Items, ManagedKind]], requests: _Items, limits: _Items, overhead: _Items
) -> ManagedPod | None:
    """A pod with these containers (requests, limits and kind of each) and these pod-level requests and limits. None if
    no manager can refuse it."""
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


def _amounts(items: Iterable[tuple[str, Quantity]]) -> Amounts:
    """The amounts by resource; if a resource occurs twice, the last amount counts."""
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
