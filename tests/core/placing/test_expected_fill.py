# SPDX-License-Identifier: Apache-2.0
"""The scoring that learns which pods come, against its formulas word by word, on nodes that are lists of numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision
from dovetail.core.devices.gpu_sharing import Sharing
from dovetail.core.devices.layout import Layout
from dovetail.core.event_handlers import apply
from dovetail.core.events import NodeChanged, PodChanged, PodRemoved
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Node, NodeTerm, Pod, PreferredNodes, Request, Requirement, Taint
from dovetail.core.placing import kernel
from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.placing.expected_use import Arriving, expected_use, filled
from dovetail.core.placing.place_prices import REPRICE_PERMILLE
from dovetail.core.policy import Policy
from dovetail.core.state import State
from tests.breadth import seeds
from tests.sim.published import Machine, Task, fits
from tests.sim.test_policies import MODEL, request_of

LEARN_FROM = ExpectedFill().learn_from


def units_of(cpu_milli: int) -> int:
    """Half cores, rounded to the next above from a fifth on."""
    return (cpu_milli + 399) // 500


def recursion(classes: Sequence[tuple[int, int, int]], stop: int) -> Iterator[object]:
    """The expected use of a GPU and the cores with it, as written; classes are (milli, cpu_milli, rate)."""

    @cache
    def both(level: int, units: int) -> tuple[int, int]:
        total, use, cores = stop, 0, 0
        for milli, cpu_milli, rate in classes:
            parts, half_cores = -(-milli // 10), units_of(cpu_milli)
            if not milli:
                if not cpu_milli:
                    continue
                half_cores = max(half_cores, 1)
            if parts > level or half_cores > units:
                continue
            further, more = both(level - parts, units - half_cores)
            total += rate
            use += rate * (256 * milli + further)
            cores += rate * (cpu_milli + more)
        return (use // total, cores // total) if level else (0, 0)

    return both  # type: ignore[return-value]


class Reference(Struct, dict=True):
    """The policy on machines, made of those that are there now, of what came so far, and of how many with GPUs ended
    and are there."""

    machines: list[Machine]
    seen: list[Task]
    ended: int = 0
    present: int = 0

    def __post_init__(self) -> None:
        counts: dict[Task, int] = {}
        for task in self.seen:
            counts[task] = counts.get(task, 0) + 1
        classes = sorted(counts.items(), key=lambda one: -one[1])
        gpus = sum(len(m.gpus) for m in self.machines)
        asked = max(sum(count * task.asked for task, count in classes), 1)
        models: dict[tuple[str, ...], int] = {}
        for task, count in classes:
            models[task.models] = models.get(task.models, 0) + count
        usual = max(models, key=models.__getitem__)
        self.stop = max((asked << 20) // (10_000 * len(self.seen)), 1)
        self.rates: list[tuple[Task, int]] = []
        self.priced: list[tuple[Task, bool]] = []
        self.counts, self.asked = counts, asked
        for task, count in classes:
            allowed = [m for m in self.machines if may(task, m)]
            rooms = [gpu for m in allowed if m.cpu_milli >= task.cpu_milli for gpu in m.gpus]
            if task.count <= 1:
                places = max(sum(gpu >= task.milli for gpu in rooms), 1)
                rate = (count << 20) * gpus // (len(self.seen) * places)
                self.rates.append((task, max(rate if task.count else rate * 10 // 100, 1)))
            everywhere = all(may(task, m) for m in self.machines if not usual or m.model in usual)
            if task.count > 1 or (task.count and not everywhere):
                self.priced.append((task, task.count > 1))
        self.price_of: dict[Task, int] = {}
        self.reprice(everything=True)
        self.tables: dict[str, object] = {}

    def reprice(self, everything: bool = False) -> int:
        """Price the places that are there now; returns by how many thousandths of its pod a price changed most."""
        idle, most = sum(sum(m.gpus) for m in self.machines), 0
        for task, several in self.priced:
            if not several and not everything:
                continue
            places = max(sum(places_on(m, task) for m in self.machines if may(task, m)), 1)
            demand = sum(self.counts[one] for one in self.rivals(task) if one.cpu_milli >= task.cpu_milli)
            wanted = (demand * idle << 10) // self.asked
            if not several and self.ended:
                wanted += (demand * self.present << 10) // (8 * self.ended)
            chance = (min(wanted // places, 1024) ** 2 << 10) // (2 if several else 1)
            if several and self.ended:
                arrivals = demand * self.present
                chance = max(chance, power((arrivals << 30) // (arrivals + self.ended), places))
            price = task.asked * 256 * chance >> 30
            most = max(most, abs(price - self.price_of.get(task, 0)) * 1000 // (task.asked * 256))
            self.price_of[task] = price
        return most

    def rivals(self, task: Task) -> list[Task]:
        """The classes that want the same places, those of the fewest cores first; one of a single GPU has none."""
        if task.count == 1:
            return [task]
        same = [
            one for one, _ in self.priced if (one.count, one.milli, one.models) == (task.count, task.milli, task.models)
        ]
        return sorted(same, key=lambda one: one.cpu_milli)

    def added(self, task: Task) -> int:
        """What the cores that a class needs add to the price of a place."""
        same = self.rivals(task)
        less = max((self.price_of[one] for one in same[: same.index(task)]), default=0)
        return max(self.price_of[task] - less, 0)

    def worth(self, machine: Machine) -> int:
        if machine.model not in self.tables:
            here = [(task.asked, task.cpu_milli, rate) for task, rate in self.rates if may(task, machine)]
            self.tables[machine.model] = recursion(here, self.stop)
        table = self.tables[machine.model]
        assert callable(table)
        total, cores = 0, machine.cpu_milli
        for gpu in sorted(machine.gpus, reverse=True):
            units, rest = divmod(min(cores, 269 * 500), 500)
            (use, taken), (use_next, taken_next) = table(gpu // 10, units), table(gpu // 10, units + 1)
            total += (use * (500 - rest) + use_next * rest) // 500
            cores = max(cores - (taken * (500 - rest) + taken_next * rest) // 500, 0)
        groups = {tuple(self.rivals(task)) for task, _ in self.priced if may(task, machine)}
        for group in groups:
            places = [places_on(machine, task) for task in group]
            for place in range(1, max(places) + 1):
                total += max(self.price_of[task] for task, count in zip(group, places, strict=True) if count >= place)
            total += sum(self.added(task) * self.chance(machine, task) >> 10 for task in group)
        return total

    def chance(self, machine: Machine, task: Task) -> int:
        """That a further place is there in time, in 1/1024."""
        idle = sum(gpu // task.milli for gpu in machine.gpus)
        busy = -(idle + 1) % task.count + 1
        if task.count == 1 or idle + busy > len(machine.gpus):
            return 0
        chance = 1024
        for of_busy in range(1, busy + 1):
            chance = chance * of_busy * self.ended // max(of_busy * self.ended + self.counts[task] * self.present, 1)
        return chance

    def best(self, task: Task) -> tuple[str, tuple[int, ...]]:
        """The node and its GPUs; of several whole GPUs the first."""
        found = []
        for number, machine in enumerate(self.machines):
            if not fits(machine, task):
                continue
            cpu_milli, before = machine.cpu_milli - task.cpu_milli, self.worth(machine)
            if task.kind == "share":
                ways = [(gpu, (i,)) for i, gpu in enumerate(machine.gpus) if gpu >= task.milli]
            else:
                whole = [i for i, gpu in enumerate(machine.gpus) if gpu == 1000]
                ways = [(0, tuple(whole[: task.count]))]
            for room, devices in ways:
                left = [gpu - task.milli * (i in devices) for i, gpu in enumerate(machine.gpus)]
                change = self.worth(replace(machine, cpu_milli=cpu_milli, gpus=left)) - before
                idle, cores = min(sum(machine.gpus) >> 3, 2047), min(cpu_milli >> 7, 2047)
                looseness = (idle, cores) if task.count <= 1 else (idle, cores >> 5)
                found.append(((-change, *looseness, number, room, devices), machine.name, devices))
        return min(found)[1:] if found else ("", ())


def power(chance: int, times: int) -> int:
    """In 1/2^30, by the binary digits of the exponent, rounded down at each product."""
    powers = [chance]
    for _ in range(times.bit_length() - 1):
        powers.append(powers[-1] * powers[-1] >> 30)
    found = 1 << 30
    for i, one in enumerate(powers):
        if times >> i & 1:
            found = found * one >> 30
    return found


def may(task: Task, machine: Machine) -> bool:
    return not task.models or machine.model in task.models


def places_on(machine: Machine, task: Task) -> int:
    places = sum(gpu // task.milli for gpu in machine.gpus) // task.count
    return min(places, machine.cpu_milli // task.cpu_milli) if task.cpu_milli else places


def scene(seed: int) -> tuple[list[Machine], list[Task]]:
    chance = random.Random(seed)
    machines = [
        Machine(
            f"n{i}", chance.choice([16, 32, 64, 96]) * 1000, chance.choice("AB"), [1000] * chance.choice([1, 2, 4, 8])
        )
        for i in range(chance.randint(25, 35))
    ]
    kinds = [(0, 0), (1, 200), (1, 155), (1, 460), (1, 500), (1, 810), (1, 810), (1, 1000), (2, 1000), (4, 1000)]
    classes = [
        Task(
            chance.choice([100, 1000, 4000, 8000, 11_900]),
            *chance.choice(kinds),
            models=chance.choice([(), (), (), ("A",), ("A", "B"), ("C",)]),
        )
        for _ in range(chance.randint(4, 12))
    ]
    return machines, chance.choices(classes, weights=[chance.randint(1, 20) for _ in classes], k=LEARN_FROM + 60)


def node_of(machine: Machine) -> Node:
    amounts = ((CPU, machine.cpu_milli), (GPU, len(machine.gpus)), (PODS, 1000))
    return Node(machine.name, amounts, ((MODEL, machine.model),))


def started(machines: Sequence[Machine]) -> State:
    state = State(Policy(fabric=(), scoring=ExpectedFill(), reserve=False, preempt=False))
    step(state, [NodeChanged(node_of(machine)) for machine in machines], 1)
    return state


def come(state: State, number: int, task: Task, **more: object) -> tuple[str, tuple[int, ...]]:
    """What one pod gets; a refused one leaves."""
    uid = f"p{number}"
    decided = step(state, [PodChanged(replace(Pod(uid, "ns", uid, request_of(task)), **more))], number + 2)
    binds = [one for one in decided if isinstance(one, Bind)]
    if not binds:
        step(state, [PodRemoved(uid)], number + 2)
        return "", ()
    return binds[0].node, state.cluster.placements[uid].devices


def follow(machines: Sequence[Machine], task: Task, node: str, devices: tuple[int, ...]) -> None:
    for machine in machines:
        if machine.name == node:
            machine.cpu_milli -= task.cpu_milli
            for gpu in devices:
                machine.gpus[gpu] -= task.milli


@pytest.fixture(params=["native", "pure"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with the kernel, where there is one, and once with numpy alone."""
    if request.param == "native" and not kernel.BUILT:
        pytest.skip("there is no kernel")
    monkeypatch.setattr(kernel, "BUILT", request.param == "native")


@pytest.mark.slow
@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("leave_percent", [0, 50, 90])
@pytest.mark.parametrize("seed", seeds(3))
def test_every_decision_is_the_formula_s(seed: int, leave_percent: int) -> None:
    machines, tasks = scene(seed)
    chance, present, ended = random.Random(seed), list[tuple[str, Task, str, tuple[int, ...]]](), 0
    state, due, learnings, reference, reported, repriced = started(machines), LEARN_FROM, 0, None, 0, 0
    scoring, learned = state.policy.scoring, None
    for number, task in enumerate(tasks):
        if present and chance.randrange(100) < leave_percent:
            uid, its_task, node, devices = present.pop(chance.randrange(len(present)))
            apply(state, PodRemoved(uid))
            follow(machines, replace(its_task, cpu_milli=-its_task.cpu_milli, milli=-its_task.milli), node, devices)
            ended += its_task.count > 0
        there = sum(one.count > 0 for _, one, _, _ in present)
        for seen in number, number + 1:
            # Once before the pod comes, when what is idle has changed, and once with it.
            version = learned.version if learned is not None else 0
            if seen > number:
                got = come(state, number, task)
            else:
                scoring.version(state.cluster)
            if (now := state.cluster.learned.get(scoring)) is not learned:
                # Not at once where a pod is refused without a look at the nodes.
                assert seen >= due
                learned, due, learnings = now, seen + seen // 8 + 1, learnings + 1
                reference = Reference([replace(m, gpus=list(m.gpus)) for m in machines], tasks[:seen], ended, there)
            elif reference is not None and seen == number:
                reference.machines, kept = machines, dict(reference.price_of)
                changed = reference.reprice() >= REPRICE_PERMILLE
                assert (learned.version != version) == changed
                repriced += changed
                reference.price_of = reference.price_of if changed else kept
        if reference is not None:
            reference.machines = machines
            assert got == reference.best(task), number
            reported += bool(got[0])
        if got[0]:
            present.append((f"p{number}", task, *got))
        follow(machines, task, *got)
    assert state.cluster.check() == []
    assert learnings >= 5
    assert reported >= 2
    assert repriced or (seed, leave_percent) not in {(1, 0), (6, 50), (11, 50)}, "no price followed what is idle"


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
def test_the_tables_are_the_recursion(seed: int) -> None:
    chance = random.Random(seed)
    classes = [
        (chance.choice([0, 0, 5, 190, 200, 333, 810, 1000]), chance.choice([0, 100, 101, 2000, 11_900, 90_000]), rate)
        for rate in (chance.randint(1, 2**22) for _ in range(chance.randint(1, 8)))
    ]
    stop = chance.choice([1, 2**10, 2**20])
    use, cores = expected_use([Arriving(*one) for one in classes], stop)
    table = recursion(classes, stop)
    assert callable(table)
    for level in range(0, 101, 5):
        for units in (0, 1, 2, 5, 17, 60, 181, 269):
            assert (use[level, units], cores[level, units]) == table(level, units), (level, units)


@pytest.mark.usefixtures("either")
def test_nothing_comes_and_nothing_is_expected() -> None:
    use, cores = expected_use([], 1)
    assert not use.any()
    assert not cores.any()


@pytest.mark.skipif(not kernel.BUILT, reason="there is no kernel")
@pytest.mark.parametrize("seed", range(8))
def test_the_kernel_fills_as_numpy_does(seed: int) -> None:
    chance, reported = random.Random(seed), []
    for tables in (kernel.fill, filled):
        classes = [
            Arriving(chance.randint(0, 1000), chance.choice([0, chance.randint(1, 130_000)]), chance.randint(1, 2**22))
            for _ in range(chance.randint(1, 60))
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel, "BUILT", tables is kernel.fill)
            reported.append(expected_use(classes, chance.randint(1, 2**20)))
        chance = random.Random(seed)
    assert all(np.array_equal(one, other) for one, other in zip(*reported, strict=True))
    assert reported[0][0].any()


@pytest.mark.skipif(not kernel.BUILT, reason="there is no kernel")
@pytest.mark.parametrize(
    ("cells", "steps"),
    [(3 * 101 * 269, [(1, 1, 1)]), (3 * 101 * 270, [(0, 0, 1)]), (3 * 101 * 270, [(-1, 2, 1)])],
    ids=["too few cells", "a step of nothing", "a step up"],
)
def test_arrays_that_do_not_belong_together_are_refused(cells: int, steps: list[tuple[int, int, int]]) -> None:
    fitting, found = np.ones(cells, dtype=np.int64), np.empty(2 * 101 * 270, dtype=np.int64)
    columns = np.array(steps, dtype=np.int64).T.copy()
    with pytest.raises(ValueError, match="do not belong together"):
        kernel._kernel.fill(fitting, *columns, found)


def learned(machines: list[Machine], *mix: tuple[Task, int]) -> State:
    """A state that saw these pods come, and leave before any got a node."""
    state = started(machines)
    for number, task in enumerate(task for task, count in mix for _ in range(count)):
        apply(state, PodChanged(Pod(f"p{number}", "ns", f"p{number}", request_of(task))))
        apply(state, PodRemoved(f"p{number}"))
    return state


def machine(name: str, cpu_milli: int, *gpus: int) -> Machine:
    return Machine(name, cpu_milli, "A", list(gpus))


LARGE, SMALL, HALF = Task(4000, 1, 810), Task(1000, 1, 190), Task(4000, 1, 500)


def test_a_small_share_goes_where_a_large_one_left_its_sliver() -> None:
    """By tightness alone it would go beside the one that leaves room for another half."""
    state = learned([machine("a", 64_000, 1000), machine("b", 64_000, 1000)], (LARGE, 40), (SMALL, 30), (HALF, 30))
    first = come(state, 1000, LARGE)
    other = come(state, 1001, HALF)
    assert first[0] != other[0]
    assert come(state, 1002, SMALL) == first
    assert come(state, 1003, HALF) == other


def test_cores_are_left_to_the_gpus_that_need_them() -> None:
    """Of two nodes with idle GPUs the one that has cores to spare takes the pod without GPUs, although it is looser."""
    tight, roomy = machine("a", 16_000, 1000, 1000), machine("b", 64_000, 1000, 1000)
    whole, plain = Task(8000, 1, 1000), Task(8000, 0, 0)
    assert come(started([tight, roomy]), 1, plain)[0] == "a"
    assert come(learned([tight, roomy], (whole, 90), (plain, 10)), 1000, plain)[0] == "b"


def test_a_pod_without_gpus_goes_to_a_node_without_any() -> None:
    machines = [machine("a", 64_000, 1000, 1000), machine("b", 64_000)]
    state = learned(machines, (Task(8000, 1, 1000), 90), (Task(8000, 0, 0), 10))
    assert come(state, 1000, Task(8000, 0, 0))[0] == "b"


@pytest.mark.parametrize("cpu_milli", [1000, 0])
def test_whole_nodes_are_kept_for_pods_of_several_gpus(cpu_milli: int) -> None:
    """A pod that breaks up no place for eight is welcome where more is idle, whether or not pods ask for cores."""
    machines = [machine("a", 64 * cpu_milli, *[1000] * 8), machine("b", 64 * cpu_milli, *[1000] * 15)]
    whole, large = Task(cpu_milli, 1, 1000), Task(8 * cpu_milli, 8, 1000)
    state = learned(machines, (whole, 50), (large, 50))
    assert {come(state, 1000 + i, whole)[0] for i in range(7)} == {"b"}
    assert {come(state, 2000 + i, large)[0] for i in range(2)} == {"a", "b"}


def test_where_pods_leave_a_node_that_is_almost_empty_is_kept_for_a_pod_of_several_gpus() -> None:
    """Seven GPUs are idle of both, but one of the nodes has eight. It has fewer cores, so it is the tighter one."""
    machines = [machine("eight", 60_000, *[1000] * 8), machine("seven", 128_000, *[1000] * 7)]
    whole, large = Task(1000, 1, 1000), Task(8000, 8, 1000)
    for ended, node in ((0, "eight"), (80, "seven")):
        state = learned(machines, (whole, 50), (large, 50))
        decided(state, PodChanged(Pod("busy", "ns", "busy", request_of(whole), node="eight", managed=False)))
        for number in range(ended):
            come(state, number, whole)
            apply(state, PodRemoved(f"p{number}"))
        assert come(state, 300, whole)[0] == node


def test_on_a_full_cluster_where_pods_leave_the_last_whole_node_is_kept() -> None:
    """Hardly any pod comes until it is full, but it goes on: where pods leave, others come. On the other node the pod
    takes cores that one more GPU needs."""
    machines = [machine("whole", 64_000, *[1000] * 8), machine("loose", 11_000, *[1000] * 3)]
    machines += [machine(f"full-{i}", 64_000, *[1000] * 8) for i in range(20)]
    one, large = Task(1000, 1, 1000), Task(8000, 8, 1000)
    for ended, node in ((0, "whole"), (80, "loose")):
        state = learned(machines, (one, 600), (large, 10))
        for i in range(20):
            busy = Pod(f"busy-{i}", "ns", f"busy-{i}", request_of(large), node=f"full-{i}", managed=False)
            decided(state, PodChanged(busy))
        for number in range(ended):
            come(state, number, one)
            apply(state, PodRemoved(f"p{number}"))
        assert come(state, 300, Task(10_000, 1, 1000))[0] == node


def test_what_a_pod_prefers_itself_comes_first() -> None:
    state = learned([machine("a", 16_000, 1000), machine("b", 64_000)], (Task(8000, 1, 1000), 90))
    term = NodeTerm((Requirement(MODEL, "In", ("A",)),))
    preference = PreferredNodes(1, NodeTerm((), (Requirement("metadata.name", "In", ("a",)),)))
    request = Request(((CPU, 8000),), node_terms=(term,), preferred_nodes=(preference,))
    [bind] = step(state, [PodChanged(Pod("x", "ns", "x", request))], 10**6)
    assert isinstance(bind, Bind)
    assert bind.node == "a"


def whole_run(names: Sequence[str], machines: Sequence[Machine], tasks: Sequence[Task]) -> list[object]:
    """What every pod gets, with the number of its node instead of the name."""
    state = started([replace(m, name=name, gpus=list(m.gpus)) for m, name in zip(machines, names, strict=True)])
    got = [come(state, number, task) for number, task in enumerate(tasks)]
    return [(names.index(node) if node else -1, devices) for node, devices in got]


@pytest.mark.parametrize("seed", [3, 7])
def test_names_do_not_matter(seed: int) -> None:
    machines, tasks = scene(seed)
    names = [m.name for m in machines]
    assert whole_run(names, machines, tasks) == whole_run(names[::-1], machines, tasks)


def test_few_pods_are_placed_as_by_the_tightest_fit() -> None:
    machines, tasks = scene(5)
    plain = State(Policy(fabric=(), reserve=False, preempt=False))
    step(plain, [NodeChanged(node_of(machine)) for machine in machines], 1)
    state = started(machines)
    for number, task in enumerate(tasks[: LEARN_FROM - 1]):
        assert come(state, number, task) == come(plain, number, task)


def test_what_is_learned_is_in_the_checkpoint() -> None:
    machines, tasks = scene(1)
    state = started(machines)
    for number, task in enumerate(tasks[:100]):
        come(state, number, task)
        if number % 2:
            apply(state, PodRemoved(f"p{number}"))
    checkpoint = take(state)
    assert sum(count for _, count in checkpoint.mix) == 100
    assert checkpoint.ended > 20
    one, other = restore(state.policy, checkpoint), restore(Policy(fabric=(), scoring=ExpectedFill()), checkpoint)
    assert (take(one).mix, take(one).ended) == (checkpoint.mix, checkpoint.ended)
    assert [come(one, 200 + i, task) for i, task in enumerate(tasks)] == [
        come(other, 200 + i, task) for i, task in enumerate(tasks)
    ]


def test_a_pod_counts_once_and_not_for_what_is_no_part_of_its_class() -> None:
    state = started([machine("a", 64_000, 1000)])
    request = Request(((CPU, 1000), (GPU, 1), (MEMORY, 5)))
    pod = Pod("p", "ns", "p", request)
    step(state, [PodChanged(pod)], 1)
    step(state, [PodChanged(replace(pod, node="a", bound_ms=2))], 2)
    step(state, [PodChanged(Pod("q", "ns", "q", replace(request, resources=((CPU, 1000), (GPU, 1), (MEMORY, 7)))))], 3)
    step(state, [PodChanged(Pod("r", "ns", "r", Request((("example.com/fpga", 1),))))], 4)
    step(state, [PodChanged(Pod("s", "ns", "s", request, node="a", managed=False))], 5)
    assert state.cluster.mix.records() == ((Request(((CPU, 1000), (GPU, 1))), 2),)


def test_old_counts_fade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.core.cluster.mix.MOST_COUNTED", 9)
    state = started([machine("a", 64_000, 1000)])
    for number, task in enumerate([LARGE] * 7 + [SMALL] * 1 + [HALF] * 2):
        apply(state, PodChanged(Pod(f"p{number}", "ns", f"p{number}", request_of(task))))
    assert state.cluster.mix.records() == ((request_of(LARGE), 3), (request_of(HALF), 1))
    assert state.cluster.mix.seen == 10


def decided(state: State, *events: object) -> list[Decision]:
    return step(state, events, 10**6)  # type: ignore[arg-type]


def test_nodes_that_come_and_change_are_taken_in() -> None:
    """A node of a kind that nobody knew, one that becomes unschedulable, and one that leaves."""
    state = learned([machine("a", 16_000, 1000)], (LARGE, 40), (SMALL, 30), (replace(HALF, models=("B",)), 5))
    new = replace(node_of(machine("b", 64_000, 1000, 1000)), labels=((MODEL, "B"),))
    decided(state, NodeChanged(new))
    assert come(state, 1000, replace(HALF, models=("B",)))[0] == "b"
    decided(state, NodeChanged(replace(new, taints=(Taint("t", "", "NoSchedule"),))))
    assert come(state, 1001, LARGE)[0] == "a"
    assert come(state, 1002, LARGE) == ("", ())
    decided(state, NodeChanged(new))
    assert come(state, 1003, LARGE)[0] == "b"
    assert state.cluster.check() == []


def test_a_share_by_memory_goes_where_its_thousandths_fit_best() -> None:
    """Of a GPU of 16,384 MiB an 810-share leaves 3,112; one of 3,000 goes beside it, not to a GPU of its own."""
    state = learned([machine("a", 64_000, 1000), machine("b", 64_000, 1000)], (LARGE, 60), (SMALL, 40))
    decided(
        state, *(NodeChanged(replace(node_of(machine(name, 64_000, 1000)), gpu_memory_mib=16_384)) for name in "ab")
    )
    by_memory = [Request(((CPU, 1000),), gpu_memory_mib=memory_mib) for memory_mib in (13_200, 3_000, 13_200)]
    for number, request in enumerate(by_memory):
        decided(state, PodChanged(Pod(f"m{number}", "ns", f"m{number}", request)))
    slots = [state.cluster.placements[f"m{number}"].slot for number in range(3)]
    assert slots[0] == slots[1] != slots[2]
    assert take(state).mix[-1] == (by_memory[1], 1)
    assert state.cluster.check() == []


def test_several_gpus_are_first_of_all_close() -> None:
    """The node with the better wiring wins, although the other one would lose nothing that is expected."""
    islands = [[4 * (i != j and i // 2 == j // 2) for j in range(4)] for i in range(4)]
    pcie = tuple(tuple(0 if i == j else 5 for j in range(4)) for i in range(4))
    layout = Layout((0, 0, 1, 1), pcie, tuple(map(tuple, islands)))
    state = learned([machine("used", 8000, *[1000] * 4), machine("whole", 64_000, *[1000] * 4)], (LARGE, 70))
    for name in ("used", "whole"):
        cpu_milli = 8000 if name == "used" else 64_000
        decided(state, NodeChanged(replace(node_of(machine(name, cpu_milli, *[1000] * 4)), layout=layout)))
    apart = Request(((CPU, 100), (GPU, 2)))
    decided(state, PodChanged(Pod("h", "ns", "h", apart, node="used", devices=(0, 2), managed=False)))
    decided(state, PodChanged(Pod("x", "ns", "x", apart)))
    assert state.cluster.placements["x"].slot == state.cluster.nodes.slots["whole"]


def test_replicas_and_slices_come_before_and_after_whole_gpus_as_ever() -> None:
    """A pod that asks for a GPU gets a whole one; replicas are the last resort, whatever is learned."""
    shared = Sharing(GPU, 4, 2)
    state = learned([machine("a", 64_000, 1000, 1000)], (LARGE, 70))
    decided(state, NodeChanged(replace(node_of(machine("s", 64_000, *[1000] * 8)), sharing=shared)))
    assert come(state, 1000, Task(1000, 1, 1000))[0] == "a"
    assert come(state, 1001, Task(1000, 1, 1000))[0] == "a"
    assert come(state, 1002, Task(1000, 1, 1000))[0] == "s"
    assert state.cluster.check() == []
