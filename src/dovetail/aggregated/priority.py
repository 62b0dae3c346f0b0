# SPDX-License-Identifier: Apache-2.0
"""How these processes yield to the one that starts them, which shares the cores and the pod with them.

Rules: the one that follows has to keep up, and so has the least of it; what is worked out ahead of questions can wait,
and one question of a user has all the time. As batch processes none of them takes a core from one that wakes up.
"""

from __future__ import annotations

import os
from contextlib import suppress

FOLLOWING, GENERATION, ONE_QUESTION = 5, 10, 19
"""The nice values."""


def yield_by(nice: int) -> None:
    """Lower the priority of this process to this nice value, if it is not lower already."""
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
    # A sandbox may refuse it, and nice alone does most.
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
