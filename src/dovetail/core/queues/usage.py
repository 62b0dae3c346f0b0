# SPDX-License-Identifier: Apache-2.0
"""Decayed usage of a queue or user: one leaky sum in closed form, in integers alone.

`used` is the integral of the charged rate, each moment of it times 2^(-age / half life). Rates are in milli-GPU and
times in ms, so `used` is in milli-GPU times ms. While the rate stays the same, `used` approaches its steady value

    steady = rate * half life / ln 2,    used(d) = steady + (used - steady) * 2^(-d / half life)

so that nothing has to be computed between two changes of the rate, however long that is, nor after a restart. The
decayed share of a queue is its `used` divided by that of an account that is charged the whole cluster. With a rate C
for the cluster, W*C due to the queue and the share U, the credit `steady(W*C) - used` is (half life / ln 2) * C *
(W - U): the balance of a leaky account that earns what is due and pays what is charged.

Rounding: 2^(-x) is computed to 90 bits from tables of integer square roots, so that every machine gets the same result.
Each settling is off by at most one unit (milli-GPU times ms), and earlier errors decay too: n settlings are off by at
most n units.
Source of the formulas: half-life decay as in Slurm (PriorityDecayHalfLife) and Kueue (KEP-4136), integrated.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt

from dovetail.core.queues.types import DAY_MS

_BITS = 96
_ONE = 1 << _BITS
_GUARD = 32
_STEP_BITS = 10
_STEPS = 1 << _STEP_BITS
_REST_BITS = _BITS - 3 * _STEP_BITS
_REST = (1 << _REST_BITS) - 1
DAYS_KEPT = 31


def _ln2() -> int:
    """ln 2 = 2 * sum of 1 / ((2k + 1) * 3^(2k + 1)), to `_BITS` bits."""
    total, power = 0, 2 * (_ONE << _GUARD) // 3
    for odd in range(1, 160, 2):
        total += power // odd
        power //= 9
    return total >> _GUARD


def _tables() -> tuple[list[int], ...]:
    """2^(-i/2^10), 2^(-i/2^20) and 2^(-i/2^30) for i below 2^10."""
    bits = _BITS + _GUARD
    roots = [1 << (bits - 1)]
    for _ in range(3 * _STEP_BITS):
        roots.append(isqrt(roots[-1] << bits))
    tables = []
    for level in range(1, 4):
        table = [1 << bits]
        for bit in range(_STEP_BITS):
            root = roots[level * _STEP_BITS - bit]
            table += [entry * root >> bits for entry in table]
        tables.append([entry >> _GUARD for entry in table])
    return tuple(tables)


_LN2 = _ln2()
_COARSE, _MIDDLE, _FINE = _tables()


def decayed(used: int, elapsed_ms: int, half_life_ms: int) -> int:
    """used * 2^(-elapsed / half life), rounded to the nearest. A negative time counts as none. Raises ValueError where
    the half life is not above 0."""
    if half_life_ms <= 0:
        raise ValueError(f"a half life of {half_life_ms} ms: it must be above 0")
    if elapsed_ms <= 0 or not used:
        return used
    halvings, rest = divmod(elapsed_ms, half_life_ms)
    if halvings > used.bit_length():
        return 0
    x = (rest << _BITS) // half_life_ms
    kept = _COARSE[x >> (_BITS - _STEP_BITS)]
    kept = kept * _MIDDLE[(x >> (_BITS - 2 * _STEP_BITS)) & (_STEPS - 1)] >> _BITS
    kept = kept * _FINE[(x >> _REST_BITS) & (_STEPS - 1)] >> _BITS
    y = (x & _REST) * _LN2 >> _BITS
    kept *= _ONE - y + (y * y >> (_BITS + 1))
    shift = 2 * _BITS + halvings
    return (used * kept + (1 << (shift - 1))) >> shift


def steady(rate: int, half_life_ms: int) -> int:
    """The limit of the usage at a constant rate: rate * half life / ln 2, rounded to the nearest."""
    return ((rate * half_life_ms << (_BITS + 1)) // _LN2 + 1) >> 1


def accrued(rate: int, elapsed_ms: int, half_life_ms: int) -> int:
    """The usage from a rate that was charged for this time until now: steady * (1 - 2^(-elapsed / half life)). Raises
    ValueError where the half life is not above 0."""
    full = steady(rate, half_life_ms)
    return full - decayed(full, elapsed_ms, half_life_ms)


class DecayedUsage:
    """`used` as of `as_of_ms`, charged at `rate` from then on. `days` is the charge without decay of the last 31 days,
    by day (days since 1970, UTC; rate times ms), exact. Time does not go back: what happened before `as_of_ms` counts
    from `as_of_ms` on."""

    __slots__ = ("_steady", "as_of_ms", "days", "half_life_ms", "rate", "used")

    def __init__(
        self,
        half_life_ms: int,
        used: int = 0,
        as_of_ms: int = 0,
        rate: int = 0,
        days: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Negative usage counts as none; days that are too old or in the future are dropped. Raises ValueError where
        the half life is not above 0."""
        if half_life_ms <= 0:
            raise ValueError(f"a half life of {half_life_ms} ms: it must be above 0")
        self.half_life_ms = half_life_ms
        self.used = max(0, used)
        self.as_of_ms = as_of_ms
        self.rate = rate
        self._steady = 0, 0
        today = as_of_ms // DAY_MS
        self.days = {day: amount for day, amount in sorted(days) if today - DAYS_KEPT < day <= today and amount > 0}

    def settle(self, now_ms: int) -> None:
        """Add the usage until now to `used`. A second call at the same time does nothing."""
        if now_ms <= self.as_of_ms:
            return
        before_ms = self.as_of_ms
        self.used = self.at(now_ms)
        self.as_of_ms = now_ms
        if self.rate:
            self._add_days(self.rate, before_ms, now_ms)
        today = now_ms // DAY_MS
        if today != before_ms // DAY_MS:
            self.days = {day: amount for day, amount in self.days.items() if day > today - DAYS_KEPT}

    def change(self, delta: int, now_ms: int) -> None:
        """Raise the rate by `delta` from now on."""
        self.settle(now_ms)
        self.rate += delta

    def charge(self, rate: int, from_ms: int, to_ms: int, now_ms: int) -> None:
        """Add the present value of this rate from `from_ms` to `to_ms`, for starts and ends that are learned late. A
        negative rate takes back; usage never falls below 0."""
        self.settle(now_ms)
        to_ms = min(to_ms, self.as_of_ms)
        if from_ms >= to_ms:
            return
        late = decayed(accrued(rate, to_ms - from_ms, self.half_life_ms), self.as_of_ms - to_ms, self.half_life_ms)
        self.used = max(0, self.used + late)
        self._add_days(rate, from_ms, to_ms)

    def set_half_life(self, half_life_ms: int, now_ms: int) -> None:
        """Use another half life from now on. The mean rate that `used` represents stays, and so does the share. Raises
        ValueError where it is not above 0."""
        if half_life_ms <= 0:
            raise ValueError(f"a half life of {half_life_ms} ms: it must be above 0")
        self.settle(now_ms)
        self.used = (2 * self.used * half_life_ms + self.half_life_ms) // (2 * self.half_life_ms)
        self.half_life_ms = half_life_ms
        self._steady = 0, 0

    def at(self, now_ms: int) -> int:
        """The usage at that time if the rate stays."""
        rate, full = self._steady
        if rate != self.rate:
            # Computed on demand: the rate changes with every pod.
            full = steady(self.rate, self.half_life_ms)
            self._steady = self.rate, full
        return full + decayed(self.used - full, now_ms - self.as_of_ms, self.half_life_ms)

    def ahead(self, horizon_ms: int) -> int:
        """The usage `horizon_ms` after `as_of_ms` if the rate stays: with a horizon of 0 the past alone, with a longer
        one the present holdings count more. Kueue's entry penalty is `accrued` of the request over the horizon."""
        return self.at(self.as_of_ms + horizon_ms)

    def credit(self, due_rate: int, now_ms: int) -> int:
        """What was due at this rate, less the usage; negative where the usage is higher."""
        return steady(due_rate, self.half_life_ms) - self.at(now_ms)

    def _add_days(self, rate: int, from_ms: int, to_ms: int) -> None:
        from_ms = max(from_ms, (self.as_of_ms // DAY_MS - DAYS_KEPT + 1) * DAY_MS)
        while from_ms < to_ms:
            day = from_ms // DAY_MS
            until_ms = min(to_ms, (day + 1) * DAY_MS)
            amount = self.days.get(day, 0) + rate * (until_ms - from_ms)
            if amount > 0:
                self.days[day] = amount
            else:
                self.days.pop(day, None)
            from_ms = until_ms
