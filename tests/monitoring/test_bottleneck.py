# SPDX-License-Identifier: Apache-2.0
"""What bounds the work on a GPU: each class is reached, and the edges of its thresholds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.monitoring.bottleneck import (
    CLASSES,
    COMMUNICATION,
    HUNG,
    STRAGGLER,
    UNKNOWN,
    Activity,
    balance,
    classify,
    real_utilization,
)

BUSY = Activity(utilization=90, memory_copy=10, engine=90, sm=70, tensor=5, fp64=0, dram=20, power=0.8)
_PERCENT = st.none() | st.floats(0, 100)
_ACTIVITIES = st.builds(
    Activity,
    utilization=_PERCENT, memory_copy=_PERCENT, engine=_PERCENT, sm=_PERCENT, tensor=_PERCENT, fp64=_PERCENT,
    dram=_PERCENT, pcie_bytes_s=st.none() | st.floats(0, 1e11), nvlink_bytes_s=st.none() | st.floats(0, 1e12),
    power=st.none() | st.floats(0, 1), spread=st.none() | st.floats(0, 50),
    sm_samples=st.lists(st.floats(0, 100), max_size=8).map(tuple),
)  # fmt: skip


def _name(at: Activity) -> str:
    return classify((at,))[0].name


def test_each_class_of_one_gpu_is_reached() -> None:
    at = Activity(utilization=50, engine=30, sm=20, tensor=0, fp64=0, dram=20, memory_copy=0, pcie_bytes_s=0)
    cases = {
        "idle": replace(at, engine=4, sm=4, dram=4),
        "tensor-heavy": replace(at, sm=60, tensor=50),
        "tensor": replace(at, sm=40, tensor=15),
        "fp64": replace(at, sm=50, fp64=20),
        "io-bound": replace(at, pcie_bytes_s=1e9),
        "memory-bound": replace(at, dram=50),
        "compute-heavy": replace(at, sm=80),
        "compute-active": replace(at, sm=50),
        "memory-active": replace(at, sm=50 - 1e-9, dram=40),
        "small-kernels": replace(at, engine=40),
        "low": replace(at, engine=14, sm=14, dram=14),
        "mixed": at,
    }
    assert {name: _name(case) for name, case in cases.items()} == {name: name for name in cases}
    assert [found.name for found, _ in CLASSES] == list(cases)


def test_just_below_its_thresholds_a_class_does_not_hold() -> None:
    assert _name(replace(BUSY, tensor=49.9, sm=60)) == "tensor"
    assert _name(replace(BUSY, tensor=14.9, sm=60)) == "compute-active"
    assert _name(replace(BUSY, sm=29.9, pcie_bytes_s=1e9 - 1, memory_copy=39.9)) == "mixed"


def test_loading_data_is_not_idle() -> None:
    at = Activity(utilization=2, engine=2, sm=2, tensor=0, dram=2, memory_copy=0, pcie_bytes_s=2e9)
    assert _name(at) == "io-bound"


def test_without_profiling_values_only_utilization_counts() -> None:
    assert [_name(Activity(utilization=each)) for each in (0, 4.9, 5, 14.9, 15, 100)] == [
        "idle", "idle", "low", "low", "busy", "busy",
    ]  # fmt: skip
    assert classify((Activity(),)) == (UNKNOWN,)


def test_full_utilization_near_idle_power_is_a_hang() -> None:
    spin = Activity(utilization=100, engine=100, sm=6, tensor=0, dram=0.1, power=0.18, sm_samples=(6.0, 6.0, 6.1, 6.0))
    assert classify((spin,)) == (HUNG,)
    for alive in (replace(spin, power=0.31), replace(spin, dram=20), replace(spin, sm_samples=(0.0, 40.0, 2.0, 30.0))):
        assert classify((alive,)) != (HUNG,)


def test_one_that_differs_from_its_job_is_a_straggler() -> None:
    job = [replace(BUSY, sm=each) for each in (90, 91, 89, 90, 40, 90, 91, 89)]
    assert [found is STRAGGLER for found in classify(job)] == [i == 4 for i in range(8)]


def test_small_differences_make_no_straggler() -> None:
    assert STRAGGLER not in classify([replace(BUSY, sm=each) for each in (90, 90, 90, 81)])
    # Two differ from each other: neither is the odd one.
    assert STRAGGLER not in classify([replace(BUSY, sm=each) for each in (90, 10)])


def test_gpus_that_wait_for_one_another_are_communication_bound() -> None:
    waves = (0.0, 80.0, 0.0, 80.0, 0.0, 80.0)
    member = replace(BUSY, sm=40, tensor=0, nvlink_bytes_s=1e11, sm_samples=waves)
    assert set(classify([member] * 4)) == {COMMUNICATION}
    quiet = replace(member, nvlink_bytes_s=1e8)
    assert COMMUNICATION not in classify([quiet] * 4)
    out_of_phase = replace(member, sm_samples=waves[1:] + waves[:1])
    assert COMMUNICATION not in classify([member, out_of_phase])
    assert COMMUNICATION not in classify([member])


def test_gpus_that_send_over_pcie_what_they_receive_exchange() -> None:
    """At a rate that is low, as over a slow network, and without swings."""
    member = replace(BUSY, sm=25, tensor=0, memory_copy=10, pcie_bytes_s=4e8, pcie_balance=0.8)
    assert set(classify([member] * 2)) == {COMMUNICATION}
    loads = replace(member, pcie_bytes_s=4e9, pcie_balance=0.1)
    for other in (loads, replace(member, pcie_bytes_s=2e8), replace(member, nvlink_bytes_s=1e9), replace(BUSY, sm=90)):
        assert COMMUNICATION not in classify([member, other]), other
    assert COMMUNICATION not in classify([member])
    # Swings make no exchange of what is only received.
    waves = replace(loads, sm=40, pcie_bytes_s=8e9, spread=9.0)
    assert COMMUNICATION not in classify([waves] * 2)
    assert set(classify([replace(waves, pcie_balance=None)] * 2)) == {COMMUNICATION}
    assert (balance(2.0, 8.0), balance(8.0, 2.0), balance(0.0, 0.0), balance(None, 1.0)) == (0.25, 0.25, None, None)


def test_over_a_long_window_the_spread_shows_whether_use_stays_or_swings() -> None:
    spin = Activity(utilization=100, engine=100, sm=6, tensor=0, dram=0.1, power=0.18, spread=0.0)
    assert classify((spin,)) == (HUNG,)
    assert classify((replace(spin, spread=2.6),)) != (HUNG,)
    member = replace(BUSY, sm=40, tensor=0, nvlink_bytes_s=1e11, spread=5.0)
    assert set(classify([member] * 4)) == {COMMUNICATION}
    assert COMMUNICATION not in classify([member, replace(member, spread=4.9)])
    assert COMMUNICATION not in classify([member, replace(member, spread=None)])


def test_real_utilization_is_weighted() -> None:
    assert real_utilization(Activity(sm=100, tensor=100, dram=100, engine=100)) == 100
    assert real_utilization(Activity(sm=80, tensor=40, dram=50, engine=90)) == 0.35 * 80 + 0.35 * 40 + 10 + 9
    assert real_utilization(Activity(utilization=30)) == 30
    assert real_utilization(Activity()) is None


@given(st.lists(_ACTIVITIES, max_size=6))
@pytest.mark.slow
def test_every_gpu_has_one_class_whatever_it_reports(members: list[Activity]) -> None:
    found = classify(members)
    assert len(found) == len(members)
    for at, one in zip(members, found, strict=True):
        assert (one is UNKNOWN) == (at.utilization is None and not at.profiled)


@given(st.lists(_ACTIVITIES, min_size=1, max_size=6), st.permutations(range(6)))
@pytest.mark.slow
def test_the_order_of_the_members_does_not_matter(members: list[Activity], places: list[int]) -> None:
    order = [i for i in places if i < len(members)]
    shuffled = classify([members[i] for i in order])
    found = classify(members)
    assert shuffled == tuple(found[i] for i in order)
