# SPDX-License-Identifier: Apache-2.0
"""The cost of interruptions for a job with checkpoints: the best interval, the expected time, and the break-even of
spot.

Interruptions are a Poisson process, also while the job saves or restarts. After each, the job resumes from its last
checkpoint. `interval_s` is the work between two checkpoints, without the time to save.

- Young: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
- Daly: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006:
  the interval, and the expected time in his complete model, which is exact if the work is a whole number of intervals.
"""

from __future__ import annotations

from math import exp, expm1, inf, sqrt

from msgspec import Struct

_LARGEST_EXPONENT = 700.0
_HALVINGS = 200
_RAREST_S = 3.2e12
"""A mean time of 100,000 years counts as no interruptions."""


class Interrupted(Struct, frozen=True):
    """`save_s` is the time to save a checkpoint, `restart_s` the time from an interruption until work resumes.

    `mtbi_s` is the mean time between interruptions of the job: that of one instance, divided by the number of
    instances. `save_s` and `mtbi_s` are above 0, `restart_s` is 0 or more."""

    save_s: float
    restart_s: float
    mtbi_s: float

    def young_s(self) -> float:
        """Young's interval, sqrt(2 x save x MTBI): accurate if saving takes much less than the MTBI."""
        return sqrt(2 * self.save_s * self.mtbi_s)

    def daly_s(self) -> float:
        """Daly's interval; the MTBI itself if saving takes at least twice the MTBI."""
        ratio = self.save_s / (2 * self.mtbi_s)
        if ratio >= 1:
            return self.mtbi_s
        return self.young_s() * (1 + sqrt(ratio) / 3 + ratio / 9) - self.save_s

    def slowdown(self, interval_s: float) -> float:
        """Expected time over the time of the work alone, 1 or more; infinite if the job never finishes."""
        tries = (interval_s + self.save_s) / self.mtbi_s
        if tries + self.restart_s / self.mtbi_s > _LARGEST_EXPONENT:
            return inf
        return self.mtbi_s * exp(self.restart_s / self.mtbi_s) * expm1(tries) / interval_s

    def best(self) -> float:
        """The slowdown at Daly's interval."""
        return self.slowdown(self.daly_s())


def break_even_discount(slowdown: float) -> float:
    """The least discount of spot, from 0 to 1, at which it costs no more than on demand."""
    return 1 - 1 / slowdown


def break_even_mtbi_s(save_s: float, restart_s: float, discount: float) -> float | None:
    """The least mean time between interruptions at which spot costs no more than on demand, with Daly's interval. None
    if there is none, as without a discount."""
    if discount <= 0:
        return None
    low, high = 0.0, _RAREST_S
    if Interrupted(save_s, restart_s, high).best() * (1 - discount) > 1:
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle > 0 and Interrupted(save_s, restart_s, middle).best() * (1 - discount) <= 1:
            high = middle
        else:
            low = middle
    return high
