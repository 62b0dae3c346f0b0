# SPDX-License-Identifier: Apache-2.0
"""What has changed is announced by kind, and each kind is in the reference."""

from __future__ import annotations

from pathlib import Path

from dovetail.core import events as ev
from dovetail.core.cluster.changes import Changes, ClusterChange
from dovetail.core.cycle import step
from dovetail.core.queues.types import Budget
from dovetail.core.state import State
from tests.core.preemption.lives import node, pod, queue
from tests.docs.pages import ROOT


def test_a_trial_that_is_undone_takes_back_what_it_announced() -> None:
    changes = Changes()
    changes.announce(ClusterChange.NODE)
    assert changes.take() == {ClusterChange.NODE: 1} and not changes and changes.count == 1
    changes.announce(ClusterChange.QUEUE)
    before = changes.count
    changes.announce(ClusterChange.POD)
    changes.announce(ClusterChange.POD)
    changes.rewind(before)
    assert changes.count == before == 2 and changes.take() == {ClusterChange.QUEUE: 1}


def test_the_kind_of_change_that_wakes_parked_workloads_is_counted() -> None:
    state = State()
    step(state, [ev.NodeChanged(node("a", 1)), ev.PodChanged(pod("small")), ev.PodChanged(pod("large", 2))], 1)
    state.drain_wakes()
    woken = []
    for now_ms, events in enumerate(
        (
            [ev.PodRemoved("small", 3, True)],
            [ev.NodeChanged(node("b", 1))],
            [queue("red", 1)],
            [ev.BudgetRemoved("ns/b")],
            [ev.BudgetChanged(Budget("ns", "b", None, 1))],
            [],
        ),
        3,
    ):
        step(state, events, now_ms)
        woken.append(set(state.drain_wakes()))
    kinds = ClusterChange.POD, ClusterChange.NODE, ClusterChange.QUEUE, ClusterChange.BUDGET, ClusterChange.BUDGET
    assert woken == [*({kind} for kind in kinds), set()]


def test_each_kind_of_change_is_in_the_reference() -> None:
    page = Path(ROOT, "docs/reference/metrics.md").read_text()
    (row,) = [line for line in page.splitlines() if "`dovetail_wakeups_total`" in line]
    assert all(f"`{change.value}`" in row for change in ClusterChange)
