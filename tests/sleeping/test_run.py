# SPDX-License-Identifier: Apache-2.0
"""Engines that sleep and wake in turns: never more memory than there is, whatever engines answer, or if they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dovetail.kube.api.config import ClusterConfig
from dovetail.sleeping import calls
from dovetail.sleeping.run import TurnOptions, run
from tests.sleeping.world import World, world


@pytest.fixture
async def some() -> AsyncIterator[World]:
    async with world() as found:
        yield found


async def two(some: World, kind: str = "vllm", wants: bool = True) -> None:
    """`a` is awake, `b` sleeps and wants to be awake."""
    some.add("b", kind)
    some.engines["b"].parts, some.engines["b"].paused = set(), True
    some.card.hold("b", 5)
    some.card.most = 0
    some.annotate("b", "dovetail.dev/turn", "asleep 2026-06-01T00:00:00Z")
    some.add("a", kind)
    await some.passes()
    if wants:
        some.want("b")


@pytest.mark.parametrize(("kind", "sleep", "wake"), [
    ("vllm", ["sleep?level=1&mode=wait"], ["wake_up"]),
    ("vllm-level-2", ["sleep?level=2&mode=wait"], ["wake_up?tags=weights", "collective_rpc", "wake_up?tags=kv_cache"]),
    ("sglang", ["pause_generation", "release_memory_occupation"], ["resume_memory_occupation", "continue_generation"]),
])  # fmt: skip
async def test_the_one_awake_has_its_turn_then_sleeps_before_the_next_wakes(
    some: World, kind: str, sleep: list[str], wake: list[str]
) -> None:
    await two(some, kind)
    await some.passes(2)
    assert some.engines["a"].calls == [] and some.because("b").startswith("for ")
    await some.passes(14)
    assert (some.engines["a"].calls, some.engines["b"].calls) == (sleep, wake)
    assert some.states() == {"a": "asleep", "b": "awake"} and some.engines["b"].loaded
    assert some.card.most == 75
    assert some.annotations("b")["dovetail.dev/turn"].startswith("awake ")
    assert "dovetail.dev/wake-wanted" not in some.annotations("b")


async def test_a_new_instance_starts_only_when_the_others_sleep(some: World) -> None:
    some.add("a")
    some.add("new", gate="waits")
    await some.passes()
    assert "dovetail.dev/turn" not in some.annotations("new")
    await some.passes(13)
    assert some.annotations("new")["dovetail.dev/turn"].startswith("start ")
    assert some.states()["a"] == "asleep"


@pytest.mark.parametrize("fault", [500, 404, "redirect", "hang", "flood"])
@pytest.mark.slow
async def test_an_engine_that_does_not_sleep_keeps_the_other_asleep(
    some: World, fault: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SWITCH_S", 0.2)
    await two(some)
    some.engines["a"].faults["sleep"] = fault
    await some.passes(14)
    assert some.engines["a"].calls and some.engines["b"].calls == []
    assert some.states()["a"] == "lost" and "do not answer, or refuse: a" in some.because("b")
    some.engines["a"].faults.clear()
    await some.passes(12)
    assert some.states() == {"a": "asleep", "b": "awake"} and some.card.most == 75


@pytest.mark.parametrize("fault", [500, "hang", "flood"])
async def test_an_engine_that_does_not_report_what_it_does_counts_as_awake(
    some: World, fault: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "ASK_S", 0.1)
    await two(some)
    some.engines["a"].faults["is_sleeping"] = fault
    await some.passes(12)
    assert some.states()["a"] == "lost"
    assert some.engines["b"].calls == [] and some.card.most == 75


async def test_an_engine_that_sleeps_and_does_not_answer_takes_no_turn_from_another(some: World) -> None:
    await two(some, wants=False)
    some.engines["b"].faults["is_sleeping"] = 503
    await some.passes(9)
    assert some.states() == {"a": "awake", "b": "lost"} and some.engines["a"].calls == []
    some.engines["b"].faults.clear()
    await some.passes()
    assert some.states() == {"a": "awake", "b": "asleep"} and some.engines["a"].calls == []


@pytest.mark.parametrize("path", ["wake_up", "collective_rpc"])
async def test_an_instance_that_cannot_wake_goes_back_to_sleep_and_has_to_ask_again(some: World, path: str) -> None:
    await two(some, "vllm-level-2")
    some.engines["b"].faults[path] = 500
    await some.passes(16)
    assert some.engines["b"].calls[-1].startswith("sleep") and some.states()["b"] == "asleep"
    assert "dovetail.dev/wake-wanted" not in some.annotations("b") and some.card.held == {"a": 5, "b": 5}


async def test_another_process_puts_to_sleep_what_was_left_half_awake(some: World) -> None:
    await two(some, "vllm-level-2")
    some.annotate("b", "dovetail.dev/turn", "waking 2027-01-15T08:00:00Z")
    some.engines["b"].parts = {"weights"}
    some.giver = some.other()
    await some.passes(1)
    assert some.states()["b"] == "switching"
    await some.passes(1)
    assert some.states()["b"] == "asleep" and some.card.held["b"] == 5


async def test_another_process_puts_to_sleep_what_may_have_fallen_asleep(some: World) -> None:
    some.add("a", "sglang", **{"dovetail.dev/turn": "falling-asleep 2027-01-15T08:00:00Z"})
    await some.passes(2)
    assert some.engines["a"].sleeping and some.states() == {"a": "asleep"}


async def test_a_process_that_leads_no_more_stops_in_the_middle_of_a_switch(some: World) -> None:
    await two(some)
    call = some.engines["a"]._hold

    def lose(parts: set[str]) -> None:
        call(parts)
        some.leads = False

    some.engines["a"]._hold = lose  # type: ignore[method-assign]
    await some.passes(16)
    assert some.annotations("a")["dovetail.dev/turn"].startswith("falling-asleep ")
    assert some.engines["b"].calls == []
    some.leads, some.giver = True, some.other()
    await some.passes(2)
    assert some.states() == {"a": "asleep", "b": "awake"} and some.card.most == 75


async def test_two_that_are_awake_by_themselves_are_reduced_to_one(some: World) -> None:
    some.add("a")
    some.add("b")
    await some.passes(3)
    assert sorted(some.states().values()) == ["asleep", "awake"]


async def test_a_process_that_does_not_lead_changes_nothing(some: World) -> None:
    some.leads = False
    some.add("a")
    some.add("b")
    await some.passes(3)
    assert some.engines["a"].calls == some.engines["b"].calls == []
    assert "dovetail.dev/turn" not in some.annotations("a")


async def test_the_process_leads_by_its_lease_gives_turns_and_hands_the_lease_back(some: World) -> None:
    some.add("a")
    some.add("b")
    config = ClusterConfig(some.playground.url)
    task = asyncio.create_task(run(config, TurnOptions("serving", 60_000, 0.05, "127.0.0.1:0")))
    for _ in range(1000):
        if sum(some.card.held.values()) == 75:
            break
        await asyncio.sleep(0.02)
    assert sum(some.card.held.values()) == 75 and holder(some)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not holder(some)


def holder(some: World) -> str:
    lease = some.playground.store.get("leases.coordination.k8s.io", "serving", "dovetail-turns")
    assert lease is not None
    found: str = lease["spec"].get("holderIdentity") or ""
    return found


async def test_a_restarted_engine_is_awake_whatever_was_written_before(some: World) -> None:
    some.add("a", "sglang", **{"dovetail.dev/turn": "asleep 2025-01-01T00:00:00Z"})
    await some.passes()
    assert some.states() == {"a": "awake"}


async def test_pods_that_cannot_be_used_are_reported(some: World) -> None:
    some.add("a", "")
    some.add("b", "ollama")
    await some.passes()
    assert some.states() == {"a": "unusable", "b": "unusable"}
    assert "dovetail.dev/sleep-engine" in some.because("b")


async def test_instances_of_different_cards_do_not_wait_for_each_other(some: World) -> None:
    some.add("a", devices="0")
    some.add("b", devices="1")
    await some.passes(3)
    assert some.states() == {"a": "awake", "b": "awake"}


async def test_where_the_card_is_not_known_instances_of_a_node_take_turns(some: World) -> None:
    some.add("a", devices="")
    some.add("b", devices="1")
    await some.passes(3)
    assert sorted(some.states().values()) == ["asleep", "awake"]
