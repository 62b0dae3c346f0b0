# SPDX-License-Identifier: Apache-2.0
"""The benchmark of idle agents, on few of them: memory and CPU stay within what an agent may cost."""

from __future__ import annotations

import pytest

from benchmarks.idle_agents import measure


@pytest.mark.slow
async def test_an_idle_agent_is_small_alone_and_cheap_among_others() -> None:
    found = await measure(10, 5.0)
    assert 10 < found["memory of a process with one agent, MiB"] <= 50
    assert found["memory of each further agent, MiB"] <= 3
    assert found["CPU of each of many, % of a core"] <= 0.5
