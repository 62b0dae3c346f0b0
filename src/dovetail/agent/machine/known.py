# SPDX-License-Identifier: Apache-2.0
"""What is known of the machine, look after look, and from when on others may be told of it.

Rules
- Nothing is told before the first complete look: what is on record from before (GPUNode, labels, slices, what the
  kubelet was offered) is more likely to be true than what a library says that has just begun to answer. Complete is a
  look that read all GPUs, while those who watch their health have an answer too.
- Who is broken for good is not waited for without end: where some GPUs were read the others are given up after a
  while, and where none was, that alone is told: nobody knows then what the machine has, only that it does not answer.
- Later looks count as they are, but one that reads no GPU at all: then the GPUs stay what they were, and are ill.
Pure but for the steady clock that it is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from msgspec.structs import replace

from dovetail.agent.health.health import NVML, Unhealthy
from dovetail.agent.machine.host import Host, Sight

MIG_UNREAD = "mig-unread"
Tell = Literal["nothing", "silence", "all"]
PATIENCE_S: dict[Sight, float] = {"all": 60.0, "some": 10.0, "none": 60.0}
"""How long after the start a look is not taken for complete: for want of an answer about health, of some GPUs, of all.
A driver of eight GPUs without persistence mode needs up to 20 seconds for its first answer."""


class KnownHost:
    """`host` is what is known now; before the first complete look it has no GPUs. `newest` is the last look that read
    any. `tell` says what may be told: nothing, only that NVML is silent, or all. `clock_s` is steady."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.host = self.newest = Host(sight="none")
        self.tell: Tell = "nothing"
        self._clock_s = clock_s
        self._since_s = clock_s()

    def look(self, found: Host, watched: bool) -> None:
        """What a look has found. `watched`: health has been looked at, too."""
        if found.sight != "none":
            self.newest = found
        if self.tell == "all":
            silent = found.sight == "none"
            self.host = replace(self.host, unread=found.unread, sight="none") if silent else found
            return
        complete = found.sight == "all" and (watched or not found.gpus)
        if complete or self._clock_s() - self._since_s >= PATIENCE_S[found.sight]:
            self.tell = "silence" if found.sight == "none" else "all"
        if self.tell == "all":
            self.host = found
        elif found.sight == "none":
            self.host = Host(driver=found.driver, unread=found.unread, sight="none")

    @property
    def ill(self) -> tuple[Unhealthy, ...]:
        """The GPUs that are known from an earlier look, while none answers; and those in MIG mode whose instances
        nobody can tell."""
        if self.host.sight != "none":
            return tuple(Unhealthy(uuid, MIG_UNREAD, why, 0) for uuid, why in self.host.hidden.items())
        why = next(one.why for one in self.host.unread if one.what.startswith("gpus"))
        return tuple(Unhealthy(gpu.uuid, NVML, why, 0) for gpu in self.host.gpus)
