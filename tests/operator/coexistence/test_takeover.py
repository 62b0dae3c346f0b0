# SPDX-License-Identifier: Apache-2.0
"""Over any sequence of takeovers, failures and ways back a node never has two sides for its GPUs or their metrics, and
the way back ends where it began."""

from __future__ import annotations

from copy import deepcopy
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.kube.objects.stack import NodePool, StackSpec
from dovetail.operator.budgets import FleetNode
from dovetail.operator.coexistence.found_components import foreign_daemons
from dovetail.operator.coexistence.states import (
    MESSAGES,
    MOVING,
    SETTLED,
    FunctionOnNode,
    TakeoverReason,
    TakeoverState,
)
from dovetail.operator.coexistence.table import COMPONENTS, TAKEN_OVER, AgentFunction
from dovetail.operator.coexistence.takeover import TakeoverPlan, release_plan, takeover_plan
from dovetail.operator.found import ALLOCATION_LABEL, EXPORTER_LABEL
from dovetail.operator.watched.pods import WatchedOwner
from tests.operator.coexistence import shapes
from tests.operator.coexistence.world import World, spec
from tests.operator.test_budgets import allowed

PCI = {"feature.node.kubernetes.io/pci-10de.present": "true", "nvidia.com/gpu.present": "true"}
TAKEN = ("dcgm-exporter", "gpu-feature-discovery", "mig-manager", "device-plugin", "dra-driver")
MOVED = [shapes.OPERANDS[name] for name in ("device-plugin", "gpu-feature-discovery", "mig-manager", "dcgm-exporter")]
EXCLUDED = shapes.owner(
    "plain-plugin", "nvidia", {"app": "plain"},
    [{"name": "main", "image": "k8s-device-plugin:v0.19.3", "command": ["nvidia-device-plugin"]}],
    terms=[{"matchExpressions": [{"key": f"{TAKEN_OVER}device-plugin", "operator": "NotIn", "values": ["true"]}]}],
)  # fmt: skip
"""A plain DaemonSet with the rule that its owner is asked for."""


def world(owners: list[WatchedOwner], nodes: int = 1, **more: bool) -> World:
    made = World(foreign_daemons(owners, []), {f"n{i}": dict(PCI) for i in range(nodes)}, **more)
    made.settle()
    return made


def planned(of: World, wants: StackSpec, generation: int = 1) -> TakeoverPlan:
    return takeover_plan(wants, generation, of.now_s, of.seen(), of.daemons)


def carry_out(of: World, wants: StackSpec, generation: int = 1) -> TakeoverPlan:
    """Until nothing changes any more."""
    while True:
        plan = planned(of, wants, generation)
        for patch in plan.patches:
            of.write(patch, of.versions.get(patch.node, 0))
            check(of)
        before = (deepcopy(of.labels), len(of.pods))
        of.settle()
        check(of)
        if not plan.patches and before == (of.labels, len(of.pods)):
            if not plan.soaked_s:
                return plan
            of.now_s = plan.soaked_s


def check(of: World) -> None:
    """With `apart` only the allocators are kept apart by more than labels, which others reset."""
    for node in of.labels:
        for function in (AgentFunction.ALLOCATION, *(() if of.apart else (AgentFunction.EXPORTER,))):
            assert of.runs(node, function) != (True, True), (node, function)


def states(plan: TakeoverPlan, node: str = "n0") -> dict[AgentFunction, TakeoverState]:
    return {one.function: one.state for one in plan.functions if one.node == node}


def one(plan: TakeoverPlan, function: AgentFunction = AgentFunction.ALLOCATION) -> FunctionOnNode:
    (found,) = [each for each in plan.functions if each.function is function]
    return found


def test_without_take_over_all_stays_and_nothing_is_written() -> None:
    of = world(MOVED)
    plan = planned(of, spec())
    assert set(states(plan).values()) == {TakeoverState.FOREIGN}
    assert plan.patches == ()


def test_a_takeover_moves_one_function_after_the_other_and_back() -> None:
    of = world(MOVED, 3)
    before = (deepcopy(of.labels), sorted(map(str, of.pods)))
    plan = carry_out(of, spec(*TAKEN))
    assert set(states(plan).values()) == {TakeoverState.DOVETAIL}
    assert [pod for pod in of.pods if pod.functions is None] == []
    assert of.labels["n0"][ALLOCATION_LABEL] == of.labels["n0"][EXPORTER_LABEL] == "dovetail"
    plan = carry_out(of, spec(), 2)
    assert set(states(plan).values()) == {TakeoverState.FOREIGN}
    assert (of.labels, sorted(map(str, of.pods))) == before
    assert not any(of.annotations.values())


def test_the_order_off_gone_on() -> None:
    of = world([shapes.OPERANDS["device-plugin"]])
    wants = spec("device-plugin")
    seen = []
    for _ in range(12):
        plan = planned(of, wants)
        seen.append((one(plan).state, of.runs("n0", AgentFunction.ALLOCATION)))
        for patch in plan.patches:
            of.write(patch, of.versions.get("n0", 0))
        of.daemon_sets("n0")
        planned(of, wants)
        of.kubelet("n0")
    order = list(dict.fromkeys(seen))
    assert [state for state, _ in order][:2] == [TakeoverState.QUEUED, TakeoverState.STARTING]
    assert order[0] == (TakeoverState.QUEUED, (True, False))
    assert order[-1] == (TakeoverState.DOVETAIL, (False, True))


def test_other_functions_wait_while_one_moves() -> None:
    of = world(MOVED)
    (patch,) = planned(of, spec(*TAKEN)).patches
    of.write(patch, of.versions["n0"])
    found = states(planned(of, spec(*TAKEN)))
    assert found[AgentFunction.EXPORTER] is TakeoverState.LEAVING
    assert found[AgentFunction.ALLOCATION] is TakeoverState.QUEUED


@pytest.mark.parametrize(("budget", "most"), [("20%", 4), ("3", 3), ("1%", 1)])
@pytest.mark.slow
def test_first_the_canary_then_the_budget(budget: str, most: int) -> None:
    of = world([shapes.OPERANDS["device-plugin"]], 20)
    wants = spec("device-plugin", maxNodes=budget, maxGpus="100%")
    at_a_time: list[int] = []
    while (plan := planned(of, wants)).patches or plan.soaked_s:
        for patch in plan.patches:
            of.write(patch, of.versions[patch.node])
        between = sum(each.state in MOVING for each in planned(of, wants).functions)
        at_a_time += [between] if between else []
        of.settle()
        of.now_s = max(of.now_s, plan.soaked_s)
    assert at_a_time[0] == 1
    assert max(at_a_time) == most
    assert {each.state for each in plan.functions} == {TakeoverState.DOVETAIL}


def test_the_others_wait_until_the_canary_was_ready_for_long_enough() -> None:
    of = world([shapes.OPERANDS["device-plugin"]], 3)
    wants = spec("device-plugin", maxNodes="100%", maxGpus="100%", canary={"nodes": 1, "soakSeconds": 300})

    def after(at_s: int) -> tuple[int, int]:
        """How many nodes are Dovetail's or on the way after some passes at this time, and when the soak ends."""
        of.now_s = at_s
        for _ in range(6):
            for patch in planned(of, wants).patches:
                of.write(patch, of.versions.get(patch.node, 0))
            of.settle()
        plan = planned(of, wants)
        return sum(each.state is not TakeoverState.QUEUED for each in plan.functions), plan.soaked_s

    assert after(2_000) == (1, 2_300)
    assert after(2_299) == (1, 2_300)
    assert after(2_300) == (3, 0)
    carry_out(of, spec(), 2)
    assert not any(of.annotations.values())


def test_without_a_canary_the_budget_alone_counts_and_with_a_budget_of_none_no_node_begins() -> None:
    of = world([shapes.OPERANDS["device-plugin"]], 4)
    none = {"nodes": 0, "soakSeconds": 0}
    assert len(planned(of, spec("device-plugin", maxNodes="2", maxGpus="100%", canary=none)).patches) == 2
    assert planned(of, spec("device-plugin", maxNodes="0", canary=none)).patches == ()


def test_a_node_that_a_rollout_works_on_counts_and_is_left_for_later() -> None:
    of = world([shapes.OPERANDS["device-plugin"]], 3)
    wants = spec("device-plugin", maxNodes="2", maxGpus="100%", canary={"nodes": 0, "soakSeconds": 0})
    of.held = {"n0"}
    assert [patch.node for patch in planned(of, wants).patches] == ["n1"]
    of.held = {"n0", "n1"}
    assert planned(of, wants).patches == ()
    of.held = set()
    assert [patch.node for patch in planned(of, wants).patches] == ["n0", "n1"]


FLEET = st.lists(
    st.builds(
        FleetNode, st.just(""), st.just("default"), st.sampled_from(("", "r1", "r2")), st.sampled_from((0, 1, 8)),
        st.sampled_from((False, False, False, True)),
    ),
    min_size=1, max_size=7,
)  # fmt: skip
AMOUNTS = st.sampled_from(("0", "1", "2", "5", "30%", "60%"))


@settings(max_examples=60)
@given(FLEET, st.sets(st.integers(0, 6)), AMOUNTS, AMOUNTS, st.integers(1, 2), st.integers(0, 2))
@pytest.mark.slow
def test_takeovers_rollouts_and_drains_together_never_exceed_a_budget(
    drawn: list[FleetNode], rolled: set[int], max_nodes: str, max_gpus: str, per_rack: int, canaries: int
) -> None:
    """Against the rules counted one by one; and while there is room for one more, it begins."""
    of = world([shapes.OPERANDS["device-plugin"]], len(drawn))
    fleet = [replace(one, name=f"n{i}") for i, one in enumerate(drawn)]
    of.fleet = {one.name: one for one in fleet}
    of.held = {f"n{i}" for i in rolled if i < len(drawn)}
    canary = {"nodes": canaries, "soakSeconds": 60}
    wants = spec("device-plugin", maxNodes=max_nodes, maxGpus=max_gpus, maxNodesPerRack=per_rack, canary=canary)
    for _ in range(4 * len(drawn)):
        plan = planned(of, wants)
        state = {each.node: each.state for each in plan.functions}
        moving = {node for node in state if state[node] in MOVING}
        begun = {patch.node for patch in plan.patches if state[patch.node] is TakeoverState.QUEUED}
        out = {one.name for one in fleet if one.out} | of.held | moving
        assert plan.disrupted == moving | begun
        assert not begun & of.held
        assert allowed(fleet, out | begun, begun - out, wants.upgrade)
        settled = sum(one is TakeoverState.DOVETAIL for one in state.values())
        left = {node for node in state if state[node] is TakeoverState.QUEUED} - begun - of.held
        if settled < canaries:
            assert settled + len(moving | begun) <= canaries
        elif not plan.soaked_s:
            assert not any(allowed(fleet, out | begun | {one}, {one} - out, wants.upgrade) for one in left)
        for patch in plan.patches:
            of.write(patch, of.versions[patch.node])
        of.settle()
        of.now_s = max(of.now_s + 1, plan.soaked_s)


def test_a_paused_stack_begins_with_no_node() -> None:
    assert planned(world(MOVED), spec(*TAKEN, paused=True)).patches == ()


def test_one_component_may_stay_while_another_goes() -> None:
    of = world(MOVED)
    plan = carry_out(of, spec("dcgm-exporter"))
    assert states(plan)[AgentFunction.EXPORTER] is TakeoverState.DOVETAIL
    assert states(plan)[AgentFunction.ALLOCATION] is TakeoverState.FOREIGN


def test_nodes_that_the_other_side_never_had_are_dovetails_at_once() -> None:
    away = shapes.owner(
        "elsewhere", "x", {"a": "b"}, [{"name": "nvidia-device-plugin-ctr", "image": "p"}], selector={"pool": "old"}
    )
    of = world([away])
    plan = carry_out(of, spec())
    assert one(plan).state is TakeoverState.DOVETAIL
    assert of.runs("n0", AgentFunction.ALLOCATION) == (False, True)


def test_a_node_that_joins_is_the_other_sides_before_its_switches_are_there() -> None:
    of = World(foreign_daemons([shapes.OPERANDS["device-plugin"]], []), {"n0": dict(PCI)})
    of.daemon_sets("n0")
    assert planned(of, spec()).patches == ()


def test_a_plain_daemon_set_has_to_be_changed_by_its_owner() -> None:
    of = world([shapes.CHART_PLUGIN])
    found = one(planned(of, spec("device-plugin")))
    assert (found.state, found.reason) == (TakeoverState.BLOCKED, TakeoverReason.NOT_SWITCHABLE)
    assert found.message.startswith("DaemonSet nvidia/nvdp-nvidia-device-plugin runs NVIDIA's device plugin here")
    assert f'{{key: {TAKEN_OVER}device-plugin, operator: NotIn, values: ["true"]}}' in found.action
    assert "the chart's value affinity" in found.action
    assert planned(of, spec("device-plugin")).patches == ()
    assert one(carry_out(world([EXCLUDED]), spec("device-plugin"))).state is TakeoverState.DOVETAIL


def test_of_two_allocators_both_are_taken_over_or_none() -> None:
    of = world([shapes.OPERANDS["device-plugin"], shapes.DRA_DRIVER])
    found = one(planned(of, spec("device-plugin")))
    assert (found.state, found.reason) == (TakeoverState.BLOCKED, TakeoverReason.OTHER_ALLOCATOR)
    assert found.message == "dra-driver offers the same GPUs and stays"
    assert one(planned(of, spec("device-plugin", "dra-driver"))).reason == TakeoverReason.NOT_SWITCHABLE


def test_what_the_pool_does_not_do_is_not_taken_over() -> None:
    of = world([shapes.OPERANDS["mig-manager"]])
    nodes = [replace(node, pool=NodePool()) for node in of.seen()]
    found = one(takeover_plan(spec("mig-manager"), 1, 0, nodes, of.daemons), AgentFunction.MIG)
    assert (found.state, found.reason) == (TakeoverState.BLOCKED, TakeoverReason.NOT_OFFERED)


def test_the_mps_daemon_goes_with_the_device_plugin() -> None:
    of = world([shapes.OPERANDS["device-plugin"], shapes.OPERANDS["mps-control-daemon"]])
    of.labels["n0"]["nvidia.com/mps.capable"] = "true"
    of.settle()
    assert one(carry_out(of, spec("device-plugin"))).components == ("device-plugin", "mps-control-daemon")
    assert of.runs("n0", AgentFunction.ALLOCATION) == (False, True)


def test_what_others_have_paused_is_left_alone() -> None:
    of = world(MOVED)
    of.pause("n0", True)
    plan = planned(of, spec(*TAKEN))
    assert {each.reason for each in plan.functions} == {TakeoverReason.PAUSED}
    assert plan.patches == ()


def test_a_switch_that_the_user_set_is_not_taken_for_ours() -> None:
    of = world([shapes.OPERANDS["gpu-feature-discovery"]])
    of.labels["n0"][f"{shapes.DEPLOY}gpu-feature-discovery"] = "false"
    of.settle()
    carry_out(of, spec("gpu-feature-discovery"))
    carry_out(of, spec(), 2)
    assert of.labels["n0"][f"{shapes.DEPLOY}gpu-feature-discovery"] == "false"


def test_what_something_else_switched_on_again_is_switched_off_and_ours_ends_first() -> None:
    of = world([shapes.OPERANDS["device-plugin"]], 2)
    carry_out(of, spec("device-plugin"))
    of.reset("n0")
    plan = planned(of, spec("device-plugin", paused=True))
    assert [(each.state, each.reason) for each in plan.functions if each.node == "n0"] == [
        (TakeoverState.LEAVING, TakeoverReason.CAME_BACK)
    ]
    (patch,) = plan.patches
    assert patch.labels == {ALLOCATION_LABEL: None, f"{shapes.DEPLOY}device-plugin": "false"}


def test_the_way_back_sets_the_switches_of_an_operator_that_is_there() -> None:
    of = world([shapes.OPERANDS["gpu-feature-discovery"]])
    carry_out(of, spec("gpu-feature-discovery"))
    record, switch = f"{TAKEN_OVER}gpu-feature-discovery", f"{shapes.DEPLOY}gpu-feature-discovery"
    (patch,) = planned(of, spec()).patches
    assert patch.labels == {record: None, switch: "true"}
    of.daemons = []
    (patch,) = planned(of, spec()).patches
    assert patch.labels == {record: None, switch: None}


@pytest.mark.parametrize("rollback", [True, False])
def test_a_node_that_is_not_ready_in_time_stops_the_others_and_goes_back(rollback: bool) -> None:
    of = world([shapes.OPERANDS["device-plugin"]], 3)
    before = deepcopy(of.labels)
    of.broken.add("n0")
    wants = spec("device-plugin", readySeconds=60, rollback=rollback)
    carry_out(of, wants)
    assert of.runs("n0", AgentFunction.ALLOCATION) == (False, True)
    of.now_s += 61
    plan = carry_out(of, wants)
    assert states(plan, "n1") == {AgentFunction.ALLOCATION: TakeoverState.QUEUED}
    if not rollback:
        assert states(plan, "n0") == {AgentFunction.ALLOCATION: TakeoverState.STARTING}
        return
    assert states(plan, "n0") == {AgentFunction.ALLOCATION: TakeoverState.FAILED}
    assert of.labels == before
    of.broken.clear()
    plan = carry_out(of, wants, generation=2)
    assert {each.state for each in plan.functions} == {TakeoverState.DOVETAIL}
    assert {key for one in of.annotations.values() for key in one} == {SETTLED}


def test_what_the_cluster_no_longer_has_leaves_no_labels() -> None:
    of = world(MOVED)
    carry_out(of, spec(*TAKEN))
    of.daemons = []
    of.settle()
    carry_out(of, spec(*TAKEN))
    assert {key for key in of.labels["n0"] if key.startswith((TAKEN_OVER, shapes.DEPLOY))} == set()
    assert of.runs("n0", AgentFunction.ALLOCATION) == (False, True)


def test_a_stack_that_is_removed_leaves_nothing_of_ours() -> None:
    of = world(MOVED, 2)
    before = deepcopy(of.labels)
    carry_out(of, spec(*TAKEN))
    while (plan := release_plan(of.seen(), of.daemons)).patches:
        for patch in plan.patches:
            of.write(patch, of.versions[patch.node])
            check(of)
        of.settle()
        check(of)
    assert {each.state for each in plan.functions} == {TakeoverState.FOREIGN}
    assert of.labels == before


@pytest.mark.parametrize(
    ("name", "rule"),
    [("driver", "is not taken over: a new driver ends every pod"), ("dcgm_exporter", "must be one of device-plugin")],
)
def test_wrong_names_are_problems(name: str, rule: str) -> None:
    (problem,) = planned(world(MOVED), spec("device-plugin", name)).problems
    assert problem.field == "spec.takeOver[1]"
    assert problem.value == name
    assert problem.rule.startswith(rule)


def test_every_reason_has_a_message_and_every_component_its_words() -> None:
    assert set(MESSAGES) == set(TakeoverReason)
    assert all(bool(each.kept) == (each.function is AgentFunction.NONE) for each in COMPONENTS)


SETS = [
    MOVED,
    [*MOVED, shapes.OPERANDS["mps-control-daemon"]],
    [EXCLUDED, shapes.OPERANDS["dcgm-exporter"]],
    [shapes.CHART_PLUGIN, shapes.OPERANDS["dcgm-exporter"]],
    [EXCLUDED, shapes.OPERANDS["device-plugin"]],
]


def live(random: Random, of: World, steps: int, rough: bool) -> int:
    """A random time: passes of the operator that may end after any write, changes of the spec, failures, and everybody
    else. `rough`: it acts on what it saw some time ago, and the GPU Operator resets its switches. Returns the
    generation."""
    wants, generation = spec(), 1
    snapshot = (of.seen(), dict(of.versions))
    for _ in range(steps):
        match random.randrange(12):
            case 0:
                generation += 1
                wants = spec(
                    *random.sample(TAKEN, random.randrange(len(TAKEN) + 1)),
                    maxNodes=random.choice(("1", "50%", "100%")), readySeconds=60, rollback=random.random() < 0.8,
                )  # fmt: skip
            case 1:
                of.broken ^= {random.choice(sorted(of.labels))}
            case 2:
                of.now_s += random.choice((1, 70))
            case 3 if rough:
                of.reset(random.choice(sorted(of.labels)))
            case 3:
                of.pause(random.choice(sorted(of.labels)), random.random() < 0.5)
            case 4 | 5 | 6 | 7:
                if not rough or random.random() < 0.5:
                    snapshot = (of.seen(), dict(of.versions))
                nodes, versions = snapshot
                plan = takeover_plan(wants, generation, of.now_s, nodes, of.daemons)
                for patch in random.sample(plan.patches, random.randrange(len(plan.patches) + 1)):
                    of.write(patch, versions.get(patch.node, 0))
                    check(of)
            case _:
                of.others(random)
        check(of)
    return generation


@pytest.mark.slow
@pytest.mark.parametrize("rough", [False, True], ids=["", "rough"])
@pytest.mark.parametrize("kind", range(len(SETS)))
def test_never_two_sides_and_the_way_back_ends_where_it_began(kind: int, rough: bool) -> None:
    for seed in range(12):
        random = Random(f"{kind} {rough} {seed}")
        of = world(SETS[kind], random.randrange(1, 4), apart=rough)
        before = (deepcopy(of.labels), sorted(map(str, of.pods)))
        generation = live(random, of, 120, rough)
        of.broken.clear()
        for node in of.labels:
            of.pause(node, False)
        of.settle()
        carry_out(of, spec(), generation + 1)
        assert (of.labels, sorted(map(str, of.pods))) == before
        assert not any(of.annotations.values())
