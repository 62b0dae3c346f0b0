# SPDX-License-Identifier: Apache-2.0
"""Over long virtual time, with a moving clock: evictions are few, they end, and they cost a bounded part of the
work."""

import random
from collections import Counter

import pytest

from dovetail.core import events as ev
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Gang, Node, Pod, Request, Work
from dovetail.core.policy import Policy
from dovetail.core.queues.types import MODEL_LABEL, Queue
from dovetail.core.state import State
from tests.breadth import seeds
from tests.core.lives import STEP_MS, Life

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
LONG_MS = 4 * MINUTE_MS
"""Between steps where 12 hours pass or more: no job is evicted before it ran for ten minutes."""
GIB = 1 << 30


def node(name: str, gpus: int = 8, model: str = "") -> ev.Event:
    amounts = ((CPU, gpus * 16_000), (MEMORY, gpus * 128 * GIB), (GPU, gpus), (PODS, 110))
    return ev.NodeChanged(Node(name, tuple(sorted(amounts)), ((MODEL_LABEL, model),) if model else ()))


def pod(name: str, gpus: int, queue: str, gang: str = "", cpu: int = 8, **more: object) -> Pod:
    """As users write them: CPU and memory with every GPU, made by a controller."""
    amounts = ((CPU, cpu * 1000 * max(1, gpus)), (GPU, gpus), (MEMORY, 32 * GIB * max(1, gpus)))
    model = more.pop("model", "")
    selector = ((MODEL_LABEL, str(model)),) if model else ()
    request = Request(tuple(one for one in amounts if one[1]), node_selector=selector)
    return Pod(name, "ns", name, request, gang=gang, queue=queue, owner=f"owner-of-{name}", **more)


def queue(name: str, gpus: int = 0, **more: object) -> ev.Event:
    return ev.QueueChanged(Queue(name, guarantee=(("gpu", 1000 * gpus),) if gpus else (), **more))


def life(*events: ev.Event, least_ms: int = STEP_MS, **policy: object) -> Life:
    made = Life(State(Policy(fabric=(), **policy)), grace_ms=30_000, least_ms=least_ms)
    made.at(0, *events)
    return made


def per_hour(made: Life, from_ms: int, until_ms: int) -> float:
    return sum(from_ms <= at_ms < until_ms for at_ms, _ in made.losses) * HOUR_MS / (until_ms - from_ms)


def test_jobs_within_their_guarantees_do_not_evict_each_other_for_the_cpus_beside_their_gpus() -> None:
    """One node of either model, both teams want the H100; the guarantee names GPUs alone."""
    made = life(node("h", 4, "H100"), node("a", 4, "A100"), queue("x", 4), queue("y", 4))
    for name in "xy":
        made.at(0, *(ev.PodChanged(pod(f"{name}{i}", 1, name, model="H100", created_ms=1)) for i in range(4)))
    made.live(12 * HOUR_MS)
    assert made.evicted == []


def test_a_guarantee_of_cpus_takes_no_gpus_back() -> None:
    made = life(node("a", 4), ev.QueueChanged(Queue("x", guarantee=((CPU, 64_000),))), queue("y", 4))
    made.at(0, *(ev.PodChanged(pod(f"y{i}", 1, "y", created_ms=1)) for i in range(4)))
    made.at(MINUTE_MS, ev.PodChanged(pod("x0", 1, "x", created_ms=MINUTE_MS)))
    made.live(2 * HOUR_MS)
    assert made.evicted == []


def test_a_guarantee_is_released_at_once_and_stays_there() -> None:
    made = life(node("a"), queue("x", 4), queue("y"))
    made.at(0, *(ev.PodChanged(pod(f"y{i}", 1, "y", created_ms=1)) for i in range(8)))
    made.at(MINUTE_MS, *(ev.PodChanged(pod(f"x{i}", 1, "x", created_ms=MINUTE_MS)) for i in range(4)))
    made.live(12 * HOUR_MS)
    assert len(made.evicted) == 4
    assert all(made.started_ms[f"x{i}"] <= 4 * MINUTE_MS for i in range(4))


def test_a_job_that_was_evicted_is_left_alone_for_longer_each_time_also_by_those_within_their_guarantee() -> None:
    made = life(node("a", 1), queue("x", 1), queue("y"))
    made.at(0, ev.PodChanged(pod("y", 1, "y", created_ms=1)))
    for number in range(60):
        when_ms = (2 + number) * MINUTE_MS
        made.runs_ms[f"x{number}"] = MINUTE_MS // 4
        made.at(when_ms, ev.PodChanged(pod(f"x{number}", 1, "x", created_ms=when_ms)))
    made.live(HOUR_MS)
    assert {name for name, _ in made.evicted} == {"y"}
    assert [ran_ms // MINUTE_MS for _, ran_ms in made.evicted][:6] == [2, 1, 2, 4, 8, 10]


@pytest.mark.slow
@pytest.mark.parametrize(("queues", "half_life_ms"), [(2, HOUR_MS), (10, 7 * 24 * HOUR_MS)])
def test_jobs_larger_than_what_is_due_do_not_take_turns_where_all_work_would_be_lost(
    queues: int, half_life_ms: int
) -> None:
    made = life(node("a"), least_ms=LONG_MS)
    for number in range(queues):
        made.at(0, queue(f"q{number}", half_life_ms=half_life_ms))
        made.at(number * MINUTE_MS, ev.PodChanged(pod(f"p{number}", 8, f"q{number}", created_ms=number * MINUTE_MS)))
    made.live(12 * HOUR_MS)
    assert made.evicted == []


@pytest.mark.slow
@pytest.mark.parametrize("queues", [2, 5])
def test_jobs_larger_than_what_is_due_take_turns_where_they_save_their_work(queues: int) -> None:
    work = Work(checkpoint_interval_ms=10 * MINUTE_MS, startup_ms=5 * MINUTE_MS)
    made = life(node("a"), least_ms=LONG_MS)
    for number in range(queues):
        made.at(0, queue(f"q{number}", half_life_ms=24 * HOUR_MS))
        made.at(0, ev.PodChanged(pod(f"p{number}", 8, f"q{number}", created_ms=1, work=work)))
    made.live(24 * HOUR_MS)
    assert len({name for name, _ in made.evicted}) == queues
    assert per_hour(made, 0, 24 * HOUR_MS) < 0.5
    assert 10 * sum(lost for _, lost in made.losses) <= made.used_milli_ms


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "queues", "half_life_ms"),
    [(1, 2, HOUR_MS), (1, 2, 7 * 24 * HOUR_MS), (8, 3, HOUR_MS), (8, 3, 7 * 24 * HOUR_MS)],
)
def test_the_odd_gpu_does_not_change_hands(gpus: int, queues: int, half_life_ms: int) -> None:
    made = life(node("a", gpus), least_ms=LONG_MS)
    for number in range(queues):
        made.at(0, queue(f"q{number}", half_life_ms=half_life_ms))
        made.at(0, *(ev.PodChanged(pod(f"p{number}-{i}", 1, f"q{number}", created_ms=i + 1)) for i in range(gpus)))
    made.live(12 * HOUR_MS)
    assert len(made.evicted) <= gpus


@pytest.mark.parametrize("weights", [(1, 2), (1, 3), (2, 3)])
def test_the_only_gpu_stays_where_it_is_although_more_of_it_is_due_to_another(weights: tuple[int, int]) -> None:
    """Whoever holds it has more than is due: to take it would only reverse which queue waits for its due."""
    made = life(node("a", 1), least_ms=LONG_MS, history_milli=0)
    for number, (name, weight) in enumerate(zip("xy", weights, strict=True), 1):
        made.at(0, queue(name, weight=weight))
        made.at(number * MINUTE_MS, ev.PodChanged(pod(name, 1, name, created_ms=number * MINUTE_MS)))
    made.live(2 * HOUR_MS)
    assert list(made.started_ms) == ["x"]
    assert made.evicted == []


def random_life(dice: random.Random, hours: int) -> tuple[Life, int]:
    """Any queues, and jobs that come over the first hours; some end, some never do, some save their work."""
    sizes = [dice.choice([4, 8]) for _ in range(dice.randint(1, 3))]
    made = life(*(node(f"n{i}", size) for i, size in enumerate(sizes)), least_ms=LONG_MS)
    names = [f"q{number}" for number in range(dice.choice([2, 3, 5]))]
    deep = dice.random() < 0.4
    terms = {"half_life_ms": dice.choice([MINUTE_MS, HOUR_MS, 24 * HOUR_MS])}
    made.at(0, *([queue("above", weight=dice.randint(1, 3), **terms)] if deep else []))
    for number, name in enumerate(names):
        parent = "above" if deep and number else ""
        guarantee = dice.choice([0, 0, 1, 2, 4]) if not parent else 0
        made.at(0, queue(name, guarantee, parent=parent, weight=dice.randint(1, 3), **terms))
    for number in range(dice.randint(4, 16)):
        name, size, gpus = f"j{number}", dice.choice([1, 1, 1, 2, 4]), dice.choice([0, 1, 1, 2, 4, 8])
        least = dice.randint(1, size)
        work = Work(
            checkpoint_interval_ms=dice.choice([0, 0, 5, 30]) * MINUTE_MS,
            startup_ms=dice.choice([0, 2, 10]) * MINUTE_MS,
            preemptible=dice.choice([None, None, None, True, False]),
            preempts=dice.random() < 0.9,
        )
        when_ms = dice.choice([0, 0, dice.randint(0, 4 * 60) * MINUTE_MS])
        about = {"queue": dice.choice(names), "priority": dice.choice([0, 0, 0, 1]), "work": work}
        gang = name if size > 1 else ""
        cpu = dice.choice([1, 8, 15])
        pods = [pod(f"{name}-{i}", gpus, gang=gang, cpu=cpu, created_ms=when_ms + 1, **about) for i in range(size)]
        if dice.random() < 0.4:
            made.runs_ms |= {one.name: dice.choice([5, 60, 300]) * MINUTE_MS for one in pods}
        reported = [ev.GangChanged(Gang(gang, "ns", gang, least, created_ms=when_ms + 1))] if gang else []
        made.at(when_ms, *reported, *map(ev.PodChanged, pods))
    for tick in range(1, 3 * hours):
        made.at(tick * 20 * MINUTE_MS, ev.NodeChanged(Node("tick", labels=(("tick", str(tick)),))))
    return made, sum(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(5))
def test_evictions_are_few_and_cost_little_whatever_the_queues_and_jobs(seed: int) -> None:
    hours = 12
    made, gpus = random_life(random.Random(seed), hours)
    made.live(hours * HOUR_MS)
    assert made.state.cluster.check() == []
    times = Counter(name for name, _ in made.evicted)
    assert per_hour(made, hours // 2 * HOUR_MS, hours * HOUR_MS) <= 1
    assert max(times.values(), default=0) <= hours / 2
    lost = sum(lost for _, lost in made.losses)
    assert 5 * lost <= made.used_milli_ms + 5 * HOUR_MS * 1000 * gpus


@pytest.mark.parametrize(("jobs", "gpus", "after_min"), [(1, 4, 20), (2, 2, 40), (4, 1, 80)])
def test_a_larger_job_is_left_alone_longer_by_smaller_ones(jobs: int, gpus: int, after_min: int) -> None:
    """Most of what it holds, and loses, would be of no use to them."""
    made = life(node("a"), queue("x"), queue("y"))
    made.at(0, ev.PodChanged(pod("x", 8, "x", created_ms=1)))
    made.at(MINUTE_MS, *(ev.PodChanged(pod(f"y{i}", gpus, "y", created_ms=MINUTE_MS)) for i in range(jobs)))
    made.live(2 * HOUR_MS)
    assert [name for name, _ in made.evicted] == ["x"]
    assert after_min <= made.evicted[0][1] / MINUTE_MS <= after_min + 2


@pytest.mark.parametrize(("runs_min", "evicted"), [(30, False), (120, True)])
def test_a_job_that_ends_sooner_than_it_could_do_its_work_again_is_left_alone(runs_min: int, evicted: bool) -> None:
    made = life(node("a"), queue("x"), queue("y"))
    work = Work(max_runtime_ms=runs_min * MINUTE_MS)
    made.runs_ms["x"] = work.max_runtime_ms
    made.at(0, ev.PodChanged(pod("x", 8, "x", created_ms=1, work=work)))
    made.at(MINUTE_MS, ev.PodChanged(pod("y", 4, "y", created_ms=MINUTE_MS)))
    made.live(HOUR_MS)
    assert [name for name, _ in made.evicted] == (["x"] if evicted else [])
    assert (made.started_ms["y"] >= work.max_runtime_ms) is not evicted
