# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a job in a few characters, as its pods request them: `32`, `8 NVIDIA-H100-80GB-HBM3`, `2x1g.10gb`, `0.5`.

Rules
- Whole GPUs, MIG instances and devices by claim are added up over the pods. Shares of a GPU are counted: `3x0.5` are
  half a GPU three times, `2x10Gi` are 10 GiB of a GPU twice. A claim that several pods use counts once.
- The model is that of the node selector or of the required node affinity, if it is the same for all pods; `A|B` where
  any of several will do.
- Of devices by claim the first alternative counts, by the name of its DeviceClass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.dra.types import Claim
from dovetail.core.model import GPU, MEMORY, SHARED_GPU, WHOLE_GPU_MILLI, Pod, Request
from dovetail.core.quantities import display
from dovetail.core.queues.types import MODEL_LABEL
from dovetail.core.state import State

_MIB = 2**20
_NONE = "0"
_WHOLE, _SHARE, _DEVICE = range(3)
_Kind = tuple[int, str]
"""Whole GPUs, shares of this size, or devices of this name."""
_TEXTS: dict[int, Callable[[int, str], str]] = {
    _WHOLE: lambda number, _: str(number),
    _SHARE: lambda number, size: size if number == 1 else f"{number}x{size}",
    _DEVICE: lambda number, name: f"{number}x{name}",
}


def requested(state: State, pods: Iterable[Pod]) -> str:
    """The GPUs that pods request together."""
    counts: Counter[_Kind] = Counter()
    models: set[str] = set()
    claims: dict[str, Claim] = {}
    for pod in pods:
        own = _of_request(pod.request)
        counts.update(own)
        known = [state.cluster.claims.claims.get(key) for key in pod.device_claims]
        claims.update((claim.key, claim) for claim in known if claim is not None)
        if own or known:
            models.add(_model(pod.request))
    for claim in claims.values():
        for alternatives in claim.spec.requests:
            if alternatives and not alternatives[0].admin_access:
                counts[_DEVICE, alternatives[0].device_class] += alternatives[0].count
    parts = [_TEXTS[kind](number, name) for (kind, name), number in sorted(counts.items())]
    model = models.pop() if len(models) == 1 else ""
    return f"{'+'.join(parts) or _NONE} {model}".rstrip()


def requested_milli(pods: Iterable[Pod]) -> int:
    """The whole GPUs and fractions that pods request, in thousandths of a GPU."""
    found = 0
    for pod in pods:
        for (kind, _), number in _of_request(pod.request).items():
            each = WHOLE_GPU_MILLI if kind == _WHOLE else pod.request.gpu_milli if kind == _SHARE else 0
            found += number * each
    return found


def _of_request(request: Request) -> dict[_Kind, int]:
    """How many devices of each kind a pod requests. For whole GPUs an amount of memory is only the least of each."""
    amounts, found = dict(request.resources), dict[_Kind, int]()
    cards = amounts.get(GPU, 0) + amounts.get(SHARED_GPU, 0)
    if cards and request.gpu_milli:
        found[_SHARE, f"{request.gpu_milli / WHOLE_GPU_MILLI:g}"] = cards
    elif amounts.get(GPU, 0):
        found[_WHOLE, ""] = amounts[GPU]
    elif cards and request.gpu_memory_mib:
        found[_SHARE, display(MEMORY, request.gpu_memory_mib * _MIB)] = cards
    elif cards:
        found[_DEVICE, "shared"] = cards
    for name, amount in request.resources:
        if name.startswith(RESOURCE_PREFIX) and amount:
            found[_DEVICE, name.removeprefix(RESOURCE_PREFIX)] = amount
    return found


def _model(request: Request) -> str:
    """The models that the node selector or the node affinity admits; "" for any."""
    selected = dict(request.node_selector).get(MODEL_LABEL, "")
    terms = request.node_terms or ()
    if selected or len(terms) != 1:
        return selected
    admitted = [one.values for one in terms[0].expressions if (one.key, one.operator) == (MODEL_LABEL, "In")]
    return "|".join(admitted[0]) if admitted else ""
