# SPDX-License-Identifier: Apache-2.0
"""The policies of the simulator against the published formulas, decision by decision."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest

from dovetail.core.events import NodeChanged
from dovetail.core.model import CPU, GPU, PODS, Node, NodeTerm, Pod, Request, Requirement
from dovetail.core.policy import Policy
from dovetail.sim.engine import Simulation
from dovetail.sim.policies import POLICIES
from dovetail.sim.workload import SimJob, Workload
from tests.breadth import seeds
from tests.sim import published
from tests.sim.published import Machine, Task

MODEL = "nvidia.com/gpu.product"


def request_of(task: Task) -> Request:
    amounts = tuple(
        (name, n) for name, n in ((CPU, task.cpu_milli), (GPU, 0 if task.kind == "share" else task.count)) if n
    )
    terms = (NodeTerm((Requirement(MODEL, "In", task.models),)),) if task.models else None
    return Request(amounts, task.milli if task.kind == "share" else 0, node_terms=terms)


def scene(seed: int) -> tuple[list[Machine], list[Task]]:
    chance = random.Random(seed)
    machines = [
        Machine(
            f"n{i}",
            chance.choice([16, 32, 64, 96]) * 1000,
            chance.choice(["A", "B"]),
            [1000] * chance.choice([1, 2, 4, 8]),
        )
        for i in range(chance.randint(2, 12))
    ]
    classes = [
        Task(
            chance.choice([0, 1000, 4000, 8000, 11_900]),
            *chance.choice(
                [(0, 0), (1, 200), (1, 460), (1, 500), (1, 810), (1, 1000), (2, 1000), (4, 1000), (8, 1000)]
            ),
            models=chance.choice([(), (), (), ("A",), ("A", "B"), ("C",)]),
        )
        for _ in range(chance.randint(3, 12))
    ]
    tasks = chance.choices(classes, weights=[chance.randint(1, 20) for _ in classes], k=60)
    return machines, tasks


def simulated(policy: str, machines: list[Machine], tasks: list[Task]) -> list[tuple[str, tuple[int, ...]]]:
    nodes = [
        Node(m.name, ((CPU, m.cpu_milli), (GPU, len(m.gpus)), (PODS, 1000)), ((MODEL, m.model),)) for m in machines
    ]
    jobs = [SimJob(i, (Pod(f"p{i}", "ns", f"p{i}", request_of(task)),)) for i, task in enumerate(tasks)]
    workload = Workload("scene", tuple(map(NodeChanged, nodes)), tuple(jobs))
    scoring = POLICIES[policy](1, [request_of(task) for task in tasks])
    simulation = Simulation(workload, Policy(fabric=(), scoring=scoring), patient=False)
    placed = simulation.run().placed
    held = simulation.state.cluster.placements
    assert simulation.state.cluster.check() == []
    uids = [job.pods[0].uid for job in jobs]
    return [(placed[uid], held[uid].devices) if uid in placed else ("", ()) for uid in uids]


@cache
def of_scene(policy: str, seed: int) -> list[tuple[str, tuple[int, ...]]]:
    return simulated(policy, *scene(seed))


@pytest.mark.slow
@pytest.mark.parametrize("policy", published.POLICIES)
@pytest.mark.parametrize("chunk", range(4))
def test_every_decision_is_the_published_formula_s(policy: str, chunk: int) -> None:
    for seed in seeds(60)[chunk::4]:
        machines, tasks = scene(seed)
        assert of_scene(policy, seed) == published.place(policy, machines, tasks, tasks), seed


@pytest.mark.slow
def test_the_scenes_distinguish_the_policies() -> None:
    equal = Counter[str]()
    for seed in range(16):
        answers = {name: of_scene(name, seed) for name in POLICIES}
        equal.update(name for name, answer in answers.items() if answer == answers["tightest"])
    # The default places the first pods as `tightest` does.
    assert equal["dovetail"] == equal["tightest"] == 16
    assert all(equal[name] <= 8 for name in POLICIES if name not in ("dovetail", "tightest")), equal


def test_random_spreads_over_nodes_and_gpus_and_is_the_seed_s() -> None:
    nodes = [Node(f"n{i}", ((CPU, 64_000), (GPU, 4), (PODS, 1000))) for i in range(10)]
    jobs = [SimJob(i, (Pod(f"p{i}", "ns", f"p{i}", Request(gpu_milli=100)),)) for i in range(200)]
    workload = Workload("w", tuple(map(NodeChanged, nodes)), tuple(jobs))

    def run(seed: int) -> list[tuple[str, tuple[int, ...]]]:
        simulation = Simulation(workload, Policy(scoring=POLICIES["random"](seed, ())), patient=False)
        placed = simulation.run().placed
        return [(node, simulation.state.cluster.placements[uid].devices) for uid, node in placed.items()]

    assert run(1) == run(1) != run(2)
    counts = Counter(run(1))
    assert len(counts) == 40
    assert max(counts.values()) <= 10
