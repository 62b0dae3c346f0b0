# SPDX-License-Identifier: Apache-2.0
"""What was seen of a job over a window, as the rules ask for it.

Rules
- GPUs of a job whose pods work together are compared with one another, run by run; replicas are each classified alone.
- The class of the job is the one that most of the measured time had.
- Memory is compared with what processes can use of the model (`advice.gpus`).
"""

from __future__ import annotations

from functools import cached_property
from itertools import groupby

from msgspec import Struct

from dovetail.advice.gpus import GpuProduct, named
from dovetail.advice.sizing.market import NO_MARKET, Market
from dovetail.advice.sizing.thresholds import FEWEST_DAYS, FEWEST_RUNS, HOST_MARGIN, LEAST_COVERAGE, SPARE_HOST
from dovetail.advice.sizing.workload import Workload, is_replicated, workload_of
from dovetail.history.job_use import DeviceUse, JobsUse, JobUse
from dovetail.history.records import GpuSpan
from dovetail.monitoring.bottleneck import UNKNOWN, Bottleneck, classify


def percent(milli: int) -> str:
    """A part in thousandths as text: `12 %`."""
    return f"{milli / 10:.0f} %"


def gib(mib: int) -> str:
    """An amount of memory as text: `61.4 GiB`."""
    return f"{mib / 1024:.1f} GiB"


def with_margin(used: int) -> int:
    """What to request of CPUs or memory where so much was used."""
    return -(-used * (1000 + HOST_MARGIN) // 1000)


class JobSeen(Struct, frozen=True, dict=True):
    """`models` are those of the GPUs of the cluster, `spot_models` those of its spot nodes; `market` has prices."""

    use: JobUse
    models: frozenset[str] = frozenset()
    spot_models: frozenset[str] = frozenset()
    market: Market = NO_MARKET

    @cached_property
    def workload(self) -> Workload:
        return workload_of(self.use.latest)

    @cached_property
    def replicated(self) -> bool:
        """Whether each of its pods works alone: replicas, notebooks, or one device at a time."""
        alone = self.workload == "notebook" or is_replicated(self.use.latest)
        return alone or self.devices == 1

    @cached_property
    def total(self) -> DeviceUse:
        return self.use.total

    @cached_property
    def members(self) -> list[DeviceUse]:
        """The devices that were measured, of each run."""
        return [one for one in self.use.members() if one.measured_ms]

    @property
    def devices(self) -> int:
        """How many devices it held at a time, rounded."""
        return max(1, (self.use.gpus_milli + 500) // 1000)

    @property
    def whole(self) -> bool:
        """Whether it held whole GPUs only."""
        return all(one.kind in ("whole", "claimed") and one.milli == 1000 for one in self.use.devices)

    @property
    def shared(self) -> bool:
        """Whether it held GPUs that others held, too."""
        return any(one.kind == "share" for one in self.use.devices)

    @cached_property
    def gpu(self) -> GpuProduct | None:
        """The model of all its GPUs; None if there are several, or it is not known."""
        models = {one.model for one in self.use.devices}
        return named(next(iter(models))) if len(models) == 1 else None

    @cached_property
    def place(self) -> GpuSpan | None:
        """A GPU of its latest pod in its node, if all its GPUs were in nodes of one kind and region; else None."""
        places = [one.place for one in self.use.devices]
        kinds = {(one.instance_type, one.region, one.spot, one.gpus) if one is not None else None for one in places}
        latest = [one.place for one in self.use.devices if one.pod_uid == self.use.latest.uid]
        return (latest or places)[0] if len(kinds) == 1 else None

    @property
    def cpus_per_gpu(self) -> float:
        """The CPUs that its latest pod requests for each of its GPUs; 0 if it requests none, or that is not known."""
        return self.use.latest.cpu_milli / 1000 / self.use.most_per_pod

    @property
    def cpus_used_per_gpu(self) -> float:
        """The CPUs that a pod used in its busiest hour for each of its GPUs; 0 if that was not measured."""
        return self.total.host_cpu_milli / 1000

    @property
    def host_known(self) -> bool:
        """Whether enough is known of what it used of the CPUs and the memory of its nodes."""
        return 0 < LEAST_COVERAGE * self.total.measured_ms <= 1000 * self.total.host_ms

    @property
    def spare_cpus(self) -> bool:
        """Whether its pods are known to use, in the busiest hour, less than half of the CPUs that they request."""
        return self.host_known and self.cpus_used_per_gpu * 1000 < self.cpus_per_gpu * SPARE_HOST

    @property
    def host_needs(self) -> tuple[int, int]:
        """The CPUs, in thousandths, and the memory, in MiB, that a pod needs: what the latest one requests, and what
        was used, with a margin, where that is more; 0 for what it neither requests nor was measured."""
        latest, gpus, used = self.use.latest, self.use.most_per_pod, self.total
        if not self.host_known:
            return latest.cpu_milli, latest.memory_mib
        amounts = (latest.cpu_milli, used.host_cpu_milli), (latest.memory_mib, used.host_memory_mib)
        cpu_milli, memory_mib = (max(asked, with_margin(each * gpus)) for asked, each in amounts)
        return cpu_milli, memory_mib

    @property
    def model(self) -> str:
        """The models of its GPUs, in words."""
        return ", ".join(sorted({one.model for one in self.use.devices if one.model}))

    @cached_property
    def p50(self) -> int:
        return self.total.quantile_milli(500)

    @cached_property
    def p95(self) -> int:
        return self.total.quantile_milli(950)

    @cached_property
    def needed(self) -> int:
        """The real use that a size has to hold: the p95 of the busiest GPU of all runs. Of services and notebooks it is
        the p99, as somebody waits for their peaks."""
        per_mille = 950 if self.workload == "training" else 990
        return max((one.quantile_milli(per_mille) for one in self.members), default=0)

    @property
    def needed_text(self) -> str:
        """The same in words."""
        quantile = "p95" if self.workload == "training" else "p99"
        return f"its {quantile} of real use is at most {percent(self.needed)}"

    @property
    def enough(self) -> bool:
        """Whether there is enough data to advise another size."""
        return (len(self.total.days) >= FEWEST_DAYS or self.use.runs >= FEWEST_RUNS) and (
            self.use.coverage_milli >= LEAST_COVERAGE
        )

    @cached_property
    def classes(self) -> list[tuple[DeviceUse, Bottleneck]]:
        """The members with their classes."""
        found: list[tuple[DeviceUse, Bottleneck]] = []
        compare = self.whole and not self.replicated
        for _, group in groupby(self.members, lambda one: one.run):
            members = list(group)
            means = [one.means() for one in members]
            classes = classify(means) if compare else [classify((one,))[0] for one in means]
            found += zip(members, classes, strict=True)
        return found

    @property
    def bottleneck(self) -> Bottleneck:
        """The class of most of the time."""
        class_ms: dict[Bottleneck, int] = {}
        for one, found in self.classes:
            class_ms[found] = class_ms.get(found, 0) + one.measured_ms
        return max(class_ms, key=lambda found: class_ms[found], default=UNKNOWN)

    def part_of_class(self, name: str) -> int:
        """The part of the measured time that was of a class, in thousandths."""
        return self.part_of_time(sum(one.measured_ms for one, found in self.classes if found.name == name))

    def part_of_runs(self, name: str) -> int:
        """The part of the measured time of the runs in which a GPU was of a class, in thousandths."""
        runs = {one.run for one, found in self.classes if found.name == name}
        return self.part_of_time(sum(one.measured_ms for one in self.members if one.run in runs))

    def part_of_time(self, ms: int) -> int:
        """What a time of its GPUs is of all that was measured, in thousandths."""
        return ms * 1000 // self.total.measured_ms if self.total.measured_ms else 0


def seen_of(uses: JobsUse, market: Market = NO_MARKET) -> list[JobSeen]:
    return [JobSeen(one, uses.models, uses.spot_models, market) for one in uses.jobs]
