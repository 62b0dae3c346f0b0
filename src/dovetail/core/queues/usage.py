# SPDX-License-Identifier: Apache-2.0
"""What somebody has used, with the past counting less and less: one leaky sum in closed form, in integers alone.

`used` is the integral of the rate that was charged, each moment of it times 2^(-age / half life). Rates are in
milli-GPU, times in ms, so `used` is in milli-GPU times ms. While the rate stays the same, used goes to its steady value

    steady = rate * half life / ln 2,    used(d) = steady + (used - steady) * 2^(-d / half life)

so that nothing has to be done between two changes of the rate, however long that is, nor after a restart. The decayed
share of a queue is its `used` by that of a ledger that is charged all that the cluster has. With a rate C for the
cluster and W*C due to the queue, the credit `steady(W*C) - used` is (half life / ln 2) * C * (W - U), U that share: the
balance of a leaky account that earns what is due and pays what is charged.

Rounding: 2^(-x) is worked out to 90 bits from tables that are made of integer square roots, so that every machine finds
the same. Each settling is off by at most one unit (milli-GPU times ms), and what earlier ones were off by fades too;
n settlings are at most n units off one.
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
    """ln 2 = 2 * sum of 1 / ((2k + 1) * 3^(2k + 1)), of `_BITS` bits."""
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
    """used * 2^(-elapsed / half life), to the nearest. A time below 0 counts as none. Raises ValueError where the half
    life is not above 0."""
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
    """What a rate that is charged for ever comes to: rate * half life / ln 2, to the nearest."""
    return ((rate * half_life_ms << (_BITS + 1)) // _LN2 + 1) >> 1


def accrued(rate: int, elapsed_ms: int, half_life_ms: int) -> int:
    """What a rate that was charged for the time until now comes to: steady * (1 - 2^(-elapsed / half life)). Raises
    ValueError where the half life is not above 0."""
    full = steady(rate, half_life_ms)
    return full - decayed(full, elapsed_ms, half_life_ms)


class DecayedUsage:
    """`used` as of `as_of_ms`, charged `rate` from then on; `days` is what was charged without decay, by day (days
    since 1970, UTC; rate times ms), exact, of the last 31 days. A clock that goes back changes nothing: what is told of
    a time before `as_of_ms` counts from `as_of_ms` on."""

    __slots__ = ("_steady", "as_of_ms", "days", "half_life_ms", "rate", "used")

    def __init__(
        self,
        half_life_ms: int,
        used: int = 0,
        as_of_ms: int = 0,
        rate: int = 0,
        days: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Raises ValueError where the half life is not above 0. Less than nothing used, and days that are too old or
        still to come, do not count."""
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
        """Write down what was used until now. Twice is as once."""
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
        """From now on so much more is charged."""
        self.settle(now_ms)
        self.rate += delta

    def charge(self, rate: int, from_ms: int, to_ms: int, now_ms: int) -> None:
        """Add what this rate, charged from then to then, comes to now: for starts and ends that are learned late. A
        rate below 0 takes back; nothing goes below 0."""
        self.settle(now_ms)
        to_ms = min(to_ms, self.as_of_ms)
        if from_ms >= to_ms:
            return
        late = decayed(accrued(rate, to_ms - from_ms, self.half_life_ms), self.as_of_ms - to_ms, self.half_life_ms)
        self.used = max(0, self.used + late)
        self._add_days(rate, from_ms, to_ms)

    def set_half_life(self, half_life_ms: int, now_ms: int) -> None:
        """Another half life from now on. The mean rate that `used` stands for stays, and so does the share. Raises
        ValueError where it is not above 0."""
        if half_life_ms <= 0:
            raise ValueError(f"a half life of {half_life_ms} ms: it must be above 0")
        self.settle(now_ms)
        self.used = (2 * self.used * half_life_ms + self.half_life_ms) // (2 * self.half_life_ms)
        self.half_life_ms = half_life_ms
        self._steady = 0, 0

    def at(self, now_ms: int) -> int:
        """What is used at that time, if the rate stays."""
        rate, full = self._steady
        if rate != self.rate:
            # Worked out when it is asked: the rate changes with every pod.
            full = steady(self.rate, self.half_life_ms)
            self._steady = self.rate, full
        return full + decayed(self.used - full, now_ms - self.as_of_ms, self.half_life_ms)

    def ahead(self, horizon_ms: int) -> int:
        """What is used so long after `as_of_ms`, if the rate stays: with a horizon of 0 the past alone, with a long one
        what is held now counts for more and more. Kueue's entry penalty is `accrued` of the request over it."""
        return self.at(self.as_of_ms + horizon_ms)

    def credit(self, due_rate: int, now_ms: int) -> int:
        """What is due to it at this rate, less what it used; below 0 where it used more."""
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
