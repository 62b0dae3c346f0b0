# SPDX-License-Identifier: Apache-2.0
"""What a job would cost on spot nodes, with the work that interruptions destroy (`advice.interruptions`).

Rules
- A job is safe to interrupt if it declares how often it saves its work, if a run of it went on after an interruption
  and completed, or if its runs are short. Of any other job nothing shows that it saves its work.
- The time between interruptions is assumed, as no cloud states it: the advice has the least time at which spot pays,
  to compare with. Of a job on several nodes each interruption of one stops all.
- A checkpoint is all the memory that was in use, written at an assumed rate. A restart takes as long as the last one,
  or what is assumed if that was shorter or is not known.
- A run of a short job starts over after an interruption.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from dovetail.advice.interruptions import Interrupted, break_even_mtbi_s
from dovetail.advice.sizing import links
from dovetail.advice.sizing.market import HourPrice
from dovetail.advice.sizing.seen import JobSeen
from dovetail.advice.sizing.thresholds import CHEAPER, CHECKPOINT_MIB_S, RESTART_S, SHORT_RUN_MS, SPOT_MTBI_S

_HOUR_S = 3600
_ENDLESS = 1e6
"""A run that takes so many times its time never ends."""


class SpotCost(Struct, frozen=True):
    """An hour of a GPU now, and an hour of useful work on a spot node; the time that a run takes there, in thousandths
    of that now. `least_mtbi_s`: spot pays if a node is interrupted no more often."""

    now: HourPrice
    spot: HourPrice
    slowdown_milli: int
    least_mtbi_s: int

    @property
    def pays(self) -> bool:
        return self.now.above(self.spot, CHEAPER)


def safe_to_interrupt(seen: JobSeen) -> str:
    """Why the job may be interrupted; "" if nothing shows that it may."""
    interval_ms = seen.use.latest.checkpoint_interval_ms
    if interval_ms:
        return f"it declares to save its work every {interval_ms // 60_000} min"
    if seen.use.interrupted:
        return f"it went on after {seen.use.interrupted} interruptions and completed: it saves checkpoints"
    if short(seen):
        return "its runs take less than an hour, so that an interruption costs little"
    return ""


def short(seen: JobSeen) -> bool:
    """Whether all its runs are short, and ended."""
    longest_ms = max((one.held_ms for one in seen.use.members()), default=0)
    return longest_ms < SHORT_RUN_MS and bool(seen.use.latest.ended_ms)


def spot_cost(seen: JobSeen) -> SpotCost | None:
    """None where a price is not known."""
    place = seen.place
    if place is None or place.spot:
        return None
    now, spot = seen.market.place(place), seen.market.place(replace(place, spot=True))
    if now is None or spot is None:
        return None
    nodes = max((one.nodes for one in links.run_places(seen)), default=1)
    latest = seen.use.latest
    started_s = (latest.started_ms - latest.bound_ms) // 1000 if latest.started_ms and latest.bound_ms else 0
    save_s = max(1, seen.total.memory_peak_mib // CHECKPOINT_MIB_S)
    each = Interrupted(save_s, max(RESTART_S, started_s), SPOT_MTBI_S / nodes)
    interval_ms = latest.checkpoint_interval_ms
    if interval_ms:
        slowdown = each.slowdown(interval_ms / 1000)
    elif short(seen):
        slowdown = replace(each, save_s=0).slowdown(SHORT_RUN_MS / 1000)
    else:
        slowdown = each.best()
    slowdown = min(slowdown, _ENDLESS)
    least_s = break_even_mtbi_s(save_s, each.restart_s, 1 - spot.micro / now.micro) if now.micro else None
    useful = replace(spot, micro=round(spot.micro * slowdown))
    return SpotCost(now, useful, round(slowdown * 1000), round((least_s or 0) * nodes))


def in_hours(seconds: int) -> str:
    """A time as text: `2.5 h`."""
    return f"{seconds / _HOUR_S:.1f} h"
