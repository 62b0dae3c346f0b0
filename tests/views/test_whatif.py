# SPDX-License-Identifier: Apache-2.0
"""What a change would do: jobs that start, jobs that wait longer, victims, and that nothing is changed by asking."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.core.checkpoint import take
from dovetail.core.events import GangChanged, PodChanged
from dovetail.core.model import Gang, LabelSelector, Node, Requirement, Toleration
from dovetail.core.queues.types import Budget
from dovetail.core.reasons import Sure
from dovetail.core.state import State
from dovetail.views.names import JobNotFound
from dovetail.views.whatif import (
    ChangeError,
    Hypothesis,
    add_nodes,
    drain,
    like,
    like_of_model,
    quota,
    stop,
    submit,
    whatif,
)
from dovetail.views.whatif_types import WhatIf, WhatifOutcome
from tests.views.queued import AMOUNTS, HOUR, MINUTE, MODEL, NOW, node, pod, queue, state_of


def _ask(state: State, change: Hypothesis) -> WhatIf:
    before = take(state)
    answer = whatif(state, change, NOW)
    assert take(state) == before
    return answer


def _of(answer: WhatIf, job: str) -> WhatifOutcome:
    return next(one for one in answer.jobs if one.job == job)


def test_a_submitted_pod_that_fits_states_where_it_goes() -> None:
    state = state_of(node("a"), pod("x", 6, "a"))
    answer = _ask(state, submit(state, [PodChanged(pod("new", 2))], NOW))
    new = _of(answer, "ns/new")
    assert (new.effect, new.before, [place.node for place in new.places]) == ("starts now", None, ["a"])
    assert [(gain.queue, gain.before_milli, gain.after_milli) for gain in answer.queues] == [("default", 6000, 8000)]


def test_a_submitted_gang_that_has_to_wait_gets_its_expected_start() -> None:
    state = state_of(node("a"), node("b"), pod("x", 8, "a", runs_ms=2 * HOUR))
    gang = [
        GangChanged(Gang("g", "ns", "train", min_count=2)),
        *(PodChanged(pod(f"g{i}", 8, gang="g")) for i in (0, 1)),
    ]
    new = _of(_ask(state, submit(state, gang, NOW)), "ns/train")
    assert (new.effect, new.pods, new.gpus_milli, new.code) == ("waits", 2, 16000, "GangDoesNotFit")
    assert new.after is not None and (new.after.sure, new.after.start_ms) == (Sure.KNOWN, NOW + 2 * HOUR)


def test_submitted_objects_are_the_youngest() -> None:
    state = state_of(node("a"), pod("p", 8, waits_ms=MINUTE, runs_ms=HOUR))
    answer = _ask(state, submit(state, [PodChanged(replace(pod("new", 8), created_ms=1))], NOW))
    assert [(one.job, one.effect) for one in answer.jobs] == [("ns/new", "waits")]
    assert answer.unchanged == 1


def test_a_submitted_pod_that_is_there_already_is_refused() -> None:
    state = state_of(node("a"), pod("p", 1))
    with pytest.raises(ChangeError, match="pod ns/p exists already"):
        submit(state, [PodChanged(pod("p", 2))], NOW)


def test_a_submitted_pod_of_a_higher_priority_makes_others_wait() -> None:
    state = state_of(node("a"), pod("p", 8))
    answer = _ask(state, submit(state, [PodChanged(pod("new", 8, priority=9, runs_ms=HOUR))], NOW))
    assert _of(answer, "ns/new").effect == "starts now"
    late = _of(answer, "ns/p")
    assert (late.effect, late.before and late.before.start_ms) == ("no longer starts now", NOW)
    assert late.after is not None and late.after.start_ms == NOW + HOUR


def test_the_victims_of_a_submitted_job_are_named() -> None:
    state = state_of(
        node("a"), queue("mine", guarantee=8), queue("theirs"),
        pod("x", 8, "a", queue="theirs", owner="job", since_ms=HOUR, runs_ms=9 * HOUR),
    )  # fmt: skip
    answer = _ask(state, submit(state, [PodChanged(pod("new", 8, queue="mine", runs_ms=HOUR))], NOW))
    (victim,) = answer.evicted
    assert (victim.pod, victim.node, victim.gpus_milli, victim.for_job, victim.cause) == (
        "ns/x",
        "a",
        8000,
        "ns/new",
        "reclaim",
    )
    assert victim.at_ms == NOW and victim.lost_milli_ms > 0
    new = _of(answer, "ns/new")
    assert new.after is not None and new.after.start_ms == NOW + 30_000
    assert new.after.basis == "when the pods that are evicted for it have ended"


def test_a_drained_node_is_empty_and_its_pods_go_elsewhere() -> None:
    state = state_of(node("a"), node("b"), pod("x", 4, "a", owner="job"), pod("y", 2, "b"))
    answer = _ask(state, drain(state, ["a"], NOW))
    moved = _of(answer, "ns/x")
    assert (moved.effect, moved.before, moved.left) == ("starts now", None, ("a",))
    assert [place.node for place in moved.places] == ["b"]


def test_pods_without_a_controller_and_of_daemon_sets_and_of_others_are_reported() -> None:
    cordon = (Toleration("node.kubernetes.io/unschedulable", "Exists", effect="NoSchedule"),)
    state = state_of(
        node("a"), node("b"), pod("lone", 1, "a"), pod("daemon", 1, "a", owner="ds", tolerations=cordon),
        pod("foreign", 1, "a", managed=False, owner="rs"),
    )  # fmt: skip
    answer = _ask(state, drain(state, ["a"], NOW))
    assert answer.jobs == ()
    assert [note.split(":")[0].split(",")[0] for note in answer.notes] == [
        "ns/daemon stays on a", "ns/lone has no controller",
        "ns/foreign is deleted; another scheduler binds its replacement",
    ]  # fmt: skip


def test_budgets_that_hold_up_a_drain_are_reported() -> None:
    selector = LabelSelector((Requirement("app", "In", ("web",)),))
    web = {"labels": (("app", "web"),), "owner": "rs"}
    state = state_of(
        node("a"), node("b"), pod("w1", 1, "a", **web), pod("w2", 1, "a", **web), Budget("ns", "web", selector, 1),
        Budget("ns", "other", selector, 2),
    )  # fmt: skip
    (note,) = _ask(state, drain(state, ["a"], NOW)).notes
    assert note.startswith("the PodDisruptionBudget ns/web allows to evict 1 of its 2 pods there at once")


def test_a_node_that_does_not_exist_cannot_be_drained() -> None:
    with pytest.raises(JobNotFound, match="node gpu-3 does not exist; did you mean gpu-1"):
        drain(state_of(node("gpu-1")), ["gpu-3"], NOW)


def test_more_nodes_start_waiting_jobs() -> None:
    state = state_of(node("a"), pod("x", 8, "a"), pod("p", 8))
    answer = _ask(state, like(state, "a", 1))
    assert _of(answer, "ns/p").effect == "starts now"
    assert [place.node for place in _of(answer, "ns/p").places] == ["a-more-1"]


def test_nodes_like_another_are_open_and_have_names_and_labels_of_their_own() -> None:
    host = "kubernetes.io/hostname"
    record = Node("a", AMOUNTS, ((host, "a"), (MODEL, "H100")), unschedulable=True)
    state = state_of(record, Node("a-more-1", AMOUNTS))
    change = like(state, "a", 2, [("dovetail.dev/rack", "r9")])
    made = [event.node for event in change.events]  # type: ignore[union-attr]
    assert [one.name for one in made] == ["a-more-2", "a-more-3"]
    assert not made[0].unschedulable
    assert dict(made[0].labels) == {host: "a-more-2", MODEL: "H100", "dovetail.dev/rack": "r9"}


def test_a_node_of_a_shape_is_found_by_its_model() -> None:
    state = state_of(node("a"), Node("b", (("cpu", 1000),)))
    assert like_of_model(state, 8, "h100") == "a"
    with pytest.raises(JobNotFound, match="there are 8xNVIDIA-H100-80GB-HBM3"):
        like_of_model(state, 4, "h100")


def test_a_node_that_is_there_already_is_refused() -> None:
    with pytest.raises(ChangeError, match="node a exists already"):
        add_nodes(state_of(node("a")), [node("a")])


def test_a_limit_that_is_raised_lets_a_job_start() -> None:
    state = state_of(node("a"), queue("q", limit=4), pod("x", 4, "a", queue="q"), pod("p", 4, queue="q"))
    own = state.shares.tree.queues["q"]
    answer = _ask(state, quota(state, replace(own, limit=(("gpu", 8000),))))
    assert _of(answer, "ns/p").effect == "starts now"
    assert [(gain.queue, gain.after_milli) for gain in answer.queues] == [("q", 8000)]


def test_a_job_that_could_never_start_can() -> None:
    state = state_of(node("a"), queue("q", limit=2), pod("x", 8, "a", runs_ms=HOUR), pod("p", 4, queue="q"))
    own = state.shares.tree.queues["q"]
    assert _of(_ask(state, quota(state, replace(own, limit=(("gpu", 4000),)))), "ns/p").effect == "can start"
    low = _ask(state, quota(state, replace(own, limit=(("gpu", 1000),))))
    assert low.jobs == ()


def test_a_limit_that_is_lowered_keeps_a_job_away_for_ever() -> None:
    state = state_of(node("a"), queue("q"), pod("p", 4, queue="q"))
    own = state.shares.tree.queues["q"]
    lost = _of(_ask(state, quota(state, replace(own, limit=(("gpu", 2000),)))), "ns/p")
    assert (lost.effect, lost.code) == ("never starts", "QueueLimit")


def test_a_queue_that_is_stopped_starts_nothing_and_others_start_sooner() -> None:
    state = state_of(
        node("a"), queue("x", priority=1), queue("y"), pod("r", 8, "a", runs_ms=HOUR),
        pod("first", 8, queue="x", runs_ms=2 * HOUR), pod("second", 8, queue="y", waits_ms=MINUTE),
    )  # fmt: skip
    answer = _ask(state, stop(state, "x", "Hold"))
    first, second = _of(answer, "ns/first"), _of(answer, "ns/second")
    assert (first.effect, first.code, second.effect) == ("later", "QueueStopped", "sooner")
    assert first.after is not None and first.after.basis.startswith("its queue is stopped")
    assert answer.evicted == ()


def test_what_runs_in_a_queue_that_is_drained_is_evicted() -> None:
    state = state_of(
        node("a"), queue("x"), queue("y"), pod("r", 8, "a", since_ms=HOUR, queue="x", owner="ns/o"),
        pod("second", 8, queue="y", waits_ms=MINUTE),
    )  # fmt: skip
    answer = _ask(state, stop(state, "x", "HoldAndDrain"))
    (victim,) = answer.evicted
    assert (victim.pod, victim.cause, victim.for_job) == ("ns/r", "drain", "")
    assert _of(answer, "ns/second").effect == "sooner"


def test_a_stopped_queue_that_is_resumed_starts_its_jobs() -> None:
    state = state_of(node("a"), queue("x", stop="Hold"), pod("first", 8, queue="x"))
    assert _of(_ask(state, stop(state, "x", "")), "ns/first").effect == "starts now"


def test_a_stop_that_changes_nothing_is_refused_with_the_queue_above_that_stops_it() -> None:
    state = state_of(queue("t", stop="Hold"), queue("x", parent="t"), queue("y", stop="Hold"))
    with pytest.raises(ChangeError, match="queue x is not stopped: the queue t above it is"):
        stop(state, "x", "")
    with pytest.raises(ChangeError, match="queue y is stopped already"):
        stop(state, "y", "Hold")
    with pytest.raises(JobNotFound, match="queue z does not exist"):
        stop(state, "z", "Hold")
