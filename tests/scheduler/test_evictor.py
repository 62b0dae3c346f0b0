# SPDX-License-Identifier: Apache-2.0
"""Evictions one by one: what each answer of the server means, and what is never written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dovetail.core import model
from dovetail.core.decisions import Cause
from dovetail.kube.api.discovery import Served
from dovetail.kube.api.errors import ApiError, StatusCause, StatusDetails, TooManyRequests
from dovetail.kube.api.reflector import Change
from dovetail.kube.informers import Informers
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.objects.pods import Pod, PodSpec
from dovetail.kube.translate.translator import Translator
from dovetail.scheduler import evictor
from dovetail.scheduler.clock import Clock
from dovetail.scheduler.evictor import Evictor, Victim
from tests.patience import PATIENCE_S
from tests.scheduler.scripted import AWAY, BROKEN, BUSY, FORBIDDEN, GONE, TAKEN, Scripted, until

_WHY = "The disruption budget b needs 1 healthy pods and has 1 currently"
BUDGET = TooManyRequests(
    429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.", "POST /x",
    StatusDetails(causes=(StatusCause("DisruptionBudget", _WHY),)),
)  # fmt: skip


class Bench:
    def __init__(self) -> None:
        self.server = Scripted()
        client: Any = self.server
        self.feed = Informers(client, Served(frozenset()), Translator()).feed
        self.leads = True
        self.evicted: list[str] = []
        self.failed: dict[str, str] = {}
        self.evictor = Evictor(
            client, Clock(), self.feed, may_write=lambda: self.leads,
            evicted=lambda victim: self.evicted.append(victim.target.name),
            failed=lambda victim, why: self.failed.update({victim.target.name: why}),
        )  # fmt: skip

    def pod(self, name: str, kind: Any = "added") -> None:
        meta = ObjectMeta(name=name, namespace="d", uid=f"uid-{name}")
        self.feed.pods([Change(kind, Pod(meta, PodSpec(node_name="n", scheduler_name="dovetail")))])

    def victims(self, *names: str, cause: Cause = "reclaim") -> list[Victim]:
        for name in names:
            self.pod(name)
        targets = [model.Pod(f"uid-{name}", "d", name, model.Request()) for name in names]
        return [Victim(target, cause, "gang/d/g", "g takes its due", 7) for target in targets]

    def asked(self) -> list[str]:
        """The pods whose eviction was asked for, in order, each time."""
        return [path.split("/")[-2] for method, path, _ in self.server.asked if path.endswith("/eviction")]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(evictor, "_AGAIN_S", 0.001)
    return Bench()


async def test_the_pod_ends_with_the_preemptor_in_its_condition(bench: Bench) -> None:
    await bench.evictor.evict(bench.victims("p"))
    assert bench.evicted == ["p"] and not bench.failed
    eviction, condition = bench.server.asked
    assert eviction[2]["deleteOptions"] == {"preconditions": {"uid": "uid-p"}}
    assert condition[:2] == ("PATCH", "/api/v1/namespaces/d/pods/p/status")
    assert condition[2]["metadata"] == {"uid": "uid-p"}
    reported = condition[2]["status"]["conditions"][0]
    assert (reported["type"], reported["status"], reported["reason"]) == (
        "DisruptionTarget",
        "True",
        "PreemptionByScheduler",
    )
    assert reported["message"] == "g takes its due"


@pytest.mark.parametrize("passing", [BUDGET, BUSY, BROKEN, AWAY, TAKEN], ids=lambda error: error.reason)
async def test_what_may_pass_is_asked_for_again(bench: Bench, passing: ApiError) -> None:
    bench.server.will("POST", "/pods/p/eviction", passing, passing, {})
    await bench.evictor.evict(bench.victims("p"))
    assert bench.asked() == ["p"] * 3 and bench.evicted == ["p"]


async def test_a_budget_that_refuses_is_reported_in_its_own_words(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evictor, "_PATIENCE_S", 0.01)
    bench.server.will("POST", "/pods/p/eviction", BUDGET)
    await bench.evictor.evict(bench.victims("p"))
    assert _WHY in bench.failed["p"] and not bench.evicted
    assert len(bench.asked()) > 1
    assert not any(method == "PATCH" for method, _, _ in bench.server.asked), "a pod that stays is no target"


async def test_what_is_not_allowed_is_not_asked_for_again(bench: Bench) -> None:
    bench.server.will("POST", "/pods/p/eviction", FORBIDDEN)
    await bench.evictor.evict(bench.victims("p"))
    assert bench.asked() == ["p"] and "forbidden" in bench.failed["p"]


async def test_a_server_that_is_away_longer_than_anything_is_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evictor, "_PATIENCE_S", 0.0)
    bench.server.will("POST", "/pods/p/eviction", AWAY, AWAY, AWAY, {})
    await bench.evictor.evict(bench.victims("p"))
    assert bench.evicted == ["p"]


async def test_a_pod_that_is_gone_is_as_good_as_evicted(bench: Bench) -> None:
    bench.server.will("POST", "/pods/p/eviction", GONE)
    await bench.evictor.evict(bench.victims("p"))
    assert bench.asked() == ["p"] and not bench.evicted and not bench.failed


async def test_a_pod_made_again_under_the_name_is_left_alone(bench: Bench) -> None:
    """The server answers with a conflict until the watch reports that the old pod is gone."""
    bench.server.will("POST", "/pods/p/eviction", TAKEN)
    work = asyncio.create_task(bench.evictor.evict(bench.victims("p")))
    await until(lambda: len(bench.asked()) > 1)
    bench.pod("p", kind="deleted")
    await asyncio.wait_for(work, PATIENCE_S)
    assert not bench.evicted and not bench.failed


async def test_nobody_is_evicted_where_one_would_have_to_stay(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evictor, "_PATIENCE_S", 0.01)
    bench.server.will("POST", "/pods/c/eviction", BUDGET)
    await bench.evictor.evict(bench.victims("a", "b", "c", "d"))
    assert not bench.evicted and bench.failed.keys() == {"c"}
    assert not any(method == "PATCH" for method, _, _ in bench.server.asked)


async def test_all_of_one_decision_are_evicted_after_all_have_agreed(bench: Bench) -> None:
    await bench.evictor.evict(bench.victims("a", "b", "c"))
    assert sorted(bench.evicted) == ["a", "b", "c"]
    assert sorted(bench.asked()[:3]) == sorted(bench.asked()[3:]) == ["a", "b", "c"]


async def test_at_most_so_many_are_on_their_way(bench: Bench) -> None:
    release, under_way, most = asyncio.Event(), 0, 0

    async def slow() -> dict[str, Any]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await release.wait()
        under_way -= 1
        return {}

    bench.server.will("POST", "/eviction", slow)
    work = asyncio.create_task(bench.evictor.evict(bench.victims(*(f"p{n}" for n in range(40)))))
    await until(lambda: under_way == evictor._IN_FLIGHT)
    await asyncio.sleep(0.01)
    release.set()
    await asyncio.wait_for(work, PATIENCE_S)
    assert most == evictor._IN_FLIGHT and len(bench.evicted) == 40


def _stop_leading(bench: Bench) -> None:
    bench.leads = False


def _give_up(bench: Bench) -> None:
    bench.evictor.withdraw("gang/d/g")


@pytest.mark.parametrize("end", [_stop_leading, _give_up])
async def test_nothing_more_is_written_for_others_or_when_nobody_asks_any_more(
    bench: Bench, end: Callable[[Bench], None]
) -> None:
    bench.server.will("POST", "/pods/q/eviction", BUDGET)
    work = asyncio.create_task(bench.evictor.evict(bench.victims("p", "q")))
    await until(lambda: bench.asked().count("q") > 1)
    end(bench)
    await asyncio.wait_for(work, PATIENCE_S)
    assert not bench.evicted and not bench.failed
    asked = len(bench.server.asked)
    await bench.evictor.evict([]) if end is _give_up else await bench.evictor.evict(bench.victims("r"))
    assert len(bench.server.asked) == asked


async def test_giving_up_for_one_leaves_those_of_another(bench: Bench) -> None:
    bench.server.will("POST", "/eviction", BUDGET, BUDGET, BUDGET, {})
    work = asyncio.create_task(bench.evictor.evict(bench.victims("p")))
    await until(lambda: bool(bench.asked()))
    bench.evictor.withdraw("gang/d/other")
    await asyncio.wait_for(work, PATIENCE_S)
    assert bench.evicted == ["p"]
