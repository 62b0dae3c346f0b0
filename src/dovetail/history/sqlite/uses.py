# SPDX-License-Identifier: Apache-2.0
"""How the use of a GPU is kept: the distribution of an hour as a small blob, and hours added up.

Rules
- A blob has two maps, as MessagePack: the bins of the histogram, and the activities by their ids, each with its amount.
  What is 0 is left out; an hour without both has no blob.
- Added up are all but the peak of memory and the last time of use: of these the larger counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from sqlite3 import Cursor

import msgspec

Detail = tuple[dict[int, int], dict[int, int]]
Amounts = tuple[int, int, int, int, int, bytes | None]
"""`measured_ms`, `use`, `idle_ms`, `memory_peak_mib`, `used_until_ms`, and the blob, as in the tables."""
_DECODER = msgspec.msgpack.Decoder(Detail)
_ENCODER = msgspec.msgpack.Encoder()


def encoded(histogram: tuple[int, ...], activity: Mapping[int, int]) -> bytes | None:
    bins = {number: time_ms for number, time_ms in enumerate(histogram) if time_ms}
    named = {number: time_ms for number, time_ms in activity.items() if time_ms}
    return _ENCODER.encode((bins, named)) if bins or named else None


def decoded(blob: bytes | None, names: Mapping[int, str], bins: int) -> tuple[tuple[int, ...], dict[str, int]]:
    """The histogram, of so many bins, and the amounts by activity. Raises MsgspecError."""
    if blob is None:
        return (), {}
    times, activity = _DECODER.decode(blob)
    if any(not 0 <= number < bins for number in times) or any(number not in names for number in activity):
        raise msgspec.ValidationError("a bin or an activity that there is not")
    histogram = tuple(times.get(number, 0) for number in range(bins)) if times else ()
    return histogram, {names[number]: time_ms for number, time_ms in activity.items()}


def added(one: Amounts, other: Amounts) -> Amounts:
    """Both together. Raises MsgspecError."""
    sums = one[0] + other[0], one[1] + other[1], one[2] + other[2]
    return *sums, max(one[3], other[3]), max(one[4], other[4]), _both(one[5], other[5])


def _both(one: bytes | None, other: bytes | None) -> bytes | None:
    if one is None or other is None:
        return one or other
    maps = _DECODER.decode(one)
    for times, more in zip(maps, _DECODER.decode(other), strict=True):
        for number, time_ms in more.items():
            times[number] = times.get(number, 0) + time_ms
    return _ENCODER.encode(maps)


def add_to_day(run: Callable[..., Cursor], key: tuple[int, int, int], amounts: Amounts) -> None:
    """Add an hour to what there is of its day. `key` is the start of the day, and the ids of the GPU and the pod."""
    where = "FROM days WHERE start_ms = ? AND gpu = ? AND pod = ?"
    there = run(f"SELECT measured_ms, use, idle_ms, memory_peak_mib, used_until_ms, detail {where}", key).fetchone()
    values = amounts if there is None else added(there, amounts)
    run("INSERT OR REPLACE INTO days VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*key, *values))
