# SPDX-License-Identifier: Apache-2.0
"""Random histories of three days, of which much is written, changed and ended late."""

from __future__ import annotations

from hypothesis import strategies as st

from dovetail.history.records import DAY_MS, HOUR_MS, Gap, GpuHold, GpuSpan, HistoryBatch, PodRecord, UseHour

DAYS = 3
END_MS = DAYS * DAY_MS + 2 * HOUR_MS
"""The time at which all of these days are over for long enough."""
_HOURS = st.integers(0, DAYS * 24).map(lambda hour: hour * HOUR_MS)
_STARTS = st.sampled_from([0, 5, 23, 24, 30, 47, 50]).map(lambda hour: hour * HOUR_MS)
"""Few, so that records replace each other."""
_ENDS = st.just(0) | _HOURS
_GPUS = st.sampled_from("abc")
_UIDS = st.sampled_from(["p1", "p2", "p3"])
_SPANS = st.builds(
    lambda gpu, node, model, health, start, end: GpuSpan(
        gpu, node, "abc".index(gpu), 3, model, health, start, end and max(start, end), region="eu"
    ),
    _GPUS,
    st.sampled_from(["n1", "n2"]),
    st.sampled_from(["H100", "L4", ""]),
    st.sampled_from(["healthy", "healthy", "unhealthy"]),
    _STARTS,
    _ENDS,
)
_HOLDS = st.builds(
    lambda uid, gpu, milli, start, end, named: GpuHold(
        uid, gpu, milli, "share", start, end and max(start, end), named=named
    ),
    _UIDS,
    st.sampled_from("abcd"),
    st.integers(1, 1000),
    _STARTS,
    _ENDS,
    st.booleans(),
)
_PODS = st.builds(
    lambda uid, job, user, queue, bound, started, ended: PodRecord(
        uid, "ns", uid, job, user=user, queue=queue, submitted_ms=bound // 2, bound_ms=bound,
        started_ms=started, ended_ms=ended,
    ),
    _UIDS,
    st.sampled_from(["", "j"]),
    st.sampled_from(["", "ada"]),
    st.sampled_from(["vision", "audio"]),
    _ENDS,
    _ENDS,
    _ENDS,
)  # fmt: skip
_USE = st.builds(
    lambda gpu, uid, hour, measured, use, source: UseHour(
        gpu, uid, hour, measured, min(use, measured) * 777, 0, source=source
    ),
    _GPUS,
    _UIDS | st.just(""),
    _HOURS,
    st.integers(0, HOUR_MS),
    st.integers(0, HOUR_MS),
    st.sampled_from(["n1/1", "n2/1"]),
)
_RECORDS = {"spans": _SPANS, "holds": _HOLDS, "pods": _PODS, "use": _USE}
_FIRST = HistoryBatch(
    END_MS,
    [GpuSpan(gpu, "n1", number, 3, "H100", "healthy", 0, region="eu") for number, gpu in enumerate("abc")],
    [GpuHold("p1", "a", 1000, "whole", 0), GpuHold("p2", "b", 500, "share", 20 * HOUR_MS)],
    [PodRecord("p1", "ns", "p1", "j", queue="vision", bound_ms=1, started_ms=HOUR_MS)],
    [UseHour("a", "p1", hour * HOUR_MS, HOUR_MS, 333 * HOUR_MS, 0, source="n1/1") for hour in (3, 30)],
    [Gap(HOUR_MS, 2 * HOUR_MS, "test")],
)
"""So that there is something to be changed."""


def histories() -> st.SearchStrategy[list[tuple[HistoryBatch, int]]]:
    """Batches, each with the number of steps that are done after it. All is over with the first one."""
    batches = st.fixed_dictionaries({name: st.lists(some, max_size=2) for name, some in _RECORDS.items()}).map(
        lambda records: HistoryBatch(END_MS, **records)
    )
    first = st.tuples(st.just(_FIRST), st.integers(0, 30))
    return st.tuples(first, st.lists(st.tuples(batches, st.integers(0, 12)), max_size=4)).map(
        lambda found: [found[0], *found[1]]
    )
