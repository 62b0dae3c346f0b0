# SPDX-License-Identifier: Apache-2.0
"""The rules for sizes, as a table: when what is advised.

Rules: faults come first, as a job that hangs or waits for one GPU does not show its size; then what keeps the GPUs
from work, for which a smaller GPU would be no help; then sizes. No rule is triggered by a mean of real use alone.
"""

from __future__ import annotations

import re
from math import ceil

from dovetail.advice.sizing import fit, links, spot
from dovetail.advice.sizing import thresholds as limits
from dovetail.advice.sizing.market import HourPrice
from dovetail.advice.sizing.rule import SizeChange, SizeProposal, SizingRule
from dovetail.advice.sizing.seen import JobSeen, gib, percent
from dovetail.monitoring.bottleneck import COMMUNICATION, HUNG, STRAGGLER

_OUT_OF_MEMORY = re.compile(r"CUDA(_ERROR_| error: | )out[ _]of[ _]memory|OutOfMemoryError: CUDA", re.IGNORECASE)
_HOUR_MS = 3_600_000
_INSTANCE_TYPE, _PRODUCT = "node.kubernetes.io/instance-type", "nvidia.com/gpu.product"
_TOPOLOGY, _NVLINK = "dovetail.dev/topology-required", "dovetail.dev/nvlink"
_WAITING = "the time in which the GPUs wait for one another"


def _hung(seen: JobSeen) -> SizeProposal | None:
    longest_ms = max((one.hung_ms for one in seen.members), default=0)
    if longest_ms < limits.HUNG_MS:
        return None
    return SizeProposal(
        f"a GPU ran at full utilization near idle power for {longest_ms // _HOUR_MS} h: kernels are resident and do "
        f"not advance",
        "see where its ranks wait (py-spy dump, NCCL_DEBUG=INFO), and set a timeout of NCCL; its size does not matter",
        gain="the GPU time in which it hangs",
    )


def _unused(seen: JobSeen) -> SizeProposal | None:
    held = seen.use.most_per_pod
    if not seen.whole or held < 2 or seen.needed < limits.USED_P95:
        return None
    by_pod: dict[str, list[bool]] = {}
    for one in seen.use.devices:
        if one.measured_ms:
            by_pod.setdefault(one.pod_uid, []).append(one.idle_milli < limits.UNUSED_IDLE)
    most = max((sum(used) for used in by_pod.values()), default=0)
    if not 0 < most < held or any(len(used) < held for used in by_pod.values()):
        return None
    return SizeProposal(
        f"{held - most} of the {held} GPUs of a pod were idle at least {percent(limits.UNUSED_IDLE)} of the time: the "
        f"program does not use them (CUDA_VISIBLE_DEVICES, number of processes)",
        f"request {most}, or start a process for each GPU",
        saves_milli=(held - most) * 1000 // held,
        change=SizeChange("gpus", most),
    )


def _straggler(seen: JobSeen) -> SizeProposal | None:
    if seen.workload != "training" or seen.part_of_runs(STRAGGLER.name) < limits.STRAGGLES:
        return None
    means = [one.mean_milli for one in seen.members]
    return SizeProposal(
        f"a GPU of the job is used {percent(min(means))}, others up to {percent(max(means))}: they wait for it",
        "compare its clocks, throttling, NVLinks and data loading (`dovetail top`); its size does not matter",
        gain="the time in which the others wait for it",
    )


def _idle(seen: JobSeen) -> SizeProposal | None:
    if seen.total.measured_ms < limits.ONE_DAY_MS:
        return None
    idle = seen.total.idle_milli
    if seen.workload == "notebook":
        if idle < limits.IDLE_NOTEBOOK:
            return None
        return SizeProposal(
            f"the notebook computed {percent(1000 - idle)} of the time for which it held its GPU",
            "end it when it is not used, or let it be culled: ENABLE_CULLING of Kubeflow's notebook controller, "
            "`cull.timeout` of JupyterHub",
            saves_milli=idle,
        )
    if seen.p95 > limits.IDLE_JOB_P95 or seen.total.mean_milli > limits.IDLE_JOB_MEAN:
        return None
    action = {
        "serving": "scale it to zero while there are no requests, or release the GPU",
        "training": "end it, and set activeDeadlineSeconds or dovetail.dev/max-runtime",
    }.get(seen.workload, "end it, or run it without a GPU")
    return SizeProposal(
        f"its GPUs were idle {percent(idle)} of the time, and used {percent(seen.total.mean_milli)} in the mean",
        action,
        saves_milli=idle,
    )  # fmt: skip


def _out_of_memory(seen: JobSeen) -> SizeProposal | None:
    failed = next((message for message in seen.use.messages if _OUT_OF_MEMORY.search(message)), "")
    if not failed:
        return None
    return SizeProposal(
        f"a pod failed as the memory of its GPU did not suffice; the most that was seen in use is "
        f"{gib(seen.total.memory_peak_mib)}",
        "a GPU or a MIG profile with more memory, a smaller batch, or sharded optimizer states; `dovetail memory` "
        "computes what the model needs",
        gain="the runs that fail",
    )


def _io_bound(seen: JobSeen) -> SizeProposal | None:
    if seen.part_of_class("io-bound") < limits.CLASS_TIME or seen.needed > limits.QUIET_P95:
        return None
    per_gpu = seen.cpus_per_gpu
    requests = f"; it requests {per_gpu:g} CPUs for each" if per_gpu else ""
    return SizeProposal(
        f"the GPUs wait for data: much is copied to them, and few of their SMs work{requests}",
        "more CPUs for each GPU and more loader workers, local NVMe, pinned memory; not a smaller GPU, which would "
        f"wait as long{_machine_with(seen, 2 * per_gpu)}",
        gain="the time in which the GPUs wait for data",
        change=SizeChange("cpu", 2),
    )


def _few_cpus(seen: JobSeen) -> SizeProposal | None:
    per_gpu = seen.cpus_per_gpu
    waits = seen.part_of_class("small-kernels") >= limits.CLASS_TIME and seen.needed <= limits.QUIET_P95
    if not waits or not 0 < per_gpu < limits.FEW_CPUS:
        return None
    times = ceil(limits.CPUS_PER_GPU / per_gpu)
    return SizeProposal(
        f"kernels run most of the time, and few SMs have work: it requests {per_gpu:g} CPUs for each GPU, which share "
        f"the work of starting kernels and of loading data",
        f"{times} times the CPUs, {times * per_gpu:g} for each GPU; not a smaller GPU, which would wait as long"
        f"{_machine_with(seen, times * per_gpu)}",
        gain="the time in which the GPUs wait for the CPUs",
        change=SizeChange("cpu", times),
    )


def _machine_with(seen: JobSeen, cpus_per_gpu: float) -> str:
    """Where there are so many CPUs, if the machine of the job has fewer; "" if it has them, or that is not known."""
    found = fit.machines(seen)
    better = found.with_cpus(ceil(cpus_per_gpu * 1000)) if found is not None else None
    if found is None or better is None:
        return ""
    return (
        f"; its {found.own.name} has {found.own.cpus_per_gpu} CPUs for each GPU, {better.name} has "
        f"{better.cpus_per_gpu}, for {_money(better.price)} in place of {_money(found.own.price)} for each GPU and "
        f"hour (prices of {min(better.price.date, found.own.price.date)})"
    )


def _money(price: HourPrice) -> str:
    return f"{price.micro / 10**6:.2f} {price.currency}"


def _link(seen: JobSeen) -> SizeProposal | None:
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


def _communication(seen: JobSeen) -> SizeProposal | None:
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


def _memory_bound(seen: JobSeen) -> SizeProposal | None:
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


def _gaps(seen: JobSeen) -> SizeProposal | None:
    measured_ms = seen.total.measured_ms
    part = seen.total.gap_ms * 1000 // measured_ms if measured_ms else 0
    if seen.workload != "training" or part < limits.GAP or seen.p95 < limits.GAP_P95:
        return None
    return SizeProposal(
        f"its GPUs are idle {percent(part)} of the time between times of work: it evaluates, or saves, in between",
        "evaluate on CPUs or in a job of its own, and save checkpoints in the background; not a smaller GPU",
        saves_milli=part,
    )


def _mig(seen: JobSeen) -> SizeProposal | None:
    if not seen.whole or not seen.replicated or seen.use.most_per_pod > 1:
        return None
    found = fit.mig_slice(seen)
    if found is None:
        return None
    profile = found.profile
    return SizeProposal(
        f"{seen.needed_text}, below the {percent(found.compute_milli)} of the SMs of "
        f"a {profile.name}, and its memory peak of {gib(seen.total.memory_peak_mib)} fits the "
        f"{gib(profile.memory_mib)} of the instance",
        f"request {profile.resource} in place of the GPU: an instance has memory, processors and faults of its own",
        saves_milli=1000 - found.milli,
        change=SizeChange("mig", resource=profile.resource),
    )


def _fewer(seen: JobSeen) -> SizeProposal | None:
    gpus = seen.use.most_per_pod if seen.replicated else seen.devices
    if not seen.whole or gpus < 2:
        return None
    fewest = fit.fewer(seen, gpus)
    if fewest is None:
        return None
    inside = seen.use.most_per_pod == gpus
    return SizeProposal(
        f"{seen.needed_text} on its busiest GPU and no GPU had more than "
        f"{gib(seen.total.memory_peak_mib)} in use: {gpus} GPUs do the work of {fewest}",
        f"{fewest} in place of {gpus} GPUs, with a batch for each that is larger by as much",
        saves_milli=(gpus - fewest) * 1000 // gpus,
        change=SizeChange("gpus", fewest) if inside else None,
    )


def _smaller(seen: JobSeen) -> SizeProposal | None:
    if not seen.whole:
        return None
    found = fit.smaller(seen)
    if found is None:
        return None
    return SizeProposal(
        f"{seen.needed_text} and its memory peak is {gib(seen.total.memory_peak_mib)}: "
        f"{found.model} of this cluster holds both",
        f"run it on {found.model} ({gib(found.usable_mib)}): select nodes by {_PRODUCT}={found.name}",
        now=seen.market.model(seen.gpu.model) if seen.gpu is not None else None,
        then=seen.market.model(found.model),
        gain="the time of the larger GPUs for others",
        change=SizeChange("select", key=_PRODUCT, value=found.name),
    )


def _instance(seen: JobSeen) -> SizeProposal | None:
    found = fit.machines(seen)
    better = found.cheaper if found is not None else None
    if found is None or better is None:
        return None
    own, latest, gpus = found.own, seen.use.latest, seen.use.most_per_pod
    needs = [f"{latest.cpu_milli / 1000:g} CPUs"] if latest.cpu_milli else []
    needs += [gib(latest.memory_mib)] if latest.memory_mib else []
    requests = f"requests {' and '.join(needs)}" if needs else "requests neither CPUs nor memory"
    return SizeProposal(
        f"a pod with {gpus} {'GPU' if gpus == 1 else 'GPUs'} {requests}; {own.name} has {own.cpus_per_gpu} CPUs and "
        f"{gib(own.memory_mib // own.gpus)} for each GPU, {better.name} has {better.cpus_per_gpu} and "
        f"{gib(better.memory_mib // better.gpus)} with the same GPUs",
        f"run it on {better.name}, {_money(better.price)} for each GPU and hour in place of {_money(own.price)}: "
        f"select nodes by {_INSTANCE_TYPE}={better.name}",
        now=own.price,
        then=better.price,
        change=SizeChange("select", key=_INSTANCE_TYPE, value=better.name),
    )


def _share(seen: JobSeen) -> SizeProposal | None:
    alone = seen.whole and seen.replicated and seen.use.most_per_pod == 1 and seen.workload != "training"
    most = fit.shares(seen) if alone else 0
    if most < 2:
        return None
    memory_mib = -(-seen.total.memory_peak_mib * 1000 // limits.MEMORY_LOAD)
    return SizeProposal(
        f"{seen.needed_text} and its memory peak is {gib(seen.total.memory_peak_mib)}: {most} such pods fit on one GPU",
        f"share the GPU by time-slicing with up to {most - 1} others like it: request nvidia.com/gpu.shared",
        saves_milli=(most - 1) * 1000 // most,
        change=SizeChange("share", memory_mib, "nvidia.com/gpu.shared"),
    )


def _spot(seen: JobSeen) -> SizeProposal | None:
    why, cost = spot.safe_to_interrupt(seen), spot.spot_cost(seen)
    if not why or not _on_spot(seen, cost):
        return None
    if cost is None:
        return SizeProposal(
            why, "run it on spot nodes; `dovetail spot` computes how often to save, and whether that pays",
            gain="the discount of spot nodes, less the work that is lost at interruptions",
        )  # fmt: skip
    return SizeProposal(
        f"{why}; an hour of a GPU costs {_money(cost.now)}, an hour of useful work on spot {_money(cost.spot)}",
        f"run it on spot nodes; a run takes {percent(cost.slowdown_milli)} of its time if a node is interrupted every "
        f"{spot.in_hours(limits.SPOT_MTBI_S)} (assumed); saving at the best "
        f"times (`dovetail spot`) it pays down to every {spot.in_hours(cost.least_mtbi_s)}",
        now=cost.now,
        then=cost.spot,
    )


def _checkpoints(seen: JobSeen) -> SizeProposal | None:
    cost = spot.spot_cost(seen)
    if spot.safe_to_interrupt(seen) or not _on_spot(seen, cost):
        return None
    less = ""
    if cost is not None:
        date = min(cost.now.date, cost.spot.date)
        less = f": an hour of useful work {_money(cost.spot)} in place of {_money(cost.now)} (prices of {date})"
    return SizeProposal(
        f"nothing shows that it saves its work, so that an interruption may cost a whole run; on spot nodes it could "
        f"cost less{less}",
        "save checkpoints, and declare how often with the annotation dovetail.dev/checkpoint-interval: without them "
        "it is no job for spot nodes",
        gain="the discount of spot nodes, and the work that a failure of a node destroys",
    )


def _on_spot(seen: JobSeen, cost: spot.SpotCost | None) -> bool:
    """Whether a training job would be cheaper on spot nodes, or the cluster has such with its GPUs."""
    if seen.workload != "training" or seen.use.spot or not seen.whole:
        return False
    return cost.pays if cost is not None else {one.model for one in seen.use.devices} <= seen.spot_models


_3G = "right-sizing rules: memory peak that fits, and p95 below 1/7, 2/7 or 3/7"
_KEMPNER = "classes of KempnerPulse (docs/classification.md, April 2026)"
RULES: tuple[SizingRule, ...] = (
    SizingRule(
        HUNG.name, "it hangs", "a GPU hung for an hour or more",
        "none: nothing is lost by a look", "its log, or its checkpoints, went on in that time",
        "utilization of 100 % by a kernel that spins (stas00/ml-engineering, network debugging)", _hung, early=True,
    ),
    SizingRule(
        "unused-gpus", "GPUs of the pod are not used",
        "some GPUs of a pod were idle at least 95 % of the time, and others were not",
        "a phase that needs all of them, and did not come in the window",
        "a run uses the GPUs that were idle", "GPUs that a program does not see are idle, whatever its load",
        _unused,
    ),
    SizingRule(
        STRAGGLER.name, "one GPU is slower than the others",
        "a GPU of a training job is used less than the median of the job in at least half of the runs' time",
        "none: nothing is lost by a look", "the same GPU is as fast as the others in another job",
        "DCGM: a member that differs from the median by more than two standard deviations", _straggler, early=True,
    ),
    SizingRule(
        "idle", "it holds GPUs and does not use them",
        "a day was measured, and it was idle at least 95 % of that and used at most 1 % in the mean (a notebook: idle "
        "at least 70 %)",
        "the next start takes as long as the queue and the image; what is not saved is lost",
        "it did work that NVML does not see, or its load comes once a month",
        "Kubeflow culls notebooks after 1440 minutes (ENABLE_CULLING)", _idle, early=True,
    ),
    SizingRule(
        "out-of-memory", "the memory of its GPU is too small", "a pod failed with CUDA's message for lack of memory",
        "a larger GPU costs more", "the same run completes with the same memory", "CUDA's and PyTorch's error messages",
        _out_of_memory,
    ),
    SizingRule(
        "io-bound", "it waits for data",
        "class io-bound at least half of the time, with a p95 of at most 70 %",
        "more CPUs than a node has for each GPU make the job wait", "with twice the CPUs its real use does not rise",
        f"{_KEMPNER}; 46 % of the causes of low use are data operations (ICSE 2024, doi 10.1145/3597503.3639232)",
        _io_bound,
    ),
    SizingRule(
        "few-cpus", "it has few CPUs for its GPUs",
        "class small-kernels at least half of the time, with a p95 of at most 70 %, and fewer than 4 CPUs are "
        "requested for each GPU",
        "more CPUs than a node has for each GPU make the job wait", "with more CPUs its real use does not rise",
        f"{_KEMPNER}: busy with few SMs is bound by small kernels, synchronization or the CPU", _few_cpus,
    ),
    SizingRule(
        "link", "a slow link connects its GPUs",
        "class communication-bound at least half of the time, with two or more GPUs, of training, or of another job "
        "that is no service and has a p99 of at most 70 %; and most of the time "
        "they were in several zones, in more nodes than hold as many, or, within a node, they exchanged over PCIe",
        "it waits longer for a place that is closer together",
        "in the place that it asks for a step takes as long; or what it moves over PCIe is memory of the host "
        "(offload)",
        "NCCL's paths: NVLink, then PCIe, then the network; the placement in the history", _link,
    ),
    SizingRule(
        COMMUNICATION.name, "its GPUs wait for one another",
        "class communication-bound at least half of the time, with two or more GPUs, of training, or of another job "
        "that is no service and has a p99 of at most 70 %",
        "with fewer GPUs a run takes longer where transfers are not the limit",
        "with half the GPUs a step takes twice as long",
        "NVLink and PCIe transfers against SM activity, as DCGM profiles them", _communication,
    ),
    SizingRule(
        "memory-bound", "memory bandwidth bounds it",
        "class memory-bound at least half of the time, with a p95 of at most 70 %",
        "a GPU with more bandwidth costs more", "on a GPU with more bandwidth a step takes as long", _KEMPNER,
        _memory_bound,
    ),
    SizingRule(
        "epoch-gaps", "it is idle between times of work",
        "a training job is idle a tenth of the time or more in hours of work, and its p95 is 50 % or more",
        "an evaluation elsewhere sees a model that is some steps old",
        "the idle times are not those of evaluations and checkpoints",
        "a GPU that is low only between epochs is not too large", _gaps,
    ),
    SizingRule(
        "mig", "a MIG instance is enough",
        "one GPU for each pod, a p95 (p99 of a service) below the compute slices of a profile of up to 3 of 7, and a "
        "memory peak of at most 90 % of its memory",
        "the node has to offer the profile; bandwidth is divided with the memory; an instance has no NVLink",
        "its load rises above that of the window, or its real use on the instance reaches 90 % at the p95",
        f"NVIDIA's MIG user guide; {_3G}", _mig,
    ),
    SizingRule(
        "fewer-gpus", "fewer GPUs do the same work",
        "the p95 of the busiest GPU (p99 of a service) and the memory of all fit on a divisor of the number of GPUs, "
        "at 80 % and 90 %",
        "a run takes longer where several GPUs were faster together",
        "with fewer GPUs a step takes longer in proportion",
        "SM activity of 80 % is effective use (NVIDIA's guidance for DCGM)", _fewer,
    ),
    SizingRule(
        "smaller-gpu", "a smaller GPU is enough",
        "a slower model of the cluster holds the p95 (p99 of a service) at 80 %, scaled by tensor rate and bandwidth, "
        "and the memory at 90 %",
        "peak rates are not what every kernel gets; number formats and features differ between models",
        "on the smaller GPU a request or a step takes longer than its owner can accept",
        "NVIDIA's data sheets (advice.speeds)", _smaller,
    ),
    SizingRule(
        "share", "it can share a GPU",
        "one GPU for each pod of a service or a notebook, of which two or more fit: memory peaks and p99 up to 80 %",
        "time-slicing keeps nothing apart: only with pods that are trusted, and whose loads do not peak together",
        "its latency rises when the others on the GPU are busy", "NVIDIA's device plugin, time-slicing; " + _3G, _share,
    ),
    SizingRule(
        "instance", "another instance type has the same GPUs for less",
        "an instance type of its cloud and region costs at least 10 % less for each GPU, and has for each pod the CPUs "
        "and the memory that it requests, and the GPUs that work together in one machine",
        "the cluster has to offer the instance type; what the pod uses beyond its requests was not measured; local "
        "disks and networks differ",
        "on the other instance type its real use falls, or it is out of memory of the host",
        "the price tables of the project or of the user, with their dates (docs/reference/instances.md)", _instance,
    ),
    SizingRule(
        "spot", "it can run on spot nodes",
        "a training job declares `dovetail.dev/checkpoint-interval`, or went on after an interruption and completed, "
        "or has runs of less than an hour; and useful work costs at least 10 % less on spot, or, without a price, the "
        "cluster has spot nodes of its model",
        "an interruption costs the work since the last checkpoint, and the restart; spot nodes may not be had",
        "it starts over after an interruption, or nodes are interrupted more often than that",
        "Daly's interval and the break-even of `dovetail spot` (advice.interruptions)", _spot, beside=True,
    ),
    SizingRule(
        "checkpoints", "it has to save its work before it can run on spot nodes",
        "a training job for which spot would be cheaper as above, and nothing shows that it saves its work",
        "saving takes time, and storage", "it saves its work, and does not declare it",
        "Daly's interval and the break-even of `dovetail spot` (advice.interruptions)", _checkpoints, beside=True,
    ),
)  # fmt: skip
