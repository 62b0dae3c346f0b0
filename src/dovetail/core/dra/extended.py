# SPDX-License-Identifier: Apache-2.0
"""Extended resources that devices stand in for: the claim of a pod that requests such resources in its containers.

Rules: where a node offers none of a resource for which there is a class, devices of that class stand in, by one claim
for all such resources of the pod. The claim's name is derived from the pod's uid, so a retry, also after a crash, finds
the claim that exists; it has the form that the API server generates. Each container that requests a resource has a
request of its own. Init containers that end before the others start use the devices of the containers after them; what
they need beyond these they take from one shared request, the largest.
Source: kube-scheduler's plugin dynamicresources, filterExtendedResources and createRequestsAndMappings (1.37).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from dovetail.core.bounded_cache import remembered
from dovetail.core.dra.types import ClaimSpec, DeviceRequest
from dovetail.core.model import Container, Pod

IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""The prefix of the extended resource that every device class has, before the name of the class."""
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_RANDOM, _LONGEST = 5, 63
"""The lengths of names that the API server generates (apiserver/pkg/storage/names)."""


class ExtendedUse(NamedTuple):
    """A container gets its devices of an extended resource by this request of the claim."""

    container: str
    resource: str
    request: str


def name_base(pod_name: str) -> str:
    """`generateName` of such a claim."""
    return f"{pod_name}-extended-resources-"


def claim_key(pod: Pod) -> str:
    """The key of the claim of the pod's extended resources."""
    return _claim_key(pod.namespace, pod.name, pod.uid)


@remembered(8192)
def _claim_key(namespace: str, name: str, uid: str) -> str:
    code = int.from_bytes(sha256(uid.encode()).digest()[:8], "big")
    letters = "".join([_LETTERS[code // len(_LETTERS) ** i % len(_LETTERS)] for i in range(_RANDOM)])
    return f"{namespace}/{name_base(name)[: _LONGEST - _RANDOM]}{letters}"


def claim_for(containers: Sequence[Container], classes: Mapping[str, str]) -> tuple[ClaimSpec, tuple[ExtendedUse, ...]]:
    """The claim for the resources for which there is a class (`classes` by resource), and which container uses which
    request of it."""
    requests: list[DeviceRequest] = []
    uses: list[ExtendedUse] = []
    for resource in sorted(classes):
        found, own = _requests(containers, resource, classes[resource])
        requests += found
        uses += own
    requests.sort(key=lambda request: request.name)
    return ClaimSpec(tuple((request,) for request in requests)), tuple(uses)


def _requests(
    containers: Sequence[Container], resource: str, device_class: str
) -> tuple[list[DeviceRequest], list[ExtendedUse]]:
    lasting: dict[int, DeviceRequest] = {}
    uses: list[ExtendedUse] = []
    for i, container in enumerate(containers):
        amount = dict(container.amounts).get(resource, 0)
        if amount and not container.passing:
            lasting[i] = DeviceRequest(_name(i, container, resource), device_class, count=amount)
            uses.append(ExtendedUse(container.name, resource, lasting[i].name))
    extra: list[DeviceRequest] = []
    passing: list[tuple[str, DeviceRequest | None]] = []
    for i, container in enumerate(containers):
        lacking = dict(container.amounts).get(resource, 0) if container.passing else 0
        for later, request in lasting.items():
            if later > i and lacking > 0:
                lacking -= request.count
                passing.append((container.name, request))
        if lacking > 0:
            extra.append(DeviceRequest(_name(i, container, resource), device_class, count=lacking))
            passing.append((container.name, None))
    largest = max(extra, key=lambda request: request.count, default=None)
    for name, used in passing:
        shared = used or largest
        assert shared is not None
        uses.append(ExtendedUse(name, resource, shared.name))
    return [*([largest] if largest is not None else []), *lasting.values()], uses


def _name(index: int, container: Container, resource: str) -> str:
    return f"container-{index}-request-{[name for name, _ in container.amounts].index(resource)}"
