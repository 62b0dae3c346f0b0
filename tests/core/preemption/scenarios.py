# SPDX-License-Identifier: Apache-2.0
"""Scenarios of another scheduler's tests: what runs and waits, and what runs in the end. `read` takes them from tables.

A table has a scenario after each line `= NAME`:

    nodes 4 4@zone1 4:100      GPUs of each node; its zone; its memory in MB; `2mig`: so many MIG instances
    q0 2 limit=6 weight=1      a queue: GPUs guaranteed; `parent=`, `priority=`, `cpu=`: CPU and memory, all or none
    r0 q0 1: 0 0/1 > 1 -       a job: its queue, GPUs of each pod, where its pods are, where they are in the end
    evicted 1                  how many pods are evicted (0 by default)

GPUs of a pod are whole ones, a fraction (`0.5`), memory (`20MiB`), or MIG instances (`2mig`), each a seventh of one;
after a `+` come its CPUs and MB (`0+2c50m`).
Words before them: `build` cannot be preempted and `inference` neither, `interactive` can; each is of a higher priority
than the other jobs; `low` and `lower` are of a lower one. `zone`: the gang wants to be in one; `least=1`: so many of
its pods are enough; `groups=1,2`: so many of each of its sub-gangs.

A pod is `-` (waits, or runs nowhere in the end), on a node, or with a slash also on a GPU of it; `.1` is its sub-gang
and `*3` its GPUs where they are others. `+` runs somewhere in the end. Lines with `#` have the source.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.model import CPU, GPU, MEMORY, Gang, Node, Pod, Request, Work
from dovetail.core.policy import Policy
from tests.core.preemption.lives import HOUR_MS, MINUTE_MS, World, node, pod, queue

_TABLES = Path(__file__).parent / "kai"
_GPU_MEMORY_MIB = 100
_MB = 10**6
_ZONE = "zone"
_INSTANCE = "nvidia.com/mig-1g.10gb"
_PRIORITIES = {"lower": 48, "low": 49, "train": 50, "interactive": 75, "build": 100, "inference": 125}
_NOT_PREEMPTIBLE = {"build", "inference"}


class Task(Struct, frozen=True):
    """A pod, and whether it runs in the end."""

    name: str
    node: str
    gpu: int | None
    group: int | None
    size: str
    runs: bool


class Job(Struct, frozen=True):
    name: str
    queue: str
    kind: str
    tasks: tuple[Task, ...]
    least: int | None = None
    groups: tuple[int, ...] = ()
    zone: bool = False


class Scenario(Struct):
    name: str
    nodes: list[str] = field(default_factory=list)
    queues: list[tuple[str, float | None, dict[str, str]]] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    evicted: int = 0

    @property
    def running(self) -> set[str]:
        """The pods that run in the end."""
        return {task.name for job in self.jobs for task in job.tasks if task.runs}


class Outcome(Struct):
    """What came of a scenario here: which pods run on which node, how many pods were evicted for each cause, and for
    how long nobody was evicted at the end."""

    running: dict[str, str]
    evicted: Counter[str]
    gpus_milli: int
    calm_ms: int


def read(table: str) -> list[Scenario]:
    """The scenarios of a table."""
    found: list[Scenario] = []
    for line in (_TABLES / f"{table}.txt").read_text().splitlines():
        words = line.split()
        if not words or line.startswith("#"):
            continue
        match words[0]:
            case "=":
                found.append(Scenario(" ".join(words[1:])))
            case "nodes":
                found[-1].nodes = words[1:]
            case "evicted":
                found[-1].evicted = int(words[1])
            case _ if ":" in line.split(">")[0]:
                found[-1].jobs.append(_job(line))
            case name:
                least = None if words[1] == "-" else float(words[1])
                found[-1].queues.append((name, least, dict(word.split("=") for word in words[2:])))
    return found


def _job(line: str) -> Job:
    head, tasks = line.split(":")
    name, of, *words = head.split()
    before, after = tasks.split(">")
    places, ends = before.split(), after.split()
    assert len(places) == len(ends), line
    terms = dict(word.split("=") for word in words if "=" in word)
    kinds = [word for word in words if word in _PRIORITIES]
    sizes = [word for word in words if word[0].isdigit()]
    made = tuple(
        _task(name if len(places) == 1 else f"{name}-{i}", place, sizes[0], end != "-")
        for i, (place, end) in enumerate(zip(places, ends, strict=True))
    )
    groups = tuple(int(count) for count in terms["groups"].split(",")) if "groups" in terms else ()
    least = int(terms["least"]) if "least" in terms else None
    return Job(name, of, kinds[0] if kinds else "train", made, least, groups, "zone" in words)


def _task(name: str, place: str, size: str, runs: bool) -> Task:
    if "*" in place:
        place, size = place.split("*")
    place, _, group = place.partition(".")
    where, _, gpu = place.partition("/")
    at = "" if where == "-" else f"n{where}"
    return Task(name, at, int(gpu) if gpu else None, int(group) if group else None, size, runs)


def _node(name: str, spec: str) -> Node:
    spec, _, zone = spec.partition("@")
    gpus, _, memory = spec.partition(":")
    if gpus.endswith("mig"):
        gpus = gpus.removesuffix("mig")
        made = node(name, int(gpus))
        return replace(made, allocatable=tuple((_INSTANCE if of == GPU else of, own) for of, own in made.allocatable))
    made = replace(node(name, int(gpus), {_ZONE: zone} if zone else None), gpu_memory_mib=_GPU_MEMORY_MIB)
    if memory:
        amounts = {CPU: 100_000, MEMORY: int(memory) * _MB}
        made = replace(made, allocatable=tuple((name, amounts.get(name, own)) for name, own in made.allocatable))
    return made


def _pod(task: Task, job: Job, now_ms: int, checkpoint_interval_ms: int, order: int) -> Pod:
    share = milli_gpus(task.size)
    record = pod(task.name, 1, priority=_PRIORITIES[job.kind], queue=job.queue)
    amounts = {name: amount * share // 1000 for name, amount in record.request.resources if share}
    size, _, more = task.size.partition("+")
    memory_mib = int(size.removesuffix("MiB")) if size.endswith("MiB") else 0
    milli = share if share % 1000 and not memory_mib and not size.endswith("mig") else 0
    if milli or memory_mib:
        del amounts[GPU]
    if size.endswith("mig"):
        amounts = {_INSTANCE: int(size.removesuffix("mig"))}
    if more:
        cpus, _, megabytes = more.removesuffix("m").partition("c")
        amounts |= {CPU: 1000 * int(cpus), MEMORY: int(megabytes) * _MB}
    work = Work(
        preemptible=job.kind not in _NOT_PREEMPTIBLE, checkpoint_interval_ms=checkpoint_interval_ms, grace_ms=30_000,
    )  # fmt: skip
    gang = "" if len(job.tasks) == 1 and not job.groups else job.name
    if task.group is not None:
        gang = f"{job.name}.{task.group}"
    request = Request(tuple(amounts.items()), gpu_milli=milli, gpu_memory_mib=memory_mib)
    started_ms = now_ms - HOUR_MS + order
    placed = {"node": task.node, "bound_ms": started_ms, "created_ms": started_ms} if task.node else {}
    devices = (task.gpu,) if task.gpu is not None else None
    return replace(record, request=request, gang=gang, work=work, devices=devices, owner=f"o/{job.name}", **placed)


def milli_gpus(size: str) -> int:
    """What a pod has of GPUs."""
    size = size.partition("+")[0]
    if size.endswith("mig"):
        return round(1000 * int(size.removesuffix("mig")) / 7)
    if size.endswith("MiB"):
        return 1000 * int(size.removesuffix("MiB")) // _GPU_MEMORY_MIB
    return round(1000 * float(size))


def run(scenario: Scenario, policy: Policy, checkpoint_interval_ms: int = 5 * MINUTE_MS) -> Outcome:
    """Live through a scenario until nobody was evicted for an hour, at most two hours: all that runs has run for an
    hour, and those that wait come one after another."""
    world = World(
        *(_node(f"n{i}", spec) for i, spec in enumerate(scenario.nodes)),
        policy=policy,
        period_ms=10 * MINUTE_MS,
        least_ms=2 * MINUTE_MS,
    )
    world.now_ms = 100 * HOUR_MS
    world.state.advance(world.now_ms)
    for order, (name, least, terms) in enumerate(scenario.queues):
        limit = int(terms["limit"]) if "limit" in terms else None
        # A weight of 0, which is none here, is very little.
        more = {"weight": max(1, 100 * int(terms.get("weight", 0))), "priority": int(terms.get("priority", 0))}
        event = queue(name, least, limit, parent=terms.get("parent", ""), created_ms=order + 1, **more)
        assert isinstance(event, ev.QueueChanged)
        if terms.get("cpu") == "all":
            own = {CPU: 100_000, MEMORY: _MB * int(scenario.nodes[0].partition(":")[2])}
            guarantee = tuple(sorted([*event.queue.guarantee, *own.items()]))
            event = ev.QueueChanged(replace(event.queue, guarantee=guarantee))
        world.apply_events(event)
    for job in scenario.jobs:
        world.apply_events(*_gangs(job))
    order = 0
    for waits in (False, True):
        for job in scenario.jobs:
            for task in job.tasks:
                if (task.node == "") == waits:
                    order += 1
                    record = _pod(task, job, world.now_ms, checkpoint_interval_ms, order)
                    world.apply_events(ev.PodChanged(record)) if task.node else world.submit(record)
                    world.now_ms += waits
    world.state.advance(world.now_ms)
    start_ms = last_ms = world.now_ms
    while world.now_ms < min(last_ms + HOUR_MS, start_ms + 2 * HOUR_MS):
        world.live(min(last_ms + HOUR_MS, start_ms + 2 * HOUR_MS) - world.now_ms)
        last_ms = max((when_ms for when_ms, _, _ in world.evictions), default=start_ms)
    sizes = {task.name: milli_gpus(task.size) for job in scenario.jobs for task in job.tasks}
    evicted = Counter(cause for _, cause, names in world.evictions for _ in names)
    return Outcome(world.running, evicted, sum(sizes[name] for name in world.running), world.now_ms - last_ms)


def _gangs(job: Job) -> list[ev.Event]:
    if len(job.tasks) == 1 and not job.groups:
        return []
    required = (_ZONE,) if job.zone else ()
    least = 0 if job.groups else len(job.tasks) if job.least is None else job.least
    made: list[ev.Event] = [ev.GangChanged(Gang(job.name, "ns", job.name, least, required=required))]
    for i, count in enumerate(job.groups):
        name = f"{job.name}.{i}"
        made.append(ev.GangChanged(Gang(name, "ns", name, count, parent=job.name)))
    return made
