# SPDX-License-Identifier: Apache-2.0
"""A machine with GPUs for the tests of the agent."""

from functools import lru_cache

import msgspec
import pytest

from dovetail.agent.plugin import best, preferring
from dovetail.core.devices.layout import Layout
from tools.standin.fixture import standin

__all__ = ["standin"]


@lru_cache(maxsize=4096)
def _best(layout: Layout, free: int, having: int, size: int) -> int:
    question = {"layout": layout, "free": free, "having": having, "size": size}
    return best.answer(msgspec.json.encode(question))


@pytest.fixture(autouse=True)
def best_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each question takes long, and one test has it."""
    monkeypatch.setattr(preferring, "best", _best)
