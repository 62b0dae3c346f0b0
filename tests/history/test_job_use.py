# SPDX-License-Identifier: Apache-2.0
"""How jobs used their GPUs: runs, coverage, and quantiles against an oracle that has every sample."""

from __future__ import annotations

from math import ceil
from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.history.job_use import REPLACED_MS, DeviceUse, job_uses, merged, runs_of
from dovetail.history.records import DAY_MS, HOUR_MS, USE_BINS, GpuHold, GpuSpan, Outcome, Period, PodRecord, UseHour
from tests.history.memory_reader import MemoryReader

_SAMPLES = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 60_000)), min_size=1, max_size=40)
"""Real use in thousandths, and for how long."""


def _pod(
    uid: str, submitted_ms: int, ended_ms: int = 0, outcome: Outcome = "Completed", job: str = "train"
) -> PodRecord:
    return PodRecord(uid, "ml", uid, job, "Job", submitted_ms=submitted_ms, ended_ms=ended_ms, outcome=outcome)


def _bins(samples: list[tuple[int, int]]) -> tuple[int, ...]:
    bins = [0] * USE_BINS
    for use, ms in samples:
        bins[min(use // 50, USE_BINS - 1)] += ms
    return tuple(bins)


def _device(samples: list[tuple[int, int]]) -> DeviceUse:
    ms = sum(ms for _, ms in samples)
    return DeviceUse(0, "p", "a", "m", "whole", 1000, ms, ms, sum(u * t for u, t in samples), histogram=_bins(samples))


@given(_SAMPLES, st.sampled_from([1, 500, 950, 990, 1000]))
def test_a_quantile_is_never_too_low_and_at_most_a_bin_too_high(samples: list[tuple[int, int]], per_mille: int) -> None:
    ordered = sorted(samples)
    left_ms = ceil(sum(ms for _, ms in ordered) * per_mille / 1000)
    exact = 1000
    for use, ms in ordered:
        left_ms -= ms
        if left_ms <= 0:
            exact = use
            break
    found = _device(samples).quantile_milli(per_mille)
    assert exact <= found <= exact + 50


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 9)), min_size=1, max_size=9), min_size=1, max_size=4
    )
)
@pytest.mark.slow
def test_merged_devices_are_as_one_with_all_samples(parts: list[list[tuple[int, int]]]) -> None:
    whole = _device([one for part in parts for one in part])
    together = merged([_device(part) for part in parts])
    assert (together.use, together.measured_ms, together.histogram) == (whole.use, whole.measured_ms, whole.histogram)
    assert together.mean_milli == whole.use // whole.measured_ms
    values = [i * 5.0 for i, ms in enumerate(whole.histogram) for _ in range(ms)]
    assert together.means().spread == pytest.approx(pstdev(values))


def test_pods_that_are_there_at_one_time_are_one_run() -> None:
    pods = [_pod("a", 0, 100), _pod("b", 50, 200), _pod("c", 150, 300), _pod("d", 301, 400), _pod("e", 500)]
    assert [[pod.uid for pod in run] for run in runs_of(reversed(pods))] == [["a", "b", "c"], ["d"], ["e"]]
    # What has not ended goes on.
    assert len(runs_of([_pod("a", 0), _pod("b", 10 * DAY_MS)])) == 1


@pytest.mark.parametrize("outcome", ["Failed", "Preempted", "Evicted", "Lost"])
def test_a_pod_that_replaces_one_that_did_not_complete_is_of_its_run(outcome: Outcome) -> None:
    first = _pod("a", 0, 100, outcome)
    assert len(runs_of([first, _pod("b", 100 + REPLACED_MS)])) == 1
    assert len(runs_of([first, _pod("b", 101 + REPLACED_MS)])) == 2
    assert len(runs_of([_pod("a", 0, 100), _pod("b", 101)])) == 2


def _hour(
    pod: str, hour: int, measured_ms: int = HOUR_MS, use: int = 500, gpu: str = "a", peak_mib: int = 0
) -> UseHour:
    bins = [0] * USE_BINS
    bins[use // 50] = measured_ms
    return UseHour(gpu, pod, hour * HOUR_MS, measured_ms, use * measured_ms, 0, peak_mib, tuple(bins))


def _reader(**records: object) -> MemoryReader:
    spans = [GpuSpan(gpu, "n", i, 2, "NVIDIA-L4", "healthy", 0) for i, gpu in enumerate("ab")]
    return MemoryReader(Period(0, 100 * HOUR_MS), spans, **records)  # type: ignore[arg-type]


def test_what_a_job_held_and_how_much_of_it_was_measured() -> None:
    reader = _reader(
        pods=[_pod("p", 0, 6 * HOUR_MS), _pod("q", 9 * HOUR_MS, 11 * HOUR_MS)],
        holds=[
            GpuHold("p", "a", 1000, "whole", 0, 6 * HOUR_MS), GpuHold("p", "b", 1000, "whole", 0, 6 * HOUR_MS),
            GpuHold("q", "a", 500, "share", 9 * HOUR_MS, 11 * HOUR_MS),
        ],
        use=[
            _hour("p", 0, peak_mib=900), _hour("p", 1, HOUR_MS // 2),
            replace(_hour("p", 1, HOUR_MS // 2, 100), source="n/2"),
            _hour("p", 3, gpu="b", peak_mib=300), _hour("other", 3), _hour("", 4), _hour("q", 9),
        ],
    )  # fmt: skip
    (job,) = job_uses(reader, Period(0, 100 * HOUR_MS)).jobs
    assert (job.runs, job.pods, job.most_per_pod, len(job.devices)) == (2, 2, 2, 3)
    assert job.held_gpu == (12 * 1000 + 2 * 500) * HOUR_MS and job.active_ms == 8 * HOUR_MS
    assert job.gpus_milli == 1750 and job.coverage_milli == 4 * 1000 // 14
    total = job.total
    assert (total.measured_ms, total.memory_peak_mib) == (4 * HOUR_MS, 900)
    assert total.mean_milli == (3 * 500 + 250 + 50) // 4
    assert job.window == Period(0, 11 * HOUR_MS) and total.days == {0}
    assert [(one.run, one.gpu) for one in job.members()] == [(0, "a"), (0, "b"), (1, "a")]


def test_gpus_are_in_the_node_that_they_were_in_when_they_were_held() -> None:
    """A node is renamed, and a GPU moved to another with a new model name; a GPU without a record has no place."""
    spans = [
        GpuSpan("a", "n1", 0, 2, "NVIDIA-L4", "healthy", HOUR_MS, 5 * HOUR_MS),
        GpuSpan("a", "renamed", 0, 2, "NVIDIA-L4", "healthy", 5 * HOUR_MS, 7 * HOUR_MS),
        GpuSpan("a", "n2", 1, 8, "NVIDIA-L4-new", "healthy", 7 * HOUR_MS),
    ]
    starts = {"p": 0, "q": 4, "r": 6, "s": 8}
    reader = MemoryReader(
        Period(0, 10 * HOUR_MS), spans,
        [GpuHold(uid, "a", 1000, "whole", hour * HOUR_MS, (hour + 2) * HOUR_MS) for uid, hour in starts.items()]
        + [GpuHold("t", "b", 1000, "whole", 0, HOUR_MS)],
        [_pod(uid, 0, 10 * HOUR_MS) for uid in (*starts, "t")],
    )  # fmt: skip
    (job,) = job_uses(reader, Period(0, 10 * HOUR_MS)).jobs
    found = {one.pod_uid: (one.place.node if one.place else None, one.model) for one in job.devices}
    assert found == {"p": ("n1", "NVIDIA-L4"), "q": ("n1", "NVIDIA-L4"), "r": ("renamed", "NVIDIA-L4"),
                     "s": ("n2", "NVIDIA-L4-new"), "t": (None, "")}  # fmt: skip
    assert not job.spot


def test_a_period_is_of_whole_hours_and_ends_where_knowledge_ends() -> None:
    reader = MemoryReader(
        Period(0, 3 * HOUR_MS), (), [GpuHold("p", "a", 1000, "whole", 0)], [_pod("p", 0)],
        [_hour("p", 0), _hour("p", 1), _hour("p", 2)],
    )  # fmt: skip
    found = job_uses(reader, Period(HOUR_MS + 5, 9 * HOUR_MS))
    assert found.window == Period(HOUR_MS, 3 * HOUR_MS)
    assert (found.jobs[0].held_gpu, found.jobs[0].coverage_milli) == (2000 * HOUR_MS, 1000)
    assert job_uses(MemoryReader(Period(0, 0)), Period(0, 5)).jobs == ()


def test_only_jobs_that_are_wanted_and_that_held_something() -> None:
    reader = _reader(
        pods=[_pod("p", 0, HOUR_MS), _pod("q", 0, HOUR_MS, job="eval"), _pod("r", 0, HOUR_MS, job="waited"),
                  _pod("bare", 0, HOUR_MS, job="")],
        holds=[GpuHold(uid, "a", 1000, "whole", 0, HOUR_MS) for uid in ("p", "q", "bare")],
    )  # fmt: skip
    assert [one.name for one in job_uses(reader, Period(0, HOUR_MS)).jobs] == ["bare", "eval", "train"]
    assert [one.name for one in job_uses(reader, Period(0, HOUR_MS), {("ml", "eval")}).jobs] == ["eval"]


def test_hung_hours_and_gaps_are_known_by_the_hour() -> None:
    spin = {"utilization": 1000, "engine": 1000, "sm": 60, "tensor": 0, "dram": 1, "power": 180}
    busy = [0] * USE_BINS
    busy[0], busy[16] = HOUR_MS // 4, 3 * HOUR_MS // 4
    hours = [
        UseHour("a", "p", 0, HOUR_MS, 120 * HOUR_MS, 0, histogram=_bins([(120, HOUR_MS)]),
                activity={name: value * HOUR_MS for name, value in spin.items()}),
        UseHour("a", "p", HOUR_MS, HOUR_MS, 600 * HOUR_MS, HOUR_MS // 4, histogram=tuple(busy)),
        UseHour("a", "p", 2 * HOUR_MS, HOUR_MS, 0, HOUR_MS, histogram=_bins([(0, HOUR_MS)])),
    ]  # fmt: skip
    reader = _reader(pods=[_pod("p", 0)], holds=[GpuHold("p", "a", 1000, "whole", 0)], use=hours)
    (job,) = job_uses(reader, Period(0, 3 * HOUR_MS)).jobs
    assert (job.total.hung_ms, job.total.gap_ms, job.total.idle_ms) == (HOUR_MS, HOUR_MS // 4, 5 * HOUR_MS // 4)


def test_interruptions_and_messages_of_failures() -> None:
    def failed(uid: str, start_ms: int) -> PodRecord:
        return PodRecord(
            uid, "ml", uid, "train", submitted_ms=start_ms, ended_ms=start_ms + 5, outcome="Failed", message="x"
        )

    pods = [
        _pod("a", 0, 10, "Evicted"),
        _pod("b", 20, 30),
        _pod("c", DAY_MS, DAY_MS + 10, "Preempted"),
        failed("d", 2 * DAY_MS),
    ]
    holds = [GpuHold(pod.uid, "a", 1000, "whole", pod.submitted_ms, pod.ended_ms) for pod in pods]
    (job,) = job_uses(_reader(pods=pods, holds=holds), Period(0, 3 * DAY_MS)).jobs
    assert (job.runs, job.interrupted, job.messages) == (3, 1, ("x",))
