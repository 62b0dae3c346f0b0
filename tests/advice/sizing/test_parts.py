# SPDX-License-Identifier: Apache-2.0
"""Smaller MIG instances and shares: what is advised holds the work, and nothing smaller does."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from dovetail.advice.sizing.advise import advice_for
from dovetail.advice.sizing.parts import held_profile, smaller_profile, smaller_share
from dovetail.advice.sizing.seen import JobSeen
from dovetail.history.records import HoldKind
from tests.advice.sizing.jobs import A100, H100, HOURS, T4, device, job

GIB = 1024
OF_H100 = {"1g.10gb": (142, 1, 1), "1g.20gb": (250, 1, 2), "2g.20gb": (285, 2, 2), "3g.40gb": (500, 3, 4),
           "4g.40gb": (571, 4, 4), "7g.80gb": (1000, 7, 8)}  # fmt: skip
"""What an instance counts, its compute slices and its memory slices; of the latter a card has 8, of about 10 GiB."""


def part(
    kind: HoldKind, milli: int, use: int, peak_mib: int, model: str = H100, workload: str = "Deployment"
) -> JobSeen:
    held = device([(use, HOURS)], {"utilization": use}, kind=kind, peak_mib=peak_mib, model=model)
    return job(replace(held, milli=milli), kind=workload)


@pytest.mark.parametrize("own", ["1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"])
def test_an_instance_that_is_advised_holds_the_work_and_none_smaller_does(own: str) -> None:
    milli, compute, memory = OF_H100[own]
    advised = set()
    for use, gib in product((20, 120, 240, 380, 610, 930), (1, 8, 9, 12, 17, 25, 37)):
        seen = part("instance", milli, use, gib * GIB)
        held = held_profile(seen)
        assert held is not None and held.profile.name == own
        found = smaller_profile(seen)
        # By hand: the upper edge of a twentieth of the held slices, on at most 80 % of the others.
        load = (use // 50 + 1) * 50
        holding = [
            (other[0], name)
            for name, other in OF_H100.items()
            if other[0] < milli and load * compute <= 800 * other[1] and load * memory <= 800 * other[2]
            and gib * 1000 <= 9.7 * other[2] * 900
        ]  # fmt: skip
        assert (found.profile.name if found is not None else "") == min(holding, default=(0, ""))[1], (use, gib)
        advised.add(found is not None)
    assert advised == {True, False}


@pytest.mark.parametrize("milli", [250, 500, 1000])
def test_a_share_that_is_advised_holds_the_work_and_saves_half(milli: int) -> None:
    usable = 81_559 - 480
    for use, gib in product((20, 120, 240, 480, 910), (1, 4, 9, 15, 30)):
        found = smaller_share(part("share", milli, use, gib * GIB))
        load = (use // 50 + 1) * 50
        enough = [
            share for share in range(50, 1001, 50)
            if load * milli <= 800 * share and gib * GIB * 1000 * 1000 <= 900 * share * usable
        ]  # fmt: skip
        least = min(enough, default=1001)
        assert (found.milli if found is not None else 0) == (least if least * 2 <= milli else 0), (use, gib)


def test_what_the_advice_names_and_saves() -> None:
    (found,) = advice_for(part("instance", 500, 60, 4 * GIB)).advice
    assert (found.rule, found.change and found.change.resource) == ("smaller-instance", "nvidia.com/mig-1g.10gb")
    assert "request nvidia.com/mig-1g.10gb in place of nvidia.com/mig-3g.40gb" in found.action
    assert found.saving.gpu_s == HOURS * 3600 * 500 // 1000 * 716 // 1000
    (found,) = advice_for(part("share", 500, 60, 4 * GIB)).advice
    assert found.rule == "smaller-share" and "dovetail.dev/gpu-fraction: '0.1', or" in found.action
    assert "dovetail.dev/gpu-memory: 4552Mi" in found.action
    assert found.saving.gpu_s == HOURS * 3600 * 500 // 1000 * 800 // 1000


@pytest.mark.parametrize(
    "seen",
    [
        part("instance", 333, 60, GIB),
        part("instance", 500, 60, GIB, model=T4),
        part("claimed", 500, 60, GIB),
        part("share", 500, 60, GIB, model="Vendor-X"),
        part("share", 500, 60, 0),
        job(*(replace(device(kind="instance", gpu=f"g{i}"), milli=500) for i in range(2)), kind="Deployment"),
        job(*(replace(device(kind="share", gpu=f"g{i}", pod=f"p{i}"), milli=250 + i) for i in range(2)),
            kind="Deployment"),
        job(*(replace(device(kind="instance", gpu=f"g{i}", pod=f"p{i}"), milli=500) for i in range(2)), kind="Job"),
    ],
)  # fmt: skip
def test_of_parts_whose_sizes_are_not_known_nothing_is_advised(seen: JobSeen) -> None:
    assert smaller_profile(seen) is None and smaller_share(seen) is None
    assert advice_for(seen).verdict in ("not enough data", "right-sized")


def test_a_profile_counts_what_the_pod_holds() -> None:
    for milli in range(100, 1001):
        held = held_profile(part("instance", milli, 60, GIB, model=A100))
        if held is not None:
            assert held.milli == milli
