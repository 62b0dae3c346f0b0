# SPDX-License-Identifier: Apache-2.0
"""What queues are promised: their guarantees in time, a start that is kept, and that nobody gives way for nothing."""

import random
from dataclasses import dataclass, field, replace

import pytest

from dovetail.core import events as ev
from dovetail.core.decisions import Bind, Evict, Unnominate
from dovetail.core.model import CPU, Gang, Node, Pod, Request, Work
from dovetail.core.policy import Policy
from dovetail.core.reasons import Sure
from dovetail.core.sharing.records import Queue, Usage
from dovetail.core.state import State
from tests.core.driven import POLICY, Driven, gang, lone
from tests.core.gang_oracle import gpu_node, gpu_pod

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
STEP_MS = 1000


def queue(name: str, gpus: int = 0, **more: object) -> ev.Event:
    """A queue with so many GPUs guaranteed."""
    return ev.QueueChanged(Queue(name, guarantee=(("gpu", 1000 * gpus),) if gpus else (), **more))


# One transaction after another.


def a_gang_takes_back() -> tuple[Driven, Evict]:
    """A gang of x runs on a GPU; others give way to another pod of it that wants two."""
    driven = Driven(Node("a", tuple({**dict(gpu_node("a", 4).allocatable), CPU: 4000}.items())))
    driven.at(0, queue("x", 4), queue("y"), gang("g", 1), ev.PodChanged(gpu_pod("g0", 1, "g", queue="x")))
    driven.at(0, *(lone(f"y{i}", queue="y") for i in range(3)))
    driven.at(MINUTE_MS, ev.PodChanged(gpu_pod("g1", 2, "g", queue="x", created_ms=MINUTE_MS)))
    [evict] = [decision for decision in driven.last if isinstance(decision, Evict)]
    assert evict.nominations == (("g1", "a"),)
    return driven, evict


def it_ends_well(driven: Driven, evict: Evict) -> None:
    """Nobody else gets the room, nobody else gives way, and it starts."""
    assert not any(isinstance(decision, Evict | Unnominate) for decision in driven.last)
    first, *others = evict.uids
    assert driven.at(2 * MINUTE_MS, ev.PodRemoved(first), lone("late", queue="y")) == {}
    assert not any(isinstance(decision, Evict | Unnominate) for decision in driven.last)
    assert driven.at(2 * MINUTE_MS + 1, *map(ev.PodRemoved, others)).keys() == {"g1"}
    assert not any(isinstance(decision, Evict | Unnominate) for decision in driven.last)


def test_room_that_is_made_for_one_of_a_gang_is_kept_when_another_starts() -> None:
    driven, evict = a_gang_takes_back()
    small = replace(gpu_pod("g2", 0, "g", queue="x", created_ms=MINUTE_MS), request=Request(((CPU, 100),)))
    assert driven.at(MINUTE_MS + 1, ev.PodChanged(small)).keys() == {"g2"}
    it_ends_well(driven, evict)


def test_room_that_is_made_for_one_of_a_gang_is_kept_when_another_may_not_start() -> None:
    driven, evict = a_gang_takes_back()
    driven.at(MINUTE_MS + 1, queue("x", 4, limit=(("gpu", 4000),)))
    large = gpu_pod("g2", 3, "g", queue="x", created_ms=MINUTE_MS, priority=1)
    driven.at(MINUTE_MS + 2, ev.PodChanged(large))
    it_ends_well(driven, evict)


def test_a_limit_of_a_model_counts_what_runs_on_a_node_that_is_labelled_late() -> None:
    driven = Driven(gpu_node("a", 4))
    driven.at(0, ev.QueueChanged(Queue("x", limit=(("gpu/A", 1000),))), lone("p0", queue="x"))
    labelled = replace(gpu_node("a", 4), labels=(("nvidia.com/gpu.product", "A"),))
    assert driven.at(1, ev.NodeChanged(labelled), lone("p1", queue="x")) == {}


def test_a_gang_that_can_grow_starts_with_what_the_limit_of_a_model_leaves() -> None:
    driven = Driven(replace(gpu_node("a", 4), labels=(("nvidia.com/gpu.product", "A"),)))
    limited = ev.QueueChanged(Queue("x", limit=(("gpu/A", 2000),)))
    pods = [ev.PodChanged(gpu_pod(f"g{i}", 1, "g", queue="x")) for i in range(4)]
    assert len(driven.at(0, limited, gang("g", 1), *pods)) > 0
