# SPDX-License-Identifier: Apache-2.0
"""The benchmark of planes, on few of them: memory and CPU stay within what a plane may cost."""

from __future__ import annotations

import pytest

from benchmarks.planes import alone, idle, requests


@pytest.mark.slow
async def test_a_process_with_one_plane_is_small() -> None:
    assert (await alone(0.1))["memory of a process with one plane, MiB"] <= 50


@pytest.mark.slow
async def test_planes_that_share_a_process_are_cheap_while_they_are_idle() -> None:
    found = await idle(8, 1.0)
    assert {name for name in found if name.startswith("closed")}
    for name, value in found.items():
        assert value <= (3 * 1024 if "memory" in name else 0.5), name


@pytest.mark.slow
async def test_requests_of_each_kind_are_measured() -> None:
    found = await requests(3, 40)
    assert {f"{kind} p99, ms" for kind in ("get", "list", "write")} <= found.keys()
