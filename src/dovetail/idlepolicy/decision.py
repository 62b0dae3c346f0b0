# SPDX-License-Identifier: Apache-2.0
"""Which workload is due for what, and when. Pure: times are epoch ms.

Rules
- A workload is idle while none of its pods uses a GPU, since the last of them did.
- Its owner gets a notice when it is idle for `notify_after_ms`. It is stopped, if the owner consents, when it is idle
  for `act_after_ms`, and `grace_ms` after that notice at the earliest. A notice of before it became idle, or of the
  future, is none: what was used in between has its whole time again.
- Acts are `3600 / acts_per_hour` seconds apart, and the first is as long after the start of the process. So no hour has
  more of them, however often the process starts, and nothing has to be kept for it.
- Of several that are due the one that was tried longest ago is next, then the one that is idle for longest: one that
  the API server refuses keeps no other waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

_HOUR_MS = 3_600_000
Step = Literal["leave", "notify", "wait", "act"]


class IdlePolicy(Struct, frozen=True):
    notify_after_ms: int = _HOUR_MS
    act_after_ms: int = 4 * _HOUR_MS
    grace_ms: int = _HOUR_MS
    acts_per_hour: int = 10


class IdleWorkload(Struct, frozen=True):
    """`since_ms` is since when it is idle, 0 if it is not or if that is not known. `noticed_ms` is when its owner had
    the last notice, and `tried_ms` when it was tried last to stop it, 0: never."""

    uid: str
    since_ms: int
    consents: bool
    noticed_ms: int = 0
    tried_ms: int = 0


def step_of(workload: IdleWorkload, policy: IdlePolicy, now_ms: int) -> Step:
    """What is due for the workload now; only one whose owner consents waits, or is acted on."""
    since_ms, noticed_ms = workload.since_ms, workload.noticed_ms
    if not since_ms or now_ms - since_ms < policy.notify_after_ms:
        return "leave"
    if not since_ms <= noticed_ms <= now_ms:
        return "notify"
    if not workload.consents:
        return "leave"
    return "act" if now_ms >= act_ms(since_ms, noticed_ms, policy) else "wait"


def act_ms(since_ms: int, noticed_ms: int, policy: IdlePolicy) -> int:
    """The earliest time at which a workload is stopped that is idle since then and had its notice then."""
    return max(since_ms + policy.act_after_ms, noticed_ms + policy.grace_ms)


def notice_ms(workload: IdleWorkload, policy: IdlePolicy, now_ms: int) -> int:
    """When the owner of an idle workload had its notice for this time, or the earliest time at which it gets one."""
    if workload.since_ms <= workload.noticed_ms <= now_ms:
        return workload.noticed_ms
    return max(now_ms, workload.since_ms + policy.notify_after_ms)


def next_act(
    workloads: Iterable[IdleWorkload], policy: IdlePolicy, now_ms: int, rested_ms: int
) -> IdleWorkload | None:  # fmt: skip
    """The workload to stop now. `rested_ms`: since the last act, or since the process began."""
    if rested_ms * policy.acts_per_hour < _HOUR_MS:
        return None
    due = [one for one in workloads if step_of(one, policy, now_ms) == "act"]
    return min(due, key=lambda one: (one.tried_ms, one.since_ms, one.uid), default=None)
