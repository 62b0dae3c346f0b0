# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a job in a few characters."""

from __future__ import annotations

import pytest

from dovetail.core.cycle import enter
from dovetail.core.dra.types import Claim, ClaimSpec, DeviceRequest
from dovetail.core.events import ClaimChanged
from dovetail.core.model import GPU, SHARED_GPU, NodeTerm, Pod, Request, Requirement
from dovetail.core.queues.types import MODEL_LABEL
from dovetail.core.state import State
from dovetail.views.requested import requested, requested_milli

H100, H200 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"
WHOLE = Request(((GPU, 8),))
SLICES = Request((("cpu", 8), ("nvidia.com/mig-1g.10gb", 2)))
HALF = Request(((GPU, 1),), gpu_milli=500)
MEMORY = Request(((SHARED_GPU, 1),), gpu_memory_mib=10 * 1024)
SELECTED = Request(((GPU, 4),), node_selector=((MODEL_LABEL, H100),))
EITHER = Request(((GPU, 4),), node_terms=(NodeTerm((Requirement(MODEL_LABEL, "In", (H100, H200)),)),))


def pods(*requests: Request, claims: tuple[str, ...] = ()) -> list[Pod]:
    return [Pod(f"u{i}", "a", f"p{i}", one, device_claims=claims) for i, one in enumerate(requests)]


@pytest.mark.parametrize(
    ("requests", "text", "milli"),
    [
        ((Request(),), "0", 0),
        ((WHOLE,), "8", 8000),
        ((WHOLE,) * 4, "32", 32_000),
        ((Request(), WHOLE), "8", 8000),
        ((SLICES,), "2x1g.10gb", 0),
        ((SLICES, WHOLE), "8+2x1g.10gb", 8000),
        ((HALF,), "0.5", 500),
        ((HALF,) * 3, "3x0.5", 1500),
        ((MEMORY,), "10Gi", 0),
        ((MEMORY,) * 2, "2x10Gi", 0),
        ((Request(((SHARED_GPU, 2),)),), "2xshared", 0),
        # For whole GPUs it is only the least memory of each.
        ((Request(((GPU, 2),), gpu_memory_mib=10 * 1024),), "2", 2000),
        ((SELECTED,), f"4 {H100}", 4000),
        ((EITHER,), f"4 {H100}|{H200}", 4000),
        ((SELECTED, Request()), f"4 {H100}", 4000),
        ((SELECTED, WHOLE), "12", 12_000),
    ],
)
def test_whole_gpus_slices_shares_and_models(requests: tuple[Request, ...], text: str, milli: int) -> None:
    assert (requested(State(), pods(*requests)), requested_milli(pods(*requests))) == (text, milli)


def test_devices_by_claim() -> None:
    """A claim that two pods use counts once; admin access counts nothing."""
    state = State()
    counted, admin = DeviceRequest("main", "gpu.nvidia.com", count=2), DeviceRequest("x", "x", admin_access=True)
    spec = ClaimSpec(((counted,), (admin,)))
    enter(state, [ClaimChanged(Claim("c", "a", "shared", spec))], 0)
    assert requested(state, pods(Request(), Request(), claims=("a/shared", "a/unknown"))) == "2xgpu.nvidia.com"
