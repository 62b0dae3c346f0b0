# SPDX-License-Identifier: Apache-2.0
"""What jobs had, against a list of all runs."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.queues.attained import Attained, level, level_after_ms

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
GPU_HOUR = 1000 * HOUR_MS


def test_levels_begin_at_16_gpu_hours_and_at_16_times_the_one_below() -> None:
    hours = [0, 15.99, 16, 255.99, 256, 4095.99, 4096]
    assert [level(int(hour * GPU_HOUR)) for hour in hours] == [0, 0, 1, 1, 2, 2, 3]


@given(st.integers(0, 10**16), st.integers(1, 10**6))
def test_the_next_level_is_reached_then_and_not_before(served: int, rate: int) -> None:
    after_ms = level_after_ms(served, rate)
    assert level(served + rate * (after_ms - 1)) == level(served) < level(served + rate * after_ms)


runs = st.tuples(
    st.sampled_from("ab"), st.sampled_from(["j", "k"]), st.integers(1, 8000), st.integers(0, 100), st.integers(0, 100)
)


@given(st.lists(runs, max_size=12), st.integers(200, 300))
def test_a_job_had_what_all_its_pods_had(found: list[tuple[str, str, int, int, int]], now: int) -> None:
    """Pods that run on are those whose end is after their start by an odd number. All is within a day: nothing is
    forgotten."""
    attained, had, running = Attained(), defaultdict[tuple[str, str], int](int), defaultdict[str, list[int]](list)
    for number, (queue, job, rate, start, length) in enumerate(found):
        rate *= 60
        uid, since_ms = str(number), start * MINUTE_MS
        attained.put(uid, queue, job, rate, since_ms)
        end_ms = (start + length) * MINUTE_MS if length % 2 == 0 else now * MINUTE_MS
        if length % 2 == 0:
            attained.end(uid, end_ms)
        had[queue, job] += rate * (end_ms - since_ms)
    for number, (queue, job, _, _, length) in enumerate(found):
        assert attained.level(queue, job, now * MINUTE_MS) == level(had[queue, job])
        if length % 2:
            running[queue].append(level(had[queue, job]))
            assert attained.since_ms(str(number)) is not None
    for queue in "ab":
        assert attained.highest(queue, now * MINUTE_MS) == max(running[queue], default=0)


@given(st.lists(runs, min_size=1, max_size=12))
def test_jobs_change_their_level_at_the_announced_time(found: list[tuple[str, str, int, int, int]]) -> None:
    attained, now_ms = Attained(), 100 * HOUR_MS
    for number, (queue, job, rate, start, _) in enumerate(found):
        attained.put(str(number), queue, job, rate, start * HOUR_MS)
    jobs = {(queue, job) for queue, job, *_ in found}
    due = {queue: attained.next_ms(queue, now_ms) for queue, _ in jobs}
    soonest_ms = min(at_ms for at_ms in due.values() if at_ms is not None)
    before = {job: attained.level(*job, now_ms) for job in jobs}
    assert attained.turned(now_ms, soonest_ms - 1) == []
    assert {job: attained.level(*job, soonest_ms - 1) for job in jobs} == before
    turned = attained.turned(soonest_ms - 1, soonest_ms)
    changed = {job[0] for job in jobs if attained.level(*job, soonest_ms) != before[job]}
    assert set(turned) == changed != set()


def test_what_was_written_down_goes_on() -> None:
    attained, later = Attained(), Attained()
    attained.put("p1", "q", "j", 1000, 0)
    attained.end("p1", 20 * HOUR_MS)
    attained.put("p2", "q", "j", 1000, 30 * HOUR_MS)
    later.put("p2", "q", "j", 1000, 30 * HOUR_MS)
    assert attained.past("q", 40 * HOUR_MS) == (("j", 20 * GPU_HOUR),)
    later.restore("q", attained.past("q", 40 * HOUR_MS), 40 * HOUR_MS)
    for now_ms in (40 * HOUR_MS, 265 * HOUR_MS, 266 * HOUR_MS):
        assert later.level("q", "j", now_ms) == attained.level("q", "j", now_ms)
    assert later.level("q", "j", 266 * HOUR_MS) == 2


def test_a_job_of_which_nothing_ran_for_a_day_is_forgotten() -> None:
    attained = Attained()
    attained.put("p", "q", "j", 1000, 0)
    attained.end("p", 20 * HOUR_MS)
    assert attained.past("q", 44 * HOUR_MS)
    assert attained.past("q", 44 * HOUR_MS + 1) == ()
    assert attained.level("q", "j", 44 * HOUR_MS + 1) == 0


def test_a_queue_that_is_gone_has_no_jobs() -> None:
    attained = Attained()
    attained.put("p", "q", "j", 1000, 0)
    attained.drop("q")
    assert attained.since_ms("p") is None
    assert attained.level("q", "j", 20 * HOUR_MS) == 0
