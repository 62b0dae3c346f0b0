# SPDX-License-Identifier: Apache-2.0
"""Run times are learned from the like, then from the queue, then from all; and the words name the source."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.model import Work
from dovetail.core.queues.run_times import KEPT, RunTimes
from dovetail.core.reasons import Sure

HOUR_MS = 3_600_000
TRAIN = Work(family="train")


def learned(*ran_ms: int, family: str = "train", queue: str = "nlp") -> RunTimes:
    run_times = RunTimes()
    for ms in ran_ms:
        run_times.learn(family, queue, ms)
    return run_times


def test_a_limit_of_the_run_time_is_what_is_counted_with() -> None:
    work = Work(family="train", max_runtime_ms=2 * HOUR_MS)
    estimate = learned(1, 2, 3).estimate(work, "nlp")
    assert (estimate.ran_ms, estimate.sure) == (2 * HOUR_MS, Sure.KNOWN)
    assert estimate.basis == "run time limit: 2 h"
    assert RunTimes().left_ms(work, "nlp", HOUR_MS // 2).ran_ms == HOUR_MS * 3 // 2
    assert RunTimes().left_ms(work, "nlp", 3 * HOUR_MS).ran_ms == 0


@pytest.mark.parametrize(
    ("ms", "words"),
    [(90 * 60_000, "1 h 30 min"), (26 * HOUR_MS, "1 d 2 h"), (45_000, "45 s"), (1500, "1 s 500 ms"), (1, "1 ms")],
)
def test_times_are_reported_exactly(ms: int, words: str) -> None:
    assert RunTimes().estimate(Work(max_runtime_ms=ms), "q").basis == f"run time limit: {words}"


@pytest.mark.parametrize(("runs", "ran_ms"), [(3, 3), (9, 9), (10, 9), (11, 10), (14, 13), (20, 18), (32, 29)])
def test_nine_of_ten_runs_of_the_family_took_no_longer(runs: int, ran_ms: int) -> None:
    estimate = learned(*range(runs, 0, -1)).estimate(TRAIN, "another queue")
    assert (estimate.ran_ms, estimate.sure) == (ran_ms, Sure.LEARNED)
    assert estimate.basis == f"90 % of {runs} runs of train took no longer"


def test_with_too_few_of_the_family_the_queue_counts_then_everything_then_nothing() -> None:
    run_times = learned(5, 5)
    assert run_times.estimate(TRAIN, "nlp").sure is Sure.UNKNOWN
    for ms in (1, 2, 3, 4, 6, 7):
        run_times.learn("other", "nlp", ms)
    assert run_times.estimate(TRAIN, "nlp").basis == "90 % of 8 runs in queue nlp took no longer"
    assert run_times.estimate(TRAIN, "nlp").ran_ms == 7
    assert run_times.estimate(TRAIN, "vision").basis == "90 % of 8 runs of any kind took no longer"
    assert run_times.estimate(Work(), "nlp").basis == "90 % of 8 runs in queue nlp took no longer"
    run_times.learn("train", "vision", 100)
    assert run_times.estimate(TRAIN, "nlp").ran_ms == 100


def test_nothing_is_known_of_what_never_ran() -> None:
    estimate = RunTimes().estimate(TRAIN, "nlp")
    assert (estimate.ran_ms, estimate.sure) == (0, Sure.UNKNOWN)
    assert "too few earlier runs to learn from" in estimate.basis
    assert RunTimes().left_ms(TRAIN, "nlp", HOUR_MS) == estimate


def test_work_without_a_family_is_not_learned_as_one() -> None:
    assert learned(1, 2, 3, family="").estimate(Work(), "nlp").sure is Sure.UNKNOWN


def test_only_the_last_runs_count() -> None:
    run_times = learned(*[HOUR_MS] * 40, *[1000] * 32)
    assert run_times.estimate(TRAIN, "nlp").ran_ms == 1000


def test_of_work_that_runs_those_count_that_lasted_longer() -> None:
    run_times = learned(10, 10, 10, 10, 10, 10, 50, 60, 70, 100)
    assert run_times.estimate(TRAIN, "nlp").ran_ms == 70
    left = run_times.left_ms(TRAIN, "nlp", 10)
    assert (left.ran_ms, left.sure) == (90, Sure.LEARNED)
    assert left.basis == "90 % of 4 runs of train that lasted more than 10 ms took no longer"
    assert run_times.left_ms(TRAIN, "nlp", 9).ran_ms == 61


def test_work_that_runs_longer_than_all_before_it_is_taken_to_run_as_long_again() -> None:
    left = learned(10, 20, 30).left_ms(TRAIN, "nlp", 30)
    assert (left.ran_ms, left.sure) == (30, Sure.LEARNED)
    assert left.basis == "longer than all 3 runs of train: as long again as it has run"


def test_a_run_that_ended_before_it_began_took_no_time() -> None:
    assert learned(-5, -5, -5).estimate(TRAIN, "nlp").ran_ms == 0


def test_the_families_that_ran_last_are_kept() -> None:
    run_times = learned(1, 2, 3, family="daily")
    for number in range(KEPT - 1):
        run_times.learn(f"once-{number}", "nlp", 1)
    run_times.learn("daily", "nlp", 4)
    run_times.learn("one more", "nlp", 1)
    kept = {name: lengths for kind, name, lengths in run_times.records() if kind == "family"}
    assert len(kept) == KEPT
    assert (kept["daily"], kept.get("once-0"), kept["once-1"]) == ((1, 2, 3, 4), None, (1,))


runs = st.lists(
    st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from(["q", "r"]), st.integers(0, 50)), max_size=80
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(runs, runs, st.integers(-3, 60))
@pytest.mark.slow
def test_what_was_written_down_goes_on_as_if_nothing_had_happened(
    before: list[tuple[str, str, int]], after: list[tuple[str, str, int]], ran_ms: int
) -> None:
    one, other = RunTimes(), learned(1, 2, 3, family="forgotten")
    for run in before:
        one.learn(*run)
    other.restore(one.records())
    for run in after:
        one.learn(*run)
        other.learn(*run)
    assert one.records() == other.records()
    for family in ("", "a", "b"):
        last = [ms for of, _, ms in before + after if of == family and family][-32:]
        left = one.left_ms(Work(family), "q", ran_ms)
        assert left == other.left_ms(Work(family), "q", ran_ms)
        if len(last) >= 3:
            longer = sorted(ms for ms in last if ms > ran_ms or ran_ms <= 0)
            total_ms = longer[(9 * len(longer) + 9) // 10 - 1] if longer else 2 * ran_ms
            assert left.ran_ms == total_ms - max(0, ran_ms)


def test_records_of_a_kind_that_does_not_exist_are_refused() -> None:
    with pytest.raises(KeyError, match="planet"):
        RunTimes().restore([("planet", "earth", (1,))])
