# SPDX-License-Identifier: Apache-2.0
"""Queues in which the job that had least goes first, in the step."""

from msgspec.structs import replace

from dovetail.core import checkpoint
from dovetail.core import events as ev
from dovetail.core.decisions import Evict
from dovetail.core.model import Work
from dovetail.core.queues.types import Queue, Usage
from dovetail.core.reasons import Reason
from tests.core.driven import POLICY, Driven, gang, lone, members
from tests.core.gang_oracle import gpu_node

HOUR_MS = 3_600_000
GPU_HOUR = 1000 * HOUR_MS
QUEUE = Queue("q", least_served_first=True)
SAVES = Work(checkpoint_interval_ms=1)
BY_LEAST = ev.QueueChanged(QUEUE)


def evicted(driven: Driven) -> list[str]:
    return [uid for decision in driven.last if isinstance(decision, Evict) for uid in decision.uids]


def returns(driven: Driven, uid: str, new: str) -> list[ev.Event]:
    """The pod is gone, and its controller has made another one."""
    pod = driven.state.workloads.pods[uid]
    again = replace(pod, uid=new, name=new, node="", bound_ms=0, created_ms=driven.now_ms)
    return [ev.PodRemoved(uid), ev.PodChanged(again)]


def test_a_job_of_a_lower_level_is_evicted() -> None:
    driven = Driven(gpu_node("a", 1))
    driven.at(1, BY_LEAST, lone("old", queue="q", work=SAVES))
    driven.at(15 * HOUR_MS, lone("new", queue="q"))
    assert evicted(driven) == []
    assert driven.holds()["new"].reason is Reason.NO_NODE_FITS
    assert driven.state.next_wake_ms() is not None
    driven.at(16 * HOUR_MS, bind=True)
    assert evicted(driven) == []
    driven.at(16 * HOUR_MS + 1)
    assert evicted(driven) == ["old"]


def test_the_step_is_due_when_the_level_is_reached() -> None:
    driven = Driven(gpu_node("a", 1))
    driven.at(1, BY_LEAST, lone("old", queue="q", work=SAVES))
    driven.at(16 * HOUR_MS - 1000, lone("new", queue="q"))
    assert driven.state.next_wake_ms() == 16 * HOUR_MS + 1


def test_by_age_nobody_is_evicted() -> None:
    driven = Driven(gpu_node("a", 1))
    driven.at(1, ev.QueueChanged(Queue("q")), lone("old", queue="q", work=SAVES))
    driven.at(1000 * HOUR_MS, lone("new", queue="q"))
    assert evicted(driven) == []


def test_priority_comes_before_what_a_job_had() -> None:
    driven = Driven(gpu_node("a", 1))
    driven.at(1, BY_LEAST, lone("old", queue="q", work=SAVES, priority=1))
    driven.at(100 * HOUR_MS, lone("new", queue="q"))
    assert evicted(driven) == []


def test_a_pod_that_was_stopped_does_not_begin_anew() -> None:
    """The one that gave way comes back behind the one that is on its level as soon as that had as much."""
    driven = Driven(gpu_node("a", 1))
    driven.at(1, BY_LEAST, lone("old", queue="q", work=SAVES, owner="job"))
    driven.at(20 * HOUR_MS, lone("new", queue="q", work=SAVES))
    assert evicted(driven) == ["old"]
    assert driven.at(20 * HOUR_MS + 1, *returns(driven, "old", "old-2")).keys() == {"new"}
    driven.at(30 * HOUR_MS)
    assert evicted(driven) == []
    # Now both had more than 16 GPU hours: equals.
    driven.at(40 * HOUR_MS)
    assert evicted(driven) == []
    # The new one would be on the third level, the old one is on the second.
    driven.at(300 * HOUR_MS)
    assert evicted(driven) == ["new"]


def test_the_pods_of_a_gang_count_together() -> None:
    driven = Driven(gpu_node("a", 4))
    driven.at(1, BY_LEAST, gang("g", 4), *members(4, queue="q", work=SAVES))
    driven.at(4 * HOUR_MS, lone("new", queue="q"))
    assert evicted(driven) == []
    driven.at(4 * HOUR_MS + 1)
    assert sorted(evicted(driven)) == ["g0", "g1", "g2", "g3"]


def test_the_least_run_time_of_the_queue_protects() -> None:
    driven = Driven(gpu_node("a", 1))
    own = replace(QUEUE, preempt_min_runtime_ms=50 * HOUR_MS)
    driven.at(1, ev.QueueChanged(own), lone("old", queue="q", work=SAVES))
    driven.at(49 * HOUR_MS, lone("new", queue="q"))
    assert evicted(driven) == []
    driven.at(51 * HOUR_MS)
    assert evicted(driven) == ["old"]


def test_what_jobs_had_outlives_the_scheduler() -> None:
    """The queue's record has what the pods had that are gone; the others have since when they run."""
    used = Usage(20 * HOUR_MS, jobs=(("job", 300 * GPU_HOUR),))
    driven = Driven(gpu_node("a", 1))
    running = lone("old", queue="q", work=SAVES, owner="job", node="a", bound_ms=19 * HOUR_MS)
    driven.at(20 * HOUR_MS, ev.QueueChanged(replace(QUEUE, usage=used)), running, lone("new", queue="q"))
    assert evicted(driven) == ["old"]


def test_a_checkpoint_knows_what_jobs_had() -> None:
    driven = Driven(gpu_node("a", 1))
    driven.at(1, BY_LEAST, lone("old", queue="q", work=SAVES, owner="job"))
    driven.at(20 * HOUR_MS, lone("new", queue="q", work=SAVES))
    driven.at(20 * HOUR_MS + 1, *returns(driven, "old", "old-2"))
    restored = checkpoint.restore(POLICY, checkpoint.take(driven.state))
    for state in (driven.state, restored):
        assert state.rank("pod/old-2")[1] == 1
        assert state.rank("pod/new")[1] == 0
    for state in (driven.state, restored):
        state.advance(300 * HOUR_MS)
        assert state.rank("pod/new")[1] == 2


def test_the_order_can_be_changed_while_jobs_run() -> None:
    driven = Driven(gpu_node("a", 1))
    driven.at(1, ev.QueueChanged(Queue("q")), lone("old", queue="q", work=SAVES))
    driven.at(20 * HOUR_MS, lone("new", queue="q"))
    driven.at(20 * HOUR_MS, BY_LEAST)
    assert evicted(driven) == ["old"]
    later = Driven(gpu_node("a", 1))
    later.at(1, BY_LEAST, lone("old", queue="q", work=SAVES))
    later.at(2, ev.QueueChanged(Queue("q")))
    later.at(20 * HOUR_MS, lone("new", queue="q"))
    assert evicted(later) == []
    assert later.state.rank("pod/old")[1] == 0


def test_a_job_that_had_a_level_holds_no_room() -> None:
    long = Work(max_runtime_ms=80 * HOUR_MS)
    for had, holds in ((0, True), (20 * GPU_HOUR, False)):
        driven = Driven(gpu_node("a", 2))
        reported = replace(QUEUE, usage=Usage(1, jobs=(("g", had),)))
        runs = lone("runs", queue="q", work=Work(max_runtime_ms=40 * HOUR_MS))
        driven.at(1, ev.QueueChanged(reported), runs)
        driven.at(2, gang("g", 2), *members(2, queue="q"))
        assert ("g" in driven.state.reservations.by_workload) == holds
        late = driven.at(3, lone("late", queue="q", work=long, created_ms=3))
        assert (late == {}) == holds


def test_what_jobs_had_is_kept_when_queues_and_nodes_change_at_once() -> None:
    driven = Driven(gpu_node("a", 1))
    driven.at(1, BY_LEAST, lone("old", queue="q", work=SAVES), ev.QueueChanged(Queue("top")))
    driven.at(20 * HOUR_MS, ev.NodeChanged(gpu_node("b", 2)), ev.QueueChanged(replace(QUEUE, parent="top")))
    assert driven.state.rank("pod/old")[1] == 1


def test_a_query_does_not_make_a_job_forgotten() -> None:
    """A clock that is ahead asks of a time at which the job would be forgotten; its next pod comes within the day."""
    asked, not_asked = (Driven(gpu_node("a", 1)) for _ in range(2))
    for driven in (asked, not_asked):
        driven.at(1, BY_LEAST, lone("old", queue="q", owner="job"))
        driven.at(20 * HOUR_MS, ev.PodRemoved("old"))
    asked.state.queue_snapshots(45 * HOUR_MS)
    checkpoint.take(asked.state)
    events = lone("next", queue="q", owner="job", created_ms=1), lone("other", queue="q", created_ms=2)
    for driven in (asked, not_asked):
        assert driven.at(43 * HOUR_MS, *events).keys() == {"other"}


def test_a_job_that_comes_back_after_a_day_begins_anew_whether_or_not_it_was_asked_for() -> None:
    driven = Driven(gpu_node("a", 1))
    driven.at(1, BY_LEAST, lone("old", queue="q", owner="job"))
    driven.at(20 * HOUR_MS, ev.PodRemoved("old"))
    driven.at(45 * HOUR_MS, lone("next", queue="q", owner="job"))
    assert driven.state.precedence("pod/next") == (0, 0)
    driven.at(46 * HOUR_MS)
    assert driven.state.shares.attained.past("q", driven.now_ms) == ()


def test_a_restored_job_is_forgotten_when_it_would_have_been() -> None:
    driven = Driven(gpu_node("a", 1), gpu_node("b", 1))
    driven.at(1, BY_LEAST, lone("old", queue="q", owner="job"), lone("runs", queue="q"))
    driven.at(20 * HOUR_MS, ev.PodRemoved("old"))
    # What the queue used is settled later.
    driven.at(30 * HOUR_MS, ev.PodRemoved("runs"))
    again = checkpoint.restore(driven.state.policy, checkpoint.take(driven.state, marks=True))
    for at_ms in (44 * HOUR_MS, 44 * HOUR_MS + 1):
        assert again.shares.attained.past("q", at_ms) == driven.state.shares.attained.past("q", at_ms)
