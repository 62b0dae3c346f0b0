# SPDX-License-Identifier: Apache-2.0
"""What interruptions cost a job that saves checkpoints: the best interval, the expected time, and when spot pays.

Interruptions come at random, independent of each other (a Poisson process), also while the job saves or restarts; each
throws it back to its last checkpoint. `interval_s` is the work between two checkpoints, without the time to save.

- Young: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
- Daly: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006:
  the interval, and the time in his complete model, which is exact where the work is a whole number of intervals.
"""

from __future__ import annotations

from math import exp, expm1, inf, sqrt

from msgspec import Struct

_LARGEST_EXPONENT = 700.0
_HALVINGS = 200
_RAREST_S = 3.2e12
"""An interruption in 100,000 years: never."""


class Interrupted(Struct, frozen=True):
    """`save_s` to write a checkpoint, `restart_s` from an interruption until work goes on, `mtbi_s` the mean time
    between two interruptions of the job: of an instance, divided by the instances whose loss ends it. All above 0,
    but for `restart_s`, which may be 0."""

    save_s: float
    restart_s: float
    mtbi_s: float

    def young_s(self) -> float:
        """sqrt(2 x save x MTBI): good where saving takes much less than the MTBI."""
        return sqrt(2 * self.save_s * self.mtbi_s)

    def daly_s(self) -> float:
        """Daly's interval; the MTBI itself where saving takes twice that or longer."""
        ratio = self.save_s / (2 * self.mtbi_s)
        if ratio >= 1:
            return self.mtbi_s
        return self.young_s() * (1 + sqrt(ratio) / 3 + ratio / 9) - self.save_s

    def slowdown(self, interval_s: float) -> float:
        """Expected time by the time of the work alone, from 1 on; infinite where nothing is ever finished."""
        tries = (interval_s + self.save_s) / self.mtbi_s
        if tries + self.restart_s / self.mtbi_s > _LARGEST_EXPONENT:
            return inf
        return self.mtbi_s * exp(self.restart_s / self.mtbi_s) * expm1(tries) / interval_s

    def best(self) -> float:
        """The slowdown at Daly's interval."""
        return self.slowdown(self.daly_s())


def break_even_discount(slowdown: float) -> float:
    """The part of the price that spot must save, from 0 to 1, to cost no more."""
    return 1 - 1 / slowdown


def break_even_mtbi_s(save_s: float, restart_s: float, discount: float) -> float | None:
    """The mean time between interruptions from which on spot costs no more, at the best interval for each; None where
    it never does, which is without a discount."""
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
