# SPDX-License-Identifier: Apache-2.0
"""The kinds of jobs of `benchmarks.advice`: how one of each is made, and which advice is right for it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.advice_loads import DAYS, H100, NOTHING, STEPS, Load, LoadAt, Shape

A100, L40S, L4 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S", "NVIDIA-L4"
A100_PCIE = "NVIDIA-A100-80GB-PCIe"


class Kind(Struct, frozen=True):
    """A kind of workload: how one is made, and which advice is right; "" for none."""

    name: str
    make: Callable[[Random], Shape]
    right: frozenset[str] = frozenset()
    verdict: str = ""


def _steady(load: Load) -> LoadAt:
    return lambda random, gpu, hour, step: load


def _io_bound(random: Random) -> Shape:
    load = Load(random.uniform(0.08, 0.22), 0.06, 0.15, random.uniform(0.2, 0.5), random.uniform(0.1, 0.5),
                random.uniform(1.5e9, 6e9), power=0.4)  # fmt: skip
    gpus, (runs, hours) = random.choice((1, 2, 4)), random.choice(((1, DAYS * 24), (8, 20)))
    return Shape(_steady(load), random.randint(10, 60) * 1024, gpus=gpus, runs=runs, hours=hours)


def _tensor_bound(random: Random) -> Shape:
    load = Load(random.uniform(0.72, 0.9), random.uniform(0.56, 0.75), 0.4, 0.97, 0.4, power=0.9)
    return Shape(_steady(load), random.randint(50, 75) * 1024, gpus=random.choice((1, 2, 8)), runs=8, hours=20)


def _memory_bound(random: Random) -> Shape:
    load = Load(random.uniform(0.34, 0.42), random.uniform(0.02, 0.08), random.uniform(0.6, 0.78), 0.9, 0.6, power=0.6)
    kind, model = random.choice((("Deployment", H100), ("Deployment", A100), ("Job", H100)))
    return Shape(_steady(load), random.randint(15, 30) * 1024, kind, model)


def _too_large(random: Random) -> Shape:
    load = Load(random.uniform(0.06, 0.1), random.uniform(0.02, 0.06), 0.08, random.uniform(0.2, 0.35), 0.1, power=0.4)
    return Shape(_steady(load), random.randint(6, 16) * 1024, random.choice(("Job", "Deployment")), L40S)


def _mig_sized(random: Random) -> Shape:
    most = random.uniform(0.06, 0.5)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        part = most * random.random()
        return Load(part * 0.5, part * 0.3, part * 0.4, part, power=0.25)

    return Shape(
        load, random.randint(4, 15) * 1024, "Deployment", random.choice((H100, A100)), pods=random.choice((1, 3))
    )


def _bursty(random: Random) -> Shape:
    part = random.uniform(0.1, 0.25)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        busy = Load(0.98, 0.95, 0.6, 1.0, 0.5, power=0.95)
        return busy if random.random() < part else Load(0.05, 0.02, 0.04, 0.1)

    return Shape(load, random.randint(4, 20) * 1024, random.choice(("Deployment", "InferenceService")), pods=2)


def _steady_serving(random: Random) -> Shape:
    load = Load(random.uniform(0.6, 0.85), random.uniform(0.3, 0.5), 0.5, 0.95, 0.4, power=0.8)
    return Shape(_steady(load), random.randint(40, 75) * 1024, "Deployment", pods=random.choice((1, 2, 4)))


def _hung(random: Random) -> Shape:
    begin, length = random.randint(10, 60), random.randint(4, 40)
    busy = Load(0.8, 0.6, 0.4, 0.95, power=0.9)
    spin = Load(0.06, 0.0, 0.002, 1.0, power=0.18)
    hang = range(begin, begin + length)
    return Shape(lambda _, gpu, hour, step: spin if hour in hang else busy, 60 * 1024, gpus=8, hours=110)


def _straggler(random: Random) -> Shape:
    slow = random.uniform(0.4, 0.65)
    busy = Load(random.uniform(0.75, 0.9), 0.6, 0.4, 0.95, power=0.9)
    lags = Load(busy.sm * slow, busy.tensor * slow, busy.dram * slow, busy.engine * slow, power=0.6)
    gpus = random.choice((4, 8))
    return Shape(
        lambda _, gpu, hour, step: lags if gpu == 1 else busy, 60 * 1024, gpus=gpus, hours=random.randint(30, 200)
    )


def _notebook(random: Random) -> Shape:
    first, length = random.randint(8, 15), random.randint(1, 4)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        busy = first <= hour % 24 < first + length and random.random() < 0.7
        return Load(0.6, 0.3, 0.3, 0.8, power=0.6) if busy else NOTHING

    return Shape(load, random.randint(2, 30) * 1024, "StatefulSet", random.choice((H100, L4)), name="jupyter-ada")


def _idle_service(random: Random) -> Shape:
    part = random.uniform(0.0, 0.01)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        return Load(0.7, 0.5, 0.4, 0.9, power=0.7) if random.random() < part else NOTHING

    return Shape(
        load, random.randint(10, 78) * 1024, "Deployment", random.choice((H100, L4)), pods=random.choice((1, 2))
    )


def _communicates(random: Random) -> Shape:
    nvlink = random.uniform(1.2e10, 8e10)
    part = random.uniform(0.3, 0.45)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        works = Random(hour * STEPS + step).random() < part
        return Load(0.9, 0.5, 0.3, 0.95, nvlink=nvlink, power=0.7) if works else Load(0.08, 0, 0.1, 0.9, nvlink=nvlink)

    return Shape(
        load, random.randint(30, 70) * 1024, gpus=random.choice((4, 8)), pods=random.choice((1, 2)), runs=8, hours=20
    )


def _gaps(random: Random) -> Shape:
    period, gap = random.randint(16, 28), random.randint(4, 6)
    busy = Load(0.85, 0.65, 0.4, 0.97, power=0.9)
    return Shape(
        lambda _, gpu, hour, step: NOTHING if (hour * STEPS + step) % period < gap else busy,
        60 * 1024, gpus=random.choice((1, 4)), runs=8, hours=24,
    )  # fmt: skip


def _too_many(random: Random) -> Shape:
    load = Load(
        random.uniform(0.12, 0.25), random.uniform(0.05, 0.12), 0.12, random.uniform(0.2, 0.38), 0.1, power=0.35
    )
    return Shape(_steady(load), random.randint(6, 14) * 1024, gpus=random.choice((2, 4, 8)), runs=8, hours=20)


def _right_sized(random: Random) -> Shape:
    load = Load(random.uniform(0.55, 0.75), random.uniform(0.3, 0.45), random.uniform(0.3, 0.45), 0.95, power=0.75)
    return Shape(_steady(load), random.randint(30, 70) * 1024, gpus=random.choice((1, 4)), runs=10, hours=12)


def _shares(random: Random) -> Shape:
    most = random.uniform(0.3, 0.5)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        part = most * (random.random() if random.random() < 0.4 else 0.1)
        return Load(part * 0.8, part * 0.4, part * 0.4, part, power=0.3)

    return Shape(load, random.randint(2, 7) * 1024, "Deployment", L4, pods=random.choice((1, 2)))


def _unused(random: Random) -> Shape:
    used = random.choice((1, 2, 4))
    busy = Load(0.8, 0.6, 0.4, 0.95, power=0.9)
    return Shape(lambda _, gpu, hour, step: busy if gpu < used else NOTHING, 60 * 1024, gpus=8, runs=8, hours=20)


def _night_work(random: Random) -> Shape:
    """A service with a mean below 40 %, as there is no load at night, and a full one by day."""
    busy = Load(0.85, 0.6, 0.5, 0.97, power=0.9)
    return Shape(
        lambda _, gpu, hour, step: busy if 8 <= hour % 24 < 16 else Load(0.02, 0.0, 0.02, 0.05),
        random.randint(5, 40) * 1024, "Deployment", random.choice((H100, L40S, L4)), pods=2,
    )  # fmt: skip


def _short_bursts(random: Random) -> Shape:
    """Full load for a few percent of the time: the p95 is low, and the peaks are what users wait for."""
    part = random.uniform(0.02, 0.045)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        busy = Load(0.95, 0.9, 0.6, 1.0, 0.5, power=0.95)
        return busy if random.random() < part else Load(0.08, 0.04, 0.06, 0.1)

    return Shape(load, random.randint(4, 15) * 1024, "Deployment", random.choice((H100, L4, L40S)))


def _sharded(random: Random) -> Shape:
    """Low use of GPUs whose memory is full: fewer would not hold the model."""
    load = Load(random.uniform(0.3, 0.4), random.uniform(0.2, 0.3), 0.3, 0.7, 0.2, power=0.5)
    return Shape(_steady(load), random.randint(68, 76) * 1024, gpus=random.choice((4, 8)), runs=8, hours=20)


def _full_memory(random: Random) -> Shape:
    """A server that takes all memory for its cache, and has few requests."""
    load = Load(random.uniform(0.05, 0.1), 0.04, 0.06, random.uniform(0.15, 0.3), power=0.3)
    return Shape(_steady(load), random.randint(76, 78) * 1024, "Deployment", random.choice((H100, A100)))


def _bubbles(random: Random) -> Shape:
    """A pipeline that fills and empties: a mean below 40 %, and no transfers to speak of."""
    part = random.uniform(0.35, 0.45)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        return Load(0.9, 0.7, 0.4, 0.95, power=0.8) if random.random() < part else Load(0.15, 0.05, 0.1, 0.5)

    return Shape(load, random.randint(30, 60) * 1024, gpus=4, runs=8, hours=20)


def _spot(random: Random) -> Shape:
    load = Load(0.8, 0.6, 0.4, 0.97, power=0.9)
    return Shape(_steady(load), 60 * 1024, model=A100, runs=9, hours=10, interrupted=True)


def _declares(random: Random) -> Shape:
    """One long run that declares how often it saves, on GPUs that cost less than half on spot."""
    load = Load(random.uniform(0.7, 0.85), 0.55, 0.4, 0.97, power=0.9)
    saves = {"checkpoint_interval_ms": random.choice((600_000, 1_800_000, 3_600_000))}
    return Shape(_steady(load), random.randint(30, 70) * 1024, model=A100, gpus=random.choice((1, 8)), requests=saves)


def _short_runs(random: Random) -> Shape:
    load = Load(random.uniform(0.7, 0.85), 0.55, 0.4, 0.97, power=0.9)
    return Shape(_steady(load), 60 * 1024, model=A100, runs=60, hours=1, steps=random.randint(12, 18))


def _does_not_save(random: Random) -> Shape:
    load = Load(random.uniform(0.7, 0.85), 0.55, 0.4, 0.97, power=0.9)
    runs, hours = random.choice(((1, DAYS * 24), (8, 20)))
    return Shape(_steady(load), random.randint(30, 70) * 1024, model=A100, runs=runs, hours=hours)


def _spot_costs_the_same(random: Random) -> Shape:
    load = Load(random.uniform(0.7, 0.85), 0.55, 0.4, 0.97, power=0.9)
    saves = {"checkpoint_interval_ms": 1_800_000}
    return Shape(_steady(load), random.randint(30, 42) * 1024, model=L40S, requests=saves)


def _apart(random: Random) -> Shape:
    """GPUs that one node would hold, in several: little is exchanged, as the network is slow."""
    moved = random.uniform(0.4e9, 3e9)
    load = Load(random.uniform(0.2, 0.42), random.uniform(0.05, 0.12), 0.2, random.uniform(0.5, 0.9), 0.1, moved,
                moved * random.uniform(0.75, 1.0), power=0.5)  # fmt: skip
    gpus, pods = random.choice(((1, 2), (2, 2), (1, 4), (4, 2), (2, 4)))
    return Shape(_steady(load), random.randint(40, 70) * 1024, gpus=gpus, pods=pods, runs=8, hours=20,
                 node_gpus=8, zones=random.random() < 0.3)  # fmt: skip


def _loads_apart(random: Random) -> Shape:
    """In several nodes, too, but what it waits for is data: that is received, and little is sent."""
    received = random.uniform(1.5e9, 5e9)
    load = Load(random.uniform(0.08, 0.22), 0.06, 0.15, random.uniform(0.3, 0.5), 0.3, received,
                received * random.uniform(0.02, 0.3), power=0.4)  # fmt: skip
    pods = random.choice((2, 4))
    return Shape(_steady(load), random.randint(10, 60) * 1024, pods=pods, runs=8, hours=20, node_gpus=8)


def _no_nvlink(random: Random) -> Shape:
    """A pair of cards that have bridges, and not between these two."""
    moved = random.uniform(2e9, 12e9)
    load = Load(random.uniform(0.2, 0.45), random.uniform(0.05, 0.12), 0.2, random.uniform(0.5, 0.9), 0.2, moved, moved,
                nvlink=1e5, power=0.5)  # fmt: skip
    return Shape(_steady(load), random.randint(40, 70) * 1024, model=A100_PCIE, gpus=2, runs=8, hours=20)


def _over_full_nodes(random: Random) -> Shape:
    """Two whole nodes with a fast network, which exchange much, and are busy."""
    load = Load(random.uniform(0.65, 0.85), random.uniform(0.4, 0.6), 0.4, 0.97, 0.2, 1e10, 9e9, 6e10, power=0.9)
    return Shape(_steady(load), random.randint(50, 75) * 1024, gpus=8, pods=2, runs=8, hours=20, node_gpus=8)


def _few_cpus(random: Random) -> Shape:
    """Kernels are started by too few CPUs."""
    load = Load(random.uniform(0.1, 0.2), random.uniform(0.02, 0.08), 0.1, random.uniform(0.5, 0.9), 0.1, power=0.4)
    gpus = random.choice((1, 4))
    asked = {"cpu_milli": gpus * random.choice((1000, 2000, 3000))}
    return Shape(_steady(load), random.randint(30, 70) * 1024, gpus=gpus, runs=8, hours=20, requests=asked)


def _large_machine(random: Random) -> Shape:
    """A GPU in a machine with 64 CPUs, of which it asks for three."""
    load = Load(random.uniform(0.6, 0.8), random.uniform(0.3, 0.45), 0.4, 0.95, power=0.8)
    asked = {"cpu_milli": random.randint(1, 3) * 1000, "memory_mib": random.randint(4, 12) * 1024}
    return Shape(_steady(load), random.randint(10, 20) * 1024, "Deployment", L4, instance_type="l4-64", requests=asked)


def _needs_its_machine(random: Random) -> Shape:
    made = _large_machine(random)
    asked = random.choice(({"cpu_milli": 50_000, "memory_mib": 4096}, {"cpu_milli": 1000, "memory_mib": 200_000}, {}))
    return replace(made, requests=asked)


def _sharded_service(random: Random) -> Shape:
    """A model over several GPUs that serves bursts: between them its GPUs wait for requests, not for one another."""
    part, nvlink = random.uniform(0.2, 0.4), random.uniform(1e10, 6e10)

    def load(random: Random, gpu: int, hour: int, step: int) -> Load:
        works = Random(hour * STEPS + step).random() < part
        return Load(0.9, 0.8, 0.6, 1.0, nvlink=nvlink, power=0.9) if works else Load(0.05, 0.0, 0.05, 0.2)

    return Shape(load, random.randint(50, 70) * 1024, "LeaderWorkerSet", gpus=4)


def _time_sliced(random: Random) -> Shape:
    """The use of a GPU that several pods share is not measured."""
    made = _mig_sized(random)
    return replace(made, held="share", milli=random.choice((250, 500)), missing=1.0)


def _fits_its_instance(random: Random) -> Shape:
    load = Load(random.uniform(0.7, 0.9), random.uniform(0.5, 0.7), 0.4, 0.9, power=0.5)
    return Shape(_steady(load), random.randint(4, 9) * 1024, "Deployment", held="instance", milli=142)


def _small_in_its_instance(random: Random) -> Shape:
    """Half of an H100, of which less than a slice is used."""
    most = random.uniform(0.05, 0.14)
    load = Load(most * 0.8, most * 0.4, most * 0.7, most, power=0.2)
    return Shape(_steady(load), random.randint(2, 7) * 1024, "Deployment", held="instance", milli=500)


def _bursts_in_its_instance(random: Random) -> Shape:
    made = _bursty(random)
    return replace(made, model=H100, memory_mib=random.randint(2, 7) * 1024, held="instance", milli=500, pods=1)


def _small_in_its_share(random: Random) -> Shape:
    """Half of a GPU, on which it is seen for little time."""
    load = Load(random.uniform(0.1, 0.2), 0.05, 0.05, random.uniform(0.1, 0.2), power=0.3)
    return Shape(_steady(load), random.randint(2, 6) * 1024, "Deployment", model=L40S, held="share", milli=500)


def _fits_its_share(random: Random) -> Shape:
    made = _small_in_its_share(random)
    if random.random() < 0.5:
        return replace(made, memory_mib=random.randint(14, 20) * 1024)
    load = Load(random.uniform(0.6, 0.9), 0.4, 0.4, 0.95, power=0.7)
    return replace(made, load=_steady(load))


def _spare_host(random: Random) -> Shape:
    """A busy job that requests three times the CPUs and the memory that it uses, or more."""
    made = _right_sized(random)
    cpus, gib, times = random.uniform(2, 8), random.uniform(4, 16), random.uniform(3, 8)
    asked = {"cpu_milli": round(1000 * made.gpus * cpus * times), "memory_mib": round(1024 * made.gpus * gib * times)}
    return replace(made, requests=asked, host_cpus=cpus * made.gpus, host_mib=round(1024 * gib * made.gpus))


def _used_host(random: Random) -> Shape:
    """One that uses most of what it requests."""
    made = _right_sized(random)
    cpus, gib = random.uniform(2, 8), random.uniform(4, 16)
    asked = {"cpu_milli": round(1400 * made.gpus * cpus), "memory_mib": round(1300 * made.gpus * gib)}
    return replace(made, requests=asked, host_cpus=cpus * made.gpus, host_mib=round(1024 * gib * made.gpus))


def _slow_disk(random: Random) -> Shape:
    """It waits for data, and not for CPUs: of these it has many."""
    made = _io_bound(random)
    asked = {"cpu_milli": 16_000 * made.gpus}
    return replace(made, requests=asked, host_cpus=random.uniform(0.5, 3) * made.gpus, host_mib=8192)


def _synchronizes(random: Random) -> Shape:
    """Few CPUs, most of which are idle: they are not what its small kernels wait for, and a smaller GPU is enough."""
    made = _few_cpus(random)
    asked = {"cpu_milli": made.gpus * 3000}
    return replace(made, requests=asked, host_cpus=random.uniform(0.3, 0.9) * made.gpus, host_mib=8192)


def _short(random: Random) -> Shape:
    made = random.choice((_mig_sized, _io_bound, _too_large, _too_many))(random)
    return Shape(made.load, made.memory_mib, made.kind, made.model, made.gpus, hours=random.randint(20, 100))


def _sparse(random: Random) -> Shape:
    made = random.choice((_mig_sized, _too_large, _too_many))(random)
    return Shape(made.load, made.memory_mib, made.kind, made.model, made.gpus, missing=random.uniform(0.65, 0.9))


def _of(name: str, make: Callable[[Random], Shape], *right: str, verdict: str = "") -> Kind:
    return Kind(name, make, frozenset(right), verdict or ("advice" if right else "right-sized"))


KINDS: tuple[Kind, ...] = (
    _of("io-bound training", _io_bound, "io-bound"),
    _of("tensor-bound training", _tensor_bound),
    _of("memory-bound", _memory_bound, "memory-bound"),
    _of("too large a GPU", _too_large, "smaller-gpu"),
    _of("MIG-sized inference", _mig_sized, "mig"),
    _of("bursty serving", _bursty),
    _of("steady serving", _steady_serving),
    _of("service that rests at night", _night_work),
    _of("short bursts", _short_bursts),
    _of("sharded model", _sharded),
    _of("full memory, few requests", _full_memory),
    _of("pipeline with bubbles", _bubbles),
    _of("hung", _hung, "hung"),
    _of("straggler", _straggler, "straggler"),
    _of("idle notebook", _notebook, "idle"),
    _of("idle service", _idle_service, "idle"),
    _of("communication-bound", _communicates, "communication-bound"),
    _of("gaps between epochs", _gaps, "epoch-gaps"),
    _of("too many GPUs", _too_many, "fewer-gpus"),
    _of("unused GPUs", _unused, "unused-gpus"),
    _of("small service", _shares, "share"),
    _of("right-sized training", _right_sized),
    _of("training with checkpoints", _spot, "spot"),
    _of("declares checkpoints", _declares, "spot"),
    _of("short runs", _short_runs, "spot"),
    _of("long runs that are not saved", _does_not_save, "checkpoints"),
    _of("spot that costs the same", _spot_costs_the_same),
    _of("apart over a slow link", _apart, "link"),
    _of("loading data in several nodes", _loads_apart, "io-bound"),
    _of("pair without NVLink", _no_nvlink, "link"),
    _of("two full nodes", _over_full_nodes),
    _of("few CPUs", _few_cpus, "few-cpus"),
    _of("small job in a large machine", _large_machine, "instance"),
    _of("job that needs its machine", _needs_its_machine),
    _of("sharded service", _sharded_service),
    _of("time-sliced service", _time_sliced, verdict="not enough data"),
    _of("MIG instance that fits", _fits_its_instance),
    _of("MIG instance that is too large", _small_in_its_instance, "smaller-instance"),
    _of("bursts in a MIG instance", _bursts_in_its_instance),
    _of("share that is too large", _small_in_its_share, "smaller-share"),
    _of("share that fits", _fits_its_share),
    _of("short history", _short, verdict="not enough data"),
    _of("sparse data", _sparse, verdict="not enough data"),
    _of("requests of the node that are not used", _spare_host, "host-requests"),
    _of("requests of the node that are used", _used_host),
    _of("waits for a disk", _slow_disk, "io-bound"),
    _of("small kernels beside idle CPUs", _synchronizes, "smaller-gpu", "mig", "fewer-gpus"),
)
