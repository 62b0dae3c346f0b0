# SPDX-License-Identifier: Apache-2.0
"""Stranded GPUs: what is free less what pods of a shape can still get, by cause, against counts by hand."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dovetail.core.cycle import step
from dovetail.core.event_handlers import apply
from dovetail.core.events import PodChanged
from dovetail.core.model import CPU, GPU, Node, Pod, Taint
from dovetail.core.state import State
from dovetail.views.free import free
from dovetail.views.free_types import Beside, StrandedGpus
from dovetail.views.probe import Probe
from dovetail.views.shape import largest
from dovetail.views.shape_types import ShapeView
from dovetail.views.stranded import of_waiting
from tests.views.divided import BIG, SMALL, SMALL_ONES, card, cluster, mig, node, pod

PRODUCT = "nvidia.com/gpu.product"


def of_shape(state: State, shape: ShapeView, cpu_milli: int = 0) -> StrandedGpus:
    found = largest(state, shape, Beside(cpu_milli)).stranded
    assert found is not None
    return found


def by_cause(found: StrandedGpus) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for one in found.parts:
        sums[one.cause] += one.gpus_milli * len(one.nodes) // 1000
    assert 1000 * sum(sums.values()) == found.stranded_milli
    return dict(sums)


def random_cluster(chance: random.Random) -> tuple[dict[str, tuple[int, int]], list[Node | Pod]]:
    """Free GPUs and CPUs by node, and the nodes with what runs there."""
    free_on, objects = dict[str, tuple[int, int]](), list[Node | Pod]()
    for number in range(chance.randint(1, 6)):
        name, gpus, cpu = f"n{number}", chance.choice((2, 4, 8)), chance.choice((4, 16, 32, 64))
        held, busy = chance.randint(0, gpus), chance.randint(0, cpu)
        objects += [node(name, gpus, cpu=cpu), pod(f"x{number}", (CPU, 1000 * busy), (GPU, held), on=name)]
        free_on[name] = gpus - held, cpu - busy
    return free_on, objects


def fits(gpus: int, cpu: int, each: int, cpu_each: int) -> int:
    """Pods, one after another."""
    pods = 0
    while gpus >= each and cpu >= cpu_each:
        gpus, cpu, pods = gpus - each, cpu - cpu_each, pods + 1
    return pods


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.slow
def test_as_counted_by_hand_and_as_the_scheduler_then_places(seed: int) -> None:
    chance = random.Random(seed)
    free_on, objects = random_cluster(chance)
    each, cpu_each = chance.choice((1, 2, 3, 4, 8)), chance.choice((0, 1, 4))
    expected: Counter[str] = Counter()
    for gpus, cpu in free_on.values():
        expected["fragmented"] += gpus % each
        expected["cpu"] += gpus // each * each - each * fits(gpus, cpu, each, each * cpu_each)
    state = cluster(*objects)
    found = of_shape(state, ShapeView(each), 1000 * cpu_each)
    assert by_cause(found) == +expected
    assert found.free_milli == 1000 * sum(gpus for gpus, _ in free_on.values())
    for number in range(50):
        apply(state, PodChanged(pod(f"new{number}", (GPU, each), (CPU, 1000 * each * cpu_each))))
    while step(state, [], 2_000):
        pass
    left = sum(int(one) for one in Probe(state, Beside()).free(GPU))
    assert 1000 * left == found.stranded_milli


@pytest.mark.parametrize("seed", range(20))
def test_of_several_waiting_shapes_the_one_that_uses_most_of_a_node_counts(seed: int) -> None:
    chance = random.Random(seed)
    free_on, objects = random_cluster(chance)
    shapes = [(chance.choice((1, 2, 4, 8)), chance.choice((0, 2, 24))) for _ in range(chance.randint(0, 3))]
    waiting = [pod(f"w{i}", (GPU, each), (CPU, 1000 * cpu)) for i, (each, cpu) in enumerate(shapes)]
    found = of_waiting(Probe(cluster(*objects, *waiting), Beside()))
    used = {
        name: max((each * fits(gpus, cpu, each, cpu_each) for each, cpu_each in shapes), default=0)
        for name, (gpus, cpu) in free_on.items()
    }
    whole = sum(gpus for gpus, _ in free_on.values()) if shapes else 0
    assert (found.free_milli, found.stranded_milli) == (1000 * whole, 1000 * (whole - sum(used.values())))


def test_a_node_that_no_shape_admits_is_free_and_not_stranded() -> None:
    selects = pod("w", (GPU, 8), node_selector=((PRODUCT, "H100"),))
    state = cluster(node("a", 8), node("b", 8, "A100"), node("c", 8, taints=(Taint("x", "", "NoSchedule"),)), selects)
    found = free(state).stranded
    assert found is not None and (found.free_milli, found.stranded_milli) == (8000, 0)


def test_a_rule_of_the_scheduler_is_a_cause_with_its_text() -> None:
    state = cluster(node("a", 8), pod("x", (GPU, 1), on="a", ports=()), pod("w", (GPU, 7), ("example.com/fpga", 1)))
    (part,) = of_waiting(Probe(state, Beside())).parts
    assert (part.cause, part.gpus_milli, part.nodes) == ("rule", 7000, ("a",))
    assert "Insufficient" in part.detail


def test_gpus_of_a_node_that_is_too_small_are_fragmented() -> None:
    assert by_cause(of_shape(cluster(node("a", 4), node("b", 8)), ShapeView(8))) == {"fragmented": 4}


def test_slices_that_no_waiting_profile_can_get() -> None:
    """Seven small instances, one of them held, and a pod that waits for a large one, or for a small one."""
    base = (mig("m", card(0, *SMALL_ONES)), pod("x", (SMALL, 1), on="m"))
    big = of_waiting(Probe(cluster(*base, pod("w", (BIG, 1))), Beside()))
    assert [(one.cause, one.gpus_milli) for one in big.parts] == [("mig", 1000 * 6 // 7)]
    small = of_waiting(Probe(cluster(*base, pod("w", (SMALL, 1))), Beside()))
    assert (small.free_milli, small.stranded_milli) == (857, 0)
    both = of_waiting(Probe(cluster(*base, pod("w", (BIG, 1)), pod("v", (SMALL, 1))), Beside()))
    assert (both.free_milli, both.stranded_milli) == (857, 0)
    assert of_waiting(Probe(cluster(*base), Beside())).parts == ()
