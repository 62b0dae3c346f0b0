# SPDX-License-Identifier: Apache-2.0
"""What keeps GPUs from work: data, CPUs, links, memory, evaluations. A smaller GPU would wait as long."""

from __future__ import annotations

from math import ceil

from dovetail.advice.sizing import fit, links
from dovetail.advice.sizing import thresholds as limits
from dovetail.advice.sizing.rule import SizeChange, SizeProposal
from dovetail.advice.sizing.seen import JobSeen, percent
from dovetail.monitoring.bottleneck import COMMUNICATION

_PRODUCT = "nvidia.com/gpu.product"
_TOPOLOGY, _NVLINK = "dovetail.dev/topology-required", "dovetail.dev/nvlink"
_WAITING = "the time in which the GPUs wait for one another"


def io_bound(seen: JobSeen) -> SizeProposal | None:
    if seen.part_of_class("io-bound") < limits.CLASS_TIME or seen.needed > limits.QUIET_P95:
        return None
    per_gpu = seen.cpus_per_gpu
    requests = f"; it requests {per_gpu:g} CPUs for each{_used(seen)}" if per_gpu else ""
    if seen.spare_cpus:
        return SizeProposal(
            f"the GPUs wait for data: much is copied to them, and few of their SMs work{requests}",
            "more loader workers, local NVMe, pinned memory; not more CPUs, which it has, and not a smaller GPU, which "
            "would wait as long",
            gain="the time in which the GPUs wait for data",
        )
    return SizeProposal(
        f"the GPUs wait for data: much is copied to them, and few of their SMs work{requests}",
        "more CPUs for each GPU and more loader workers, local NVMe, pinned memory; not a smaller GPU, which would "
        f"wait as long{_machine_with(seen, 2 * per_gpu)}",
        gain="the time in which the GPUs wait for data",
        change=SizeChange("cpu", 2),
    )


def few_cpus(seen: JobSeen) -> SizeProposal | None:
    per_gpu = seen.cpus_per_gpu
    waits = seen.part_of_class("small-kernels") >= limits.CLASS_TIME and seen.needed <= limits.QUIET_P95
    if not waits or not 0 < per_gpu < limits.FEW_CPUS or seen.spare_cpus:
        return None
    times = ceil(limits.CPUS_PER_GPU / per_gpu)
    return SizeProposal(
        f"kernels run most of the time, and few SMs have work: it requests {per_gpu:g} CPUs for each GPU{_used(seen)}, "
        f"which share the work of starting kernels and of loading data",
        f"{times} times the CPUs, {times * per_gpu:g} for each GPU; not a smaller GPU, which would wait as long"
        f"{_machine_with(seen, times * per_gpu)}",
        gain="the time in which the GPUs wait for the CPUs",
        change=SizeChange("cpu", times),
    )


def _used(seen: JobSeen) -> str:
    """What it used of its CPUs, in words; "" where that was not measured."""
    used = seen.cpus_used_per_gpu
    return f", and used {used:.2g} in its busiest hour" if used else ""


def _machine_with(seen: JobSeen, cpus_per_gpu: float) -> str:
    """Where there are so many CPUs, if the machine of the job has fewer; "" if it has them, or that is not known."""
    found = fit.machines(seen)
    better = found.with_cpus(ceil(cpus_per_gpu * 1000)) if found is not None else None
    if found is None or better is None:
        return ""
    return (
        f"; its {found.own.name} has {found.own.cpus_per_gpu} CPUs for each GPU, {better.name} has "
        f"{better.cpus_per_gpu}, for {better.price.text} in place of {found.own.price.text} for each GPU and "
        f"hour (prices of {min(better.price.date, found.own.price.date)})"
    )


def link(seen: JobSeen) -> SizeProposal | None:
    if not _waits_for_others(seen):
        return None
    if (apart := links.over_zones(seen)) is not None:
        return SizeProposal(
            f"its GPUs exchange much, and were in {apart.zones} zones",
            "ask for one zone: it waits until that has room for all of it",
            gain=_WAITING, change=SizeChange("annotate", key=_TOPOLOGY, value="zone"),
        )  # fmt: skip
    if (apart := links.over_nodes(seen)) is not None:
        cause = (
            f"its {seen.devices} GPUs exchange much, and were in {apart.nodes} nodes of {apart.node_gpus} GPUs: the "
        )
        if apart.fewest == 1:
            return SizeProposal(
                f"{cause}network is slower than the links in a node, which holds all of them",
                "ask for one node: it waits until one has room for all of it",
                gain=_WAITING, change=SizeChange("annotate", key=_TOPOLOGY, value="host"),
            )  # fmt: skip
        return SizeProposal(
            f"{cause}network is slower than the links in a node, and {apart.fewest} nodes hold all of them",
            f"pods with {apart.node_gpus} GPUs each, which fill a node, in place of pods with {seen.use.most_per_pod}",
            gain=_WAITING,
        )
    if seen.gpu is not None and links.without_nvlink(seen):
        if not links.by_choice(seen.gpu):
            return SizeProposal(
                f"its GPUs exchange over PCIe, although NVLink connects all {seen.gpu.model} of a node",
                "see why NCCL does not use it: NCCL_DEBUG=INFO, NCCL_P2P_DISABLE, `nvidia-smi topo -m`, and "
                "`dovetail doctor` on the node",
                gain=_WAITING,
            )
        return SizeProposal(
            f"its GPUs exchange over PCIe: those that it got are not the ones that NVLink connects of "
            f"{seen.gpu.model} in a node",
            "ask for GPUs that NVLink connects: it waits until such are free together",
            gain=_WAITING, change=SizeChange("annotate", key=_NVLINK, value="required"),
        )  # fmt: skip
    linked = links.linked_model(seen)
    if linked is None or seen.gpu is None:
        return None
    return SizeProposal(
        f"its GPUs exchange over PCIe: {seen.gpu.model} has no NVLink for {seen.use.most_per_pod} GPUs",
        f"run it on {linked.model} of this cluster: select nodes by {_PRODUCT}={linked.name}",
        gain=_WAITING, change=SizeChange("select", key=_PRODUCT, value=linked.name),
    )  # fmt: skip


def _waits_for_others(seen: JobSeen) -> bool:
    """Whether its GPUs work together and wait for one another. Those of a service wait for requests, too; and what is
    not known may be one, whose peaks show that it needs its GPUs."""
    may_serve = seen.workload != "training" and (seen.workload == "serving" or seen.needed > limits.QUIET_P95)
    return seen.devices >= 2 and not may_serve and seen.part_of_class(COMMUNICATION.name) >= limits.CLASS_TIME


def communication(seen: JobSeen) -> SizeProposal | None:
    gpus = seen.devices
    if not _waits_for_others(seen):
        return None
    inside = seen.use.most_per_pod
    halved = SizeChange("gpus", inside // 2) if inside == gpus and inside % 2 == 0 else None
    return SizeProposal(
        "the GPUs exchange much, and their SMs work only in between",
        f"fewer and closer GPUs, such as {max(1, gpus // 2)} in one NVLink domain, or transfers that overlap with work",
        gain=_WAITING,
        change=halved,
    )


def memory_bound(seen: JobSeen) -> SizeProposal | None:
    if seen.part_of_class("memory-bound") < limits.CLASS_TIME or seen.needed > limits.QUIET_P95:
        return None
    better = fit.more_bandwidth(seen)
    other = f"a GPU with more memory bandwidth: {better.model} of this cluster" if better is not None else (
        "a GPU with more memory bandwidth; this cluster has none that is known"
    )  # fmt: skip
    return SizeProposal(
        "memory bandwidth bounds it: memory is busy most of the time, the SMs are not",
        f"{other}; larger tiles and fused kernels; not a smaller GPU or a MIG instance, which have less bandwidth",
        gain="the time that memory takes",
    )


def gaps(seen: JobSeen) -> SizeProposal | None:
    measured_ms = seen.total.measured_ms
    part = seen.total.gap_ms * 1000 // measured_ms if measured_ms else 0
    if seen.workload != "training" or part < limits.GAP or seen.p95 < limits.GAP_P95:
        return None
    return SizeProposal(
        f"its GPUs are idle {percent(part)} of the time between times of work: it evaluates, or saves, in between",
        "evaluate on CPUs or in a job of its own, and save checkpoints in the background; not a smaller GPU",
        saves_milli=part,
    )
