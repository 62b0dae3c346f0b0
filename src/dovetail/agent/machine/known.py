# SPDX-License-Identifier: Apache-2.0
"""What the agent knows of the machine after each look (discovery), and what of it may be published.

Rules
- Nothing is published before the first complete look. What was published before (GPUNode, labels, slices, devices of
  the kubelet) is more likely right than the first answers of a driver that is still loading. A look is complete when it
  read all GPUs and the health of all GPUs is known.
- The wait is bounded. If some GPUs were read, they are published after a while without the others. If no GPU was read,
  only that is published: that NVML does not answer.
- Each later look replaces the one before, except a look that reads no GPU: then the GPUs stay as they were, unhealthy.
Pure, except for the monotonic clock that is passed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from msgspec.structs import replace

from dovetail.agent.health.health import NVML, Unhealthy
from dovetail.agent.machine.host import Host, Sight

MIG_UNREAD = "mig-unread"
Publishable = Literal["nothing", "silence", "all"]
PATIENCE_S: dict[Sight, float] = {"all": 60.0, "some": 10.0, "none": 60.0}
"""How long after the start an incomplete look is not published: without health, with some GPUs, with none. A driver of
eight GPUs without persistence mode needs up to 20 seconds for its first answer."""


class KnownHost:
    """`host` is the machine as it is known now; before the first complete look it has no GPUs. `newest` is the last
    look that read a GPU. `publishable` is what may be published: nothing, only that NVML does not answer ("silence"),
    or all. `clock_s` is a monotonic clock."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.host = self.newest = Host(sight="none")
        self.publishable: Publishable = "nothing"
        self._clock_s = clock_s
        self._since_s = clock_s()

    def look(self, found: Host, watched: bool) -> None:
        """Apply the result of a look. `watched`: the health of all GPUs is known."""
        if found.sight != "none":
            self.newest = found
        if self.publishable == "all":
            silent = found.sight == "none"
            self.host = replace(self.host, unread=found.unread, sight="none") if silent else found
            return
        complete = found.sight == "all" and (watched or not found.gpus)
        if complete or self._clock_s() - self._since_s >= PATIENCE_S[found.sight]:
            self.publishable = "silence" if found.sight == "none" else "all"
        if self.publishable == "all":
            self.host = found
        elif found.sight == "none":
            self.host = Host(driver=found.driver, unread=found.unread, sight="none")

    @property
    def unhealthy(self) -> tuple[Unhealthy, ...]:
        """All GPUs of an earlier look, if none answers now; else the GPUs in MIG mode whose instances are unknown."""
        if self.host.sight != "none":
            return tuple(Unhealthy(uuid, MIG_UNREAD, why, 0) for uuid, why in self.host.hidden.items())
        why = next(one.why for one in self.host.unread if one.what.startswith("gpus"))
        return tuple(Unhealthy(gpu.uuid, NVML, why, 0) for gpu in self.host.gpus)
