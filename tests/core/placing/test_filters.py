# SPDX-License-Identifier: Apache-2.0
"""The masks of the core against the literal rules of the oracle, on thousands of small random clusters."""

from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Hold
from dovetail.core.event_handlers import apply
from dovetail.core.model import Pod
from dovetail.core.placing import filters, refusals, scores
from dovetail.core.reasons import Reason, When
from dovetail.core.state import State
from tests.breadth import seeds
from tests.core.oracle import World, allows, claims_allow, feasible
from tests.core.worlds import Dice, reported

ELSEWHERE = (
    Reason.BIND_BACKOFF, Reason.OUTSIDE_DOMAIN, Reason.NVLINK, Reason.KUBELET, Reason.REJECTED, Reason.DEVICES,
    Reason.CLAIM_NODE, Reason.QUARANTINED, Reason.MAINTENANCE, Reason.SPARE,
)  # fmt: skip
"""Rules with tests of their own."""
NODE_RULES = [rule for rule in Reason if rule not in ELSEWHERE]
NODE_RULES = NODE_RULES[: NODE_RULES.index(Reason.INVALID)]


def accepted(state: State, pod: Pod) -> set[str]:
    """The nodes that the core would put the pod on."""
    cluster = state.cluster
    if cluster.volumes.refusal(pod) is not None:
        return set()
    shape = cluster.shapes.of(pod.request)
    mask = state.score_cache.of(shape).score != scores.INFEASIBLE
    for _, satisfied in filters.hindrances(cluster, pod, shape):
        mask &= satisfied
    names = cluster.nodes.names
    return {names[slot] for slot in np.flatnonzero(mask) if cluster.volumes.pick(pod, int(slot)) is not None}


def of_seed(seed: int) -> tuple[World, Pod, State]:
    dice = Dice(seed)
    world, pod = dice.world(), dice.pod()
    state = State()
    for event in reported(world, pod):
        apply(state, event)
    return world, pod, state


@pytest.mark.slow
def test_the_core_accepts_and_refuses_exactly_as_the_oracle() -> None:
    """Every rule refuses somewhere, and never means that no pod that leaves would help."""
    refused: Counter[Reason] = Counter()
    for seed in seeds(1600):
        world, pod, state = of_seed(seed)
        want = feasible(world, pod)
        assert accepted(state, pod) == want, seed
        if not claims_allow(world, pod):
            continue
        found, names = refusals.verdicts(state.cluster, pod), state.cluster.nodes.names
        there = [names[slot] for verdict in found for slot in verdict.slots]
        assert sorted([*there, *want]) == sorted(node.name for node in world.nodes), seed
        empty = replace(world, pods=[], nominated=[])
        nodes = {node.name: node for node in world.nodes}
        for verdict in found:
            refused[verdict.reason] += len(verdict.slots)
            for slot in verdict.slots if verdict.when is When.NEVER else ():
                assert not allows(empty, pod, nodes[names[slot]]), (seed, verdict)
    assert {rule for rule in NODE_RULES if refused[rule] < 10} == set()


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(4))
def test_a_pod_is_bound_where_the_oracle_lets_it_or_held_with_counts_that_add_up(chunk: int) -> None:
    for seed in seeds(400)[chunk::4]:
        world, pod, state = of_seed(seed)
        [decision] = step(state, (), 0)
        want = feasible(world, pod)
        if want:
            assert isinstance(decision, Bind), seed
            assert decision.node in want, seed
        else:
            assert isinstance(decision, Hold), seed
            refusal = decision.refusal
            assert sum(count.nodes for count in refusal.nodes) == refusal.total_nodes, seed
            assert refusal.total_nodes in (0, len(world.nodes)), seed
