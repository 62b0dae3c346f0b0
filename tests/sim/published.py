# SPDX-License-Identifier: Apache-2.0
"""The published policies word by word, on nodes that are lists of numbers: one pod after another, every node scored
from the formula of the paper or of its artifact. Slow and without any array; floats and fractions as they come."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

from msgspec import Struct, field


class Machine(Struct):
    """`gpus` has the idle milli of each GPU, `kinds` the GPU affinity of the pods on it (shared, 1, 2 ... GPUs)."""

    name: str
    cpu_milli: int
    model: str
    gpus: list[int]
    kinds: Counter[str] = field(default_factory=Counter)


class Task(Struct, frozen=True):
    """`milli` is per GPU; an empty `models` is any."""

    cpu_milli: int
    count: int
    milli: int
    models: tuple[str, ...] = ()

    @property
    def asked(self) -> int:
        return self.count * self.milli

    @property
    def kind(self) -> str:
        return "share" if 0 < self.milli < 1000 else f"{self.count}-gpu" if self.count else ""


def fits(machine: Machine, task: Task) -> bool:
    if machine.cpu_milli < task.cpu_milli or (task.models and machine.model not in task.models):
        return False
    milli = task.milli
    return len([gpu for gpu in machine.gpus if gpu >= milli]) >= task.count


def after(machine: Machine, task: Task, gpus: list[int]) -> Machine:
    left = [gpu - (task.milli if i in gpus else 0) for i, gpu in enumerate(machine.gpus)]
    return Machine(machine.name, machine.cpu_milli - task.cpu_milli, machine.model, left, machine.kinds)


def first_free(machine: Machine, task: Task) -> list[int]:
    return [i for i, gpu in enumerate(machine.gpus) if gpu == 1000][: task.count]


def tightest(machine: Machine, task: Task) -> list[int]:
    if task.kind != "share":
        return first_free(machine, task)
    return [min((gpu, i) for i, gpu in enumerate(machine.gpus) if gpu >= task.milli)[1]]


def typical(tasks: list[Task]) -> dict[Task, int]:
    """The most frequent classes and how many pods each has, until they cover 95 % of the pods; ties in the order of the
    list."""
    chosen: dict[Task, int] = {}
    for task, count in Counter(tasks).most_common():
        if sum(chosen.values()) >= Fraction(95, 100) * len(tasks):
            break
        chosen[task] = count
    return chosen


def fragmentation(machine: Machine, mix: dict[Task, int]) -> Fraction:
    """Each class weighs as much as its share of the pods of all of them."""
    total, idle = 0, sum(machine.gpus)
    for task, count in mix.items():
        if task.count and fits(machine, task):
            total += count * sum([gpu for gpu in machine.gpus if gpu < task.milli])
        else:
            total += count * idle
    return Fraction(total, sum(mix.values()))


def fgd_score(machine: Machine, task: Task, gpus: list[int], mix: dict[Task, int], before: Fraction) -> int:
    fall = before - fragmentation(after(machine, task, gpus), mix)
    return int(100 / (1 + math.exp(-fall / 1000)))


def fgd(machine: Machine, task: Task, mix: dict[Task, int]) -> tuple[int, list[int]]:
    before = fragmentation(machine, mix)
    if task.kind != "share":
        gpus = first_free(machine, task)
        return fgd_score(machine, task, gpus, mix, before), gpus
    possible = [i for i, gpu in enumerate(machine.gpus) if gpu >= task.milli]
    scored = [(fgd_score(machine, task, [i], mix, before), -i) for i in possible]
    score, gpu = max(scored)
    return score, [-gpu]


def bestfit(machine: Machine, task: Task, mix: object) -> tuple[int, list[int]]:
    cpu = Fraction(machine.cpu_milli - task.cpu_milli, 128_000)
    gpu = Fraction(sum(machine.gpus) - task.asked, 8_000)
    return int(100 * (1 - (cpu + gpu) / 2)), tightest(machine, task)


def dotprod(machine: Machine, task: Task, mix: object) -> tuple[int, list[int]]:
    cpu = Fraction(machine.cpu_milli * task.cpu_milli, 128_000**2)
    gpu = Fraction(sum(machine.gpus) * task.asked, 8_000**2)
    return int(100 * (1 - (cpu + gpu) / 2)), tightest(machine, task)


def packing(machine: Machine, task: Task, mix: object) -> tuple[int, list[int]]:
    gpus = tightest(machine, task)
    if not task.count:
        return 0, gpus
    free = machine.gpus.count(1000)
    if free == len(machine.gpus):
        return max(33 - free, free), gpus
    fresh = sum(machine.gpus[i] == 1000 for i in gpus)
    if fresh:
        return max(50 - fresh, 33), gpus
    return max(100 - sum(machine.gpus[i] // 10 for i in gpus) // 10, 50), gpus


def clustering(machine: Machine, task: Task, mix: object) -> tuple[int, list[int]]:
    gpus = tightest(machine, task)
    if not task.kind:
        return 0, gpus
    fullness = 25 * (8_000 - sum(machine.gpus)) // 8_000
    kinds = [kind for kind, count in machine.kinds.items() if kind and count]
    if task.kind in kinds:
        return fullness + (75 if len(kinds) == 1 else 50), gpus
    return fullness + (0 if kinds else 25), gpus


POLICIES = {"fgd": fgd, "bestfit": bestfit, "dotprod": dotprod, "packing": packing, "clustering": clustering}


def place(
    policy: str, machines: list[Machine], tasks: list[Task], mix: list[Task]
) -> list[tuple[str, tuple[int, ...]]]:
    """(node, GPUs) of each task in turn; ("", ()) where it does not fit anywhere and is dropped."""
    known, placed = typical(mix), []
    for task in tasks:
        found = [(machine, *POLICIES[policy](machine, task, known)) for machine in machines if fits(machine, task)]
        if not found:
            placed.append(("", ()))
            continue
        machine, _, gpus = max(found, key=lambda each: each[1])
        machine.cpu_milli -= task.cpu_milli
        machine.kinds[task.kind] += 1
        for gpu in gpus:
            machine.gpus[gpu] -= task.milli
        placed.append((machine.name, tuple(gpus)))
    return placed
