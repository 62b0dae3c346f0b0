# SPDX-License-Identifier: Apache-2.0
"""Which pods hold GPUs and do not use them, and since when."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.history.idle import Idleness, IdleRules, idleness
from dovetail.history.records import HOUR_MS, GpuHold, HistoryBatch, PodRecord, UseHour
from tests.history.kept import Kept

MINUTE_MS = 60_000
START_MS = 100 * HOUR_MS
NOW_MS = START_MS + 6 * HOUR_MS
AT_ONCE = IdleRules(least_ms=1, grace_ms=0)


def pod(uid: str, **fields: Any) -> PodRecord:
    return PodRecord(uid, "ml", uid, uid, bound_ms=START_MS, started_ms=START_MS, **fields)


def measured(gpu: str, uid: str, used: range | tuple[int, ...], minutes: int = 360) -> list[UseHour]:
    """The hours of a GPU that was used in these minutes and measured in all `minutes`."""
    found = []
    for hour in range(-(-minutes // 60)):
        mine = [minute for minute in used if minute // 60 == hour]
        ms = min(60, minutes - 60 * hour) * MINUTE_MS
        until_ms = START_MS + (max(mine) + 1) * MINUTE_MS if mine else 0
        idle_ms = ms - len(mine) * MINUTE_MS
        found.append(UseHour(gpu, uid, START_MS + hour * HOUR_MS, ms, 0, idle_ms, used_until_ms=until_ms))
    return found


def found(pods: list[PodRecord], holds: list[GpuHold], use: list[UseHour], rules: IdleRules) -> Idleness:
    kept = Kept()
    kept.write(HistoryBatch(NOW_MS, holds=holds, pods=pods, use=use))
    return idleness(kept, rules)


def minutes_idle(result: Idleness) -> dict[str, int]:
    return {one.pod.uid: (result.now_ms - one.since_ms) // MINUTE_MS for one in result.idle}


def test_a_pod_is_idle_since_it_last_used_one_of_its_gpus() -> None:
    holds = [GpuHold("p", gpu, 1000, "whole", START_MS) for gpu in "ab"]
    use = [*measured("a", "p", range(100)), *measured("b", "p", range(200))]
    (one,) = found([pod("p")], holds, use, IdleRules()).idle
    assert (one.since_ms, one.idle, one.at_least) == (START_MS + 200 * MINUTE_MS, True, False)
    assert one.amount == 2 * 1000 * 160 * MINUTE_MS and one.coverage == 1000


def test_a_pod_that_uses_some_of_its_gpus_is_listed_with_the_others() -> None:
    holds = [GpuHold("p", gpu, 1000, "whole", START_MS) for gpu in "abcd"]
    use = [hour for gpu in "abc" for hour in measured(gpu, "p", range(360))] + measured("d", "p", ())
    (one,) = found([pod("p")], holds, use, IdleRules()).idle
    assert not one.idle and [gpu.hold.gpu for gpu in one.unused] == ["d"] and not one.unused[0].ever
    # The first ten minutes are start-up.
    assert one.amount == 1000 * 350 * MINUTE_MS


def test_short_idleness_is_not_listed() -> None:
    holds = [GpuHold(uid, uid, 1000, "whole", START_MS) for uid in "pq"]
    use = [*measured("p", "p", range(300)), *measured("q", "q", range(301))]
    assert minutes_idle(found([pod("p"), pod("q")], holds, use, IdleRules())) == {"p": 60}


def test_containers_that_do_not_run_yet_are_no_idleness() -> None:
    pulled = PodRecord("p", "ml", "p", "p", bound_ms=START_MS, started_ms=START_MS + 200 * MINUTE_MS)
    holds = [GpuHold("p", "p", 1000, "whole", START_MS)]
    assert minutes_idle(found([pulled], holds, measured("p", "p", ()), IdleRules())) == {"p": 150}


def test_what_was_not_measured_is_not_called_idle() -> None:
    holds = [GpuHold(uid, gpu, 500, "share", START_MS) for uid, gpu in (("p", "a"), ("q", "b"), ("r", "c"))]
    gap = measured("b", "q", range(10), minutes=200)
    result = found([pod("p"), pod("q"), pod("r")], holds, [*gap, *measured("c", "r", (0,))], IdleRules())
    assert minutes_idle(result).keys() == {"r"} and [one.uid for one in result.not_measured] == ["p"]


def test_exempt_namespaces_and_labels_are_not_listed() -> None:
    pods = [pod("p"), pod("q", labels={"team": "infra"}), pod("r")]
    holds = [GpuHold(uid, uid, 1000, "whole", START_MS) for uid in "pqr"]
    use = [hour for uid in "pqr" for hour in measured(uid, uid, ())]
    exempt = found(pods, holds, use, IdleRules(exempt=frozenset({"team=infra"})))
    assert minutes_idle(exempt).keys() == {"p", "r"}
    assert not found(pods, holds, use, IdleRules(exempt=frozenset({"ml"}))).idle


def test_a_pod_that_holds_no_gpu_any_more_is_not_idle() -> None:
    holds = [GpuHold("p", "p", 1000, "whole", START_MS, NOW_MS - 1)]
    assert not found([pod("p")], holds, measured("p", "p", ()), IdleRules()).idle


def test_a_pod_that_is_idle_as_far_as_is_searched_is_idle_at_least_since_then() -> None:
    holds = [GpuHold("p", "p", 1000, "whole", START_MS)]
    rules = IdleRules(look_back_ms=2 * HOUR_MS)
    (one,) = found([pod("p")], holds, measured("p", "p", range(30)), rules).idle
    assert one.at_least and one.since_ms == NOW_MS - 2 * HOUR_MS and not one.unused[0].ever


def test_a_pod_that_was_idle_all_day_is_idle_since_the_day_on_which_it_was_used() -> None:
    holds = [GpuHold("p", "p", 1000, "whole", START_MS)]
    kept = Kept()
    kept.write(HistoryBatch(START_MS + 60 * HOUR_MS, holds=holds, pods=[pod("p")], use=[
        *measured("p", "p", range(30), 60), *(replace(measured("p", "p", (), 60)[0], hour_ms=START_MS + hour * HOUR_MS)
                                              for hour in range(1, 60)),
    ]))  # fmt: skip
    (one,) = idleness(kept, IdleRules()).idle
    assert (one.since_ms, one.at_least) == (START_MS + 30 * MINUTE_MS, False)


@given(st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(0, 359), max_size=4), min_size=1))
@pytest.mark.slow
def test_idleness_begins_after_the_last_minute_of_use(used: dict[str, set[int]]) -> None:
    holds = [GpuHold("p", gpu, 1000, "whole", START_MS) for gpu in sorted(used)]
    use = [hour for gpu, minutes in used.items() for hour in measured(gpu, "p", tuple(minutes))]
    result = found([pod("p")], holds, use, AT_ONCE)
    last = {gpu: max(minutes, default=-1) + 1 for gpu, minutes in used.items()}
    unused = {gpu for gpu, minute in last.items() if minute < 360}
    assert {gpu.hold.gpu for one in result.idle for gpu in one.unused} == unused
    if unused:
        assert minutes_idle(result) == {"p": 360 - max(last[gpu] for gpu in unused)}
