# SPDX-License-Identifier: Apache-2.0
"""A rollout over virtual time: canary, budgets, drained nodes, failures and the way back, restarts at any point."""

from __future__ import annotations

import random

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from dovetail.kube.objects.stack import Canary, GPUStack, UpgradeSpec
from dovetail.operator.budgets import FleetNode, most
from dovetail.operator.rollout.record import RolloutPhase, RolloutRecord
from dovetail.operator.rollout.report import rollout_status
from dovetail.operator.rollout.rollout import (
    SETTLE_MS,
    DeletePod,
    EndMaintenance,
    Maintain,
    OutdatedPod,
    RolloutAction,
    RolloutNode,
    RolloutPlan,
    SetLayout,
    advance,
)
from dovetail.operator.rollout.states import TRANSITIONS, NodeState

AGENT, DRIVER = "dovetail-agent", "dovetail-driver"
SECOND_MS, MINUTE_MS, HOUR_MS = 1000, 60_000, 3_600_000
UPGRADE = UpgradeSpec(canary=Canary(1, 120), max_nodes="2", max_gpus="100%", max_nodes_per_rack=100)


class Machine(Struct):
    """A node: the version of each DaemonSet's pod, since when its pods are ready, and when its jobs end."""

    versions: dict[str, int]
    ready_ms: int = 1
    jobs_end_ms: int = 0
    maintained: bool = False
    maintained_by_others: bool = False
    broken: bool = False
    reachable: bool = True
    pool: str = "default"


class Fleet:
    """Nodes on which pods of the wanted version come up after half a minute. Nodes in `bad` do not get ready with a
    version that is in `broken_versions`."""

    def __init__(self, machines: dict[str, Machine], upgrade: UpgradeSpec = UPGRADE, can_go_back: bool = True) -> None:
        self.machines = machines
        self.upgrade, self.can_go_back = upgrade, can_go_back
        self.want = 2
        self.broken: dict[str, int] = {}
        self.record = RolloutRecord()
        self.now_ms = HOUR_MS
        self.most_out = 0
        self.order: list[str] = []
        self.cut: list[str] = []
        self.last: tuple[RolloutAction, ...] = ()

    def node(self, name: str) -> RolloutNode:
        machine, want = self.machines[name], 1 if self.record.back else self.want
        outdated = tuple(
            OutdatedPod("dovetail-agent", f"{kind}-{name}", f"{kind}-{name}-{version}", kind, kind == DRIVER)
            for kind, version in machine.versions.items()
            if version != want
        )
        ready = machine.ready_ms if machine.ready_ms and machine.ready_ms <= self.now_ms else 0
        broken = self.broken.get(name) in machine.versions.values()
        empty = machine.jobs_end_ms <= self.now_ms
        out = machine.maintained or machine.maintained_by_others or not machine.reachable
        fleet = FleetNode(name, machine.pool, "", 8, out, empty, 0 if empty else machine.jobs_end_ms)
        current = frozenset(kind for kind, version in machine.versions.items() if version == want)
        return RolloutNode(
            fleet, machine.reachable, outdated, current=current, ready_ms=0 if broken else ready,
            sound=not broken, trouble="ContainerCrashed: exit 1" if broken else "",
            ours=machine.maintained, maintained=machine.maintained or machine.maintained_by_others,
        )  # fmt: skip

    def step(self, *, dies_after: int | None = None) -> None:
        """One pass; the process may be killed after so many of its writes."""
        nodes = {name: self.node(name) for name in self.machines}
        plan = RolloutPlan(self.upgrade, frozenset({AGENT, DRIVER}), self.can_go_back)
        found = advance(self.record, nodes, plan, self.now_ms)
        self.last = found.actions
        if dies_after == 0:
            return
        self.record = msgspec.json.decode(msgspec.json.encode(found.record), type=RolloutRecord)
        for action in found.actions if dies_after is None else found.actions[: dies_after - 1]:
            self._act(action)
        working = [name for name in self.record.nodes if not self.machines[name].maintained_by_others]
        self.most_out = max(self.most_out, len({*working, *self.record.failed}))

    def _act(self, action: RolloutAction) -> None:
        match action:
            case Maintain(name):
                self.machines[name].maintained = True
            case EndMaintenance(name):
                self.machines[name].maintained = False
            case DeletePod(_, pod, uid):
                kind, name = next((k, pod.removeprefix(f"{k}-")) for k in (AGENT, DRIVER) if pod.startswith(k))
                machine = self.machines[name]
                assert uid == f"{kind}-{name}-{machine.versions[kind]}"
                if kind == DRIVER and machine.jobs_end_ms > self.now_ms:
                    self.cut.append(name)
                machine.versions[kind] = 1 if self.record.back else self.want
                machine.ready_ms = self.now_ms + 30 * SECOND_MS
                self.order.append(name)
            case SetLayout():
                raise AssertionError("no layout is to be set")

    def live(self, for_ms: int, step_ms: int = 5 * SECOND_MS) -> Fleet:
        until_ms = self.now_ms + for_ms
        while self.now_ms < until_ms:
            self.step()
            self.now_ms += step_ms
        return self

    @property
    def versions(self) -> dict[str, int]:
        return {name: min(one.versions.values()) for name, one in self.machines.items()}


def fleet(count: int = 6, kind: str = AGENT, upgrade: UpgradeSpec = UPGRADE, **more: object) -> Fleet:
    return Fleet({f"n{i}": Machine({kind: 1}) for i in range(count)}, upgrade, **more)


def test_nothing_to_change_is_done_and_good_at_once() -> None:
    rolled = fleet()
    rolled.want = 1
    rolled.step()
    assert (rolled.record.phase, rolled.record.good, rolled.last) == (RolloutPhase.DONE, True, ())


def test_a_first_revision_is_done_when_its_pods_are_ready_and_stays_so() -> None:
    rolled = fleet(2)
    rolled.want = 1
    machines = list(rolled.machines.values())

    def seen() -> tuple[RolloutPhase, int]:
        nodes = {name: rolled.node(name) for name in rolled.machines}
        found = advance(rolled.record, nodes, RolloutPlan(UPGRADE, frozenset({AGENT})), rolled.now_ms)
        rolled.record = found.record
        return found.record.phase, rollout_status(GPUStack(), found, "r", None, len(nodes)).updated

    for one in machines:
        one.versions.clear()
    assert seen() == (RolloutPhase.ROLLING, 0), "no DaemonSet has made a pod yet"
    for one in machines:
        one.versions[AGENT], one.ready_ms = 1, 0
    assert seen() == (RolloutPhase.ROLLING, 0), "they are not ready"
    machines[0].ready_ms = rolled.now_ms
    assert seen() == (RolloutPhase.ROLLING, 1)
    machines[1].ready_ms = rolled.now_ms
    assert seen() == (RolloutPhase.DONE, 2)
    machines[0].ready_ms = 0
    assert seen() == (RolloutPhase.DONE, 2), "a pod that starts again is no rollout"


def test_a_first_revision_is_good_when_it_was_seen_working_and_not_when_it_was_only_brought_to_all_nodes() -> None:
    rolled = fleet(4)
    rolled.want, rolled.broken = 1, dict.fromkeys(rolled.machines, 1)
    rolled.live(HOUR_MS)
    assert (rolled.record.phase, rolled.record.good) == (RolloutPhase.ROLLING, False)
    for name in ("n0", "n1"):
        rolled.step()
        assert not rolled.record.good
        del rolled.broken[name]
        rolled.machines[name].ready_ms = rolled.now_ms
    rolled.step()
    assert not rolled.record.good, "what is reported may be older than the change"
    rolled.live(SETTLE_MS + 5 * SECOND_MS)
    assert rolled.record.good
    rolled.broken = dict.fromkeys(rolled.machines, 1)
    rolled.live(MINUTE_MS)
    assert rolled.record.good, "it is well known already"


def test_a_pass_is_due_when_what_got_ready_has_been_so_for_long_enough_and_never_else() -> None:
    rolled = fleet(1)
    rolled.want, rolled.machines["n0"].ready_ms = 1, HOUR_MS

    def again_ms(at_ms: int) -> int | None:
        plan = RolloutPlan(UPGRADE, frozenset({AGENT}))
        return advance(rolled.record, {"n0": rolled.node("n0")}, plan, at_ms).again_ms

    assert again_ms(HOUR_MS) == HOUR_MS + SETTLE_MS
    assert again_ms(HOUR_MS + SETTLE_MS) is None
    rolled.broken = {"n0": 1}
    assert again_ms(HOUR_MS) is None


def test_the_canary_comes_first_and_the_others_after_it_was_ready_for_long_enough() -> None:
    rolled = fleet().live(MINUTE_MS)
    assert rolled.order == ["n0"] and rolled.record.phase is RolloutPhase.CANARY
    rolled.live(90 * SECOND_MS)
    assert rolled.order == ["n0"]
    rolled.live(20 * MINUTE_MS)
    assert rolled.order == [f"n{i}" for i in range(6)]
    assert (rolled.record.phase, rolled.record.good, rolled.most_out) == (RolloutPhase.DONE, True, 2)
    assert not rolled.record.nodes and set(rolled.versions.values()) == {2}


def test_an_agent_is_replaced_beside_running_jobs_without_maintenance() -> None:
    rolled = fleet(2)
    for machine in rolled.machines.values():
        machine.jobs_end_ms = 100 * HOUR_MS
    rolled.live(HOUR_MS)
    assert set(rolled.versions.values()) == {2} and not rolled.cut
    assert not any(machine.maintained for machine in rolled.machines.values())


def test_a_driver_waits_for_the_jobs_of_its_node_and_empty_nodes_come_first() -> None:
    rolled = fleet(4, DRIVER, replace(UPGRADE, max_nodes="1"))
    for i, hours in enumerate((3, 2, 0, 4)):
        rolled.machines[f"n{i}"].jobs_end_ms = hours * HOUR_MS
    rolled.live(6 * HOUR_MS, 30 * SECOND_MS)
    assert rolled.order == ["n2", "n1", "n0", "n3"] and not rolled.cut
    assert rolled.record.phase is RolloutPhase.DONE
    assert not any(machine.maintained for machine in rolled.machines.values())


def test_a_job_that_comes_before_anything_was_changed_is_waited_for() -> None:
    rolled = fleet(1, DRIVER)
    rolled.machines["n0"].maintained_by_others = True
    rolled.step()
    assert rolled.record.nodes["n0"].state is NodeState.DRAINING
    rolled.machines["n0"].jobs_end_ms = rolled.now_ms + 10 * MINUTE_MS
    rolled.live(5 * MINUTE_MS)
    assert not rolled.cut


def test_a_node_that_does_not_get_empty_goes_back_into_service_and_others_come_before_it() -> None:
    rolled = fleet(2, DRIVER, replace(UPGRADE, max_nodes="1", canary=Canary(0), deadline_seconds=3600))
    rolled.machines["n0"].jobs_end_ms = rolled.now_ms + 10 * HOUR_MS
    rolled.machines["n1"].jobs_end_ms = rolled.now_ms + 20 * HOUR_MS
    rolled.live(61 * MINUTE_MS)
    assert set(rolled.record.nodes) == {"n1"} and not rolled.machines["n0"].maintained
    rolled.machines["n1"].jobs_end_ms = 0
    rolled.live(12 * HOUR_MS, MINUTE_MS)
    assert rolled.order == ["n1", "n0"] and not rolled.cut


@pytest.mark.parametrize(("rollback", "can_go_back"), [(True, True), (False, True), (True, False)])
def test_a_failed_canary_ends_the_rollout_and_the_nodes_go_back(rollback: bool, can_go_back: bool) -> None:
    rolled = fleet(upgrade=replace(UPGRADE, rollback=rollback), can_go_back=can_go_back)
    rolled.broken = dict.fromkeys(rolled.machines, 2)
    rolled.live(HOUR_MS)
    back = rollback and can_go_back
    assert rolled.order == ["n0", "n0"] if back else ["n0"]
    assert rolled.versions["n0"] == (1 if back else 2)
    assert rolled.record.phase is (RolloutPhase.ROLLED_BACK if back else RolloutPhase.FAILED)
    assert rolled.record.failed == ("n0",) and "ContainerCrashed" in rolled.record.reason
    assert not rolled.record.good


def test_a_node_that_fails_later_ends_it_too_and_all_go_back_within_the_budgets() -> None:
    rolled = fleet(8, DRIVER)
    rolled.broken = {"n4": 2}
    rolled.live(3 * HOUR_MS)
    assert rolled.record.phase is RolloutPhase.ROLLED_BACK and rolled.record.failed == ("n4",)
    assert set(rolled.versions.values()) == {1} and rolled.most_out <= 3
    assert not any(machine.maintained for machine in rolled.machines.values())


def test_without_a_way_back_a_failed_node_stays_in_maintenance() -> None:
    rolled = fleet(3, DRIVER, can_go_back=False)
    rolled.broken = {"n0": 2}
    rolled.live(HOUR_MS)
    assert [name for name, machine in rolled.machines.items() if machine.maintained] == ["n0"]


def test_a_canary_that_breaks_while_it_is_watched_ends_the_rollout() -> None:
    rolled = fleet()
    rolled.live(100 * SECOND_MS)
    assert rolled.record.canary_ms
    rolled.broken = {"n0": 2}
    rolled.live(HOUR_MS)
    assert rolled.record.failed == ("n0",) and rolled.versions == dict.fromkeys(rolled.machines, 1)


def test_a_paused_rollout_chooses_no_node_and_finishes_those_that_it_works_on() -> None:
    rolled = fleet()
    rolled.step()
    rolled.upgrade = replace(rolled.upgrade, paused=True)
    rolled.live(HOUR_MS)
    assert rolled.order == ["n0"] and not rolled.record.nodes
    rolled.upgrade = replace(rolled.upgrade, paused=False)
    assert set(rolled.live(HOUR_MS).versions.values()) == {2}


def test_a_node_whose_kubelet_does_not_answer_is_left_for_later() -> None:
    rolled = fleet(3)
    rolled.machines["n0"].reachable = False
    rolled.live(HOUR_MS)
    assert (rolled.record.phase, rolled.versions["n0"]) == (RolloutPhase.DONE, 1)
    rolled.machines["n0"].reachable = True
    assert rolled.live(HOUR_MS).versions["n0"] == 2


def test_a_layout_is_named_once_the_node_is_empty() -> None:
    node = RolloutNode(FleetNode("n0", empty=False), layout="all-1g.5gb", applied=False)
    plan = RolloutPlan(replace(UPGRADE, canary=Canary(0)))
    first = advance(RolloutRecord(), {"n0": node}, plan, HOUR_MS)
    first = advance(first.record, {"n0": node}, plan, HOUR_MS + 1)
    assert first.actions == (Maintain("n0"),)
    empty = replace(node, fleet=replace(node.fleet, empty=True), ours=True, maintained=True)
    second = advance(first.record, {"n0": empty}, plan, HOUR_MS + 2)
    assert second.actions == (SetLayout("n0", "all-1g.5gb"),)
    named = replace(empty, layout="")
    third = advance(second.record, {"n0": named}, plan, HOUR_MS + 3)
    assert third.record.nodes["n0"].state is NodeState.VERIFYING
    waits = advance(third.record, {"n0": named}, plan, HOUR_MS + SETTLE_MS + 3)
    assert waits.record.nodes["n0"].state is NodeState.VERIFYING
    applied = replace(named, applied=True)
    fourth = advance(third.record, {"n0": applied}, plan, HOUR_MS + SETTLE_MS + 3)
    assert fourth.actions == (EndMaintenance("n0"),)


def test_pods_that_are_replaced_on_a_node_in_use_settle_once() -> None:
    node = RolloutNode(FleetNode("n0", empty=False), ready_ms=1, outdated=(OutdatedPod("a", "old", "1", AGENT),))
    plan = RolloutPlan(replace(UPGRADE, canary=Canary(1, 0)), frozenset({AGENT}))
    working = advance(RolloutRecord(), {"n0": node}, plan, HOUR_MS).record
    current = replace(node, outdated=(), current=frozenset({AGENT}), ready_ms=HOUR_MS + MINUTE_MS)
    verified = advance(working, {"n0": current}, plan, HOUR_MS + MINUTE_MS).record
    assert verified.nodes["n0"].state is NodeState.VERIFYING
    settled_ms = HOUR_MS + MINUTE_MS + SETTLE_MS
    before = advance(verified, {"n0": current}, plan, settled_ms - 1).record
    assert before.nodes["n0"].state is NodeState.VERIFYING
    assert advance(before, {"n0": current}, plan, settled_ms).record.phase is RolloutPhase.DONE


def test_every_state_is_reached_and_only_done_has_no_way_on() -> None:
    reached = {state for events in TRANSITIONS.values() for state in events.values()} | {NodeState.PENDING}
    assert reached == set(NodeState)
    assert [state for state, events in TRANSITIONS.items() if not events] == [NodeState.DONE]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.slow
def test_killed_at_any_write_the_end_is_the_same_and_no_job_is_cut(seed: int) -> None:
    """Jobs come and go on nodes that are not in maintenance; the process is killed at every third pass."""
    dice = random.Random(seed)
    upgrade = replace(UPGRADE, max_nodes=dice.choice(("1", "30%")), rollback=dice.random() < 0.7)
    rolled = fleet(7, dice.choice((AGENT, DRIVER)), upgrade)
    bad = dice.random() < 0.4
    rolled.broken = {"n3": 2} if bad else {}
    for _ in range(1500):
        dies = dice.randrange(4) if dice.random() < 0.3 else None
        rolled.step(dies_after=dies)
        rolled.now_ms += 20 * SECOND_MS
        for machine in rolled.machines.values():
            if not machine.maintained and dice.random() < 0.02:
                machine.jobs_end_ms = rolled.now_ms + dice.randrange(30) * MINUTE_MS
    assert not rolled.cut
    assert rolled.most_out <= most(upgrade.max_nodes, 7) + bad
    wanted = 1 if bad and upgrade.rollback else 2
    expected = RolloutPhase.DONE if not bad else RolloutPhase.ROLLED_BACK if upgrade.rollback else RolloutPhase.FAILED
    assert rolled.record.phase is expected
    if expected is not RolloutPhase.FAILED:
        assert set(rolled.versions.values()) == {wanted} and not rolled.record.nodes
        assert not any(machine.maintained for machine in rolled.machines.values())
