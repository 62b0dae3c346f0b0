# SPDX-License-Identifier: Apache-2.0
"""Whether advice was followed: what was advised before, beside what happened since.

Rules
- A record keeps each piece of advice with the time of the first, and what its job held then. It keeps it while the rule
  applies, and `KEPT_MS` from when it was first.
- What a job holds now is what its latest pod holds: a job that was changed in between held both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from dovetail.advice.sizing.advise import GPU_SECOND, applying
from dovetail.advice.sizing.rule import EarlierAdvice, Followed
from dovetail.advice.sizing.seen import JobSeen
from dovetail.advice.sizing.thresholds import ONE_DAY_MS
from dovetail.history.job_use import JobKey

KEPT_MS = 90 * ONE_DAY_MS
FORMAT = 1


class RecordedAdvice(Struct, frozen=True):
    """A piece of advice in a record. See EarlierAdvice for the fields."""

    namespace: str
    name: str
    rule: str
    advised_ms: int
    held: str
    mean_milli: int
    gpu_s_per_day: int


class AdviceRecord(Struct, frozen=True):
    """The content of the file. `format` is that of the file."""

    format: int = FORMAT
    advice: tuple[RecordedAdvice, ...] = ()


SeenSince = Callable[[int, Iterable[JobKey]], Iterable[JobSeen]]
"""The jobs as they are seen from a time on, as far as they held something."""


def recorded(record: AdviceRecord, seen: Iterable[JobSeen], now_ms: int) -> AdviceRecord:
    """The record with the advice that these jobs get now."""
    before = {_key(one): one for one in record.advice}
    current = {
        (one.use.namespace, one.use.name, rule.name): _recorded(one, rule.name, now_ms)
        for one in seen
        for rule, _ in applying(one)
    }
    kept = {key: one for key, one in before.items() if key in current or one.advised_ms > now_ms - KEPT_MS}
    return replace(record, advice=tuple((current | kept)[key] for key in sorted(current | kept)))


def earlier(record: AdviceRecord, now_ms: int, seen_since: SeenSince) -> tuple[EarlierAdvice, ...]:
    """What became of the advice in the record, the oldest first."""
    found = []
    times = sorted({one.advised_ms for one in record.advice if one.advised_ms < now_ms})
    for advised_ms in times:
        of_then = [one for one in record.advice if one.advised_ms == advised_ms]
        jobs = {(one.namespace, one.name) for one in of_then}
        seen = {(one.use.namespace, one.use.name): one for one in seen_since(advised_ms, jobs)}
        found += [_earlier(one, seen.get((one.namespace, one.name))) for one in of_then]
    return tuple(found)


def _key(one: RecordedAdvice) -> tuple[str, str, str]:
    return one.namespace, one.name, one.rule


def _recorded(seen: JobSeen, rule: str, now_ms: int) -> RecordedAdvice:
    use = seen.use
    return RecordedAdvice(
        use.namespace, use.name, rule, now_ms, held_by(seen), seen.total.mean_milli, _gpu_s_per_day(seen)
    )  # fmt: skip


def _earlier(one: RecordedAdvice, seen: JobSeen | None) -> EarlierAdvice:
    held_now = held_by(seen) if seen is not None else ""
    return EarlierAdvice(
        f"{one.namespace}/{one.name}", one.rule, one.advised_ms, _followed(one, seen, held_now), one.held,
        held_now, one.mean_milli, seen.total.mean_milli if seen is not None else 0, one.gpu_s_per_day,
        _gpu_s_per_day(seen) if seen is not None else 0,
    )  # fmt: skip


def _followed(one: RecordedAdvice, seen: JobSeen | None, held_now: str) -> Followed:
    if seen is None:
        return "gone"
    if held_now != one.held:
        return "changed"
    if seen.total.measured_ms < ONE_DAY_MS:
        return "too early"
    if any(rule.name == one.rule for rule, _ in applying(seen)):
        return "unchanged"
    return "cleared" if seen.enough else "too early"


def held_by(seen: JobSeen) -> str:
    """What the latest pod of a job holds, or the job's first pod in the window if that holds nothing: `8 x H100`."""
    latest = [one for one in seen.use.devices if one.pod_uid == seen.use.latest.uid]
    devices = latest or [one for one in seen.use.devices if one.pod_uid == seen.use.devices[0].pod_uid]
    first = devices[0]
    part = "" if first.milli == 1000 else f"{first.milli / 1000:g} of "
    return f"{len(devices)} x {part}{first.model or 'an unknown model'} ({first.kind})"


def _gpu_s_per_day(seen: JobSeen) -> int:
    length_ms = max(seen.use.window.ms, ONE_DAY_MS)
    return seen.use.held_gpu * ONE_DAY_MS // (length_ms * GPU_SECOND)
