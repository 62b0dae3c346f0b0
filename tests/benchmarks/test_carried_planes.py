# SPDX-License-Identifier: Apache-2.0
"""The benchmark of carried planes, on few of them."""

from __future__ import annotations

import pytest

from benchmarks.carried_planes import idle, started

pytestmark = pytest.mark.slow


async def test_idle_planes_are_cheap() -> None:
    one_mib, _ = await idle(1, 0.1)
    all_mib, share = await idle(6, 3.0)
    assert (all_mib - one_mib) / 5 <= 3 and share <= 0.2


async def test_pods_start_with_a_gpu_and_without() -> None:
    found = await started(2, 4)
    assert {f"pod {kind}, p99, ms" for kind in ("without devices", "with a GPU")} <= found.keys()
