# SPDX-License-Identifier: Apache-2.0
"""The headroom of a queue in its answers, and as gauges."""

from __future__ import annotations

from prometheus_client import REGISTRY

from dovetail.core.model import Work
from dovetail.scheduler import queue_metrics
from dovetail.views.queue_shares import share
from tests.core.preemption.lives import SECOND_MS, World, node, pod, queue

KEY = "ns/Deployment/llama"


def world(guaranteed: float | None) -> World:
    made = World(node("n0", 8), node("n1", 8))
    made.apply_events(queue("web", guaranteed), queue("lab"))
    work = Work(headroom=3, headroom_within_ms=2000)
    made.submit(pod("llama", 4, queue="web", made_for="Deployment/llama", work=work))
    made.live(SECOND_MS)
    made.submit(*(pod(f"train{i}", queue="lab", work=Work(grace_ms=500)) for i in range(16)))
    made.live(SECOND_MS)
    return made


def test_what_is_stated_kept_and_lent_is_shown() -> None:
    made = world(12)
    (one,) = share(made.state, made.now_ms, "web")[0].headroom
    assert (one.workload, one.stated, one.due, one.kept) == (KEY, 3, 2, 2)
    assert str(one) == (
        f"room for 2 of 3 instances of {KEY}, within 2 s; the guarantee covers 2; others use 8 GPUs of it, "
        "and return them within 1.5 s"
    )
    assert share(made.state, made.now_ms, "lab")[0].headroom == ()


def test_why_none_is_kept_is_shown() -> None:
    made = world(None)
    (one,) = share(made.state, made.now_ms, "web")[0].headroom
    assert str(one).startswith(f"room for 0 of 3 instances of {KEY}, within 2 s: the queue has no guarantee of its own")


def test_gauges() -> None:
    queue_metrics.measure(world(12).state)
    labels = {"queue": "web", "workload": KEY}

    def value(name: str, **more: str) -> float | None:
        return REGISTRY.get_sample_value(f"dovetail_headroom_{name}", labels | more)

    assert [value("instances", state=state) for state in ("stated", "due", "kept")] == [3, 2, 2]
    assert value("lent_gpus") == 8
    assert [value("return_seconds", kind=kind) for kind in ("promised", "now")] == [2, 1.5]
