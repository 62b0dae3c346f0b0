# SPDX-License-Identifier: Apache-2.0
"""Faults: a job that hangs, waits for one GPU, or does not use what it has does not show its size."""

from __future__ import annotations

import re

from dovetail.advice.sizing import thresholds as limits
from dovetail.advice.sizing.rule import SizeChange, SizeProposal
from dovetail.advice.sizing.seen import JobSeen, gib, percent
from dovetail.monitoring.bottleneck import STRAGGLER

_OUT_OF_MEMORY = re.compile(r"CUDA(_ERROR_| error: | )out[ _]of[ _]memory|OutOfMemoryError: CUDA", re.IGNORECASE)
_HOUR_MS = 3_600_000


def hung(seen: JobSeen) -> SizeProposal | None:
    longest_ms = max((one.hung_ms for one in seen.members), default=0)
    if longest_ms < limits.HUNG_MS:
        return None
    return SizeProposal(
        f"a GPU ran at full utilization near idle power for {longest_ms // _HOUR_MS} h: kernels are resident and do "
        f"not advance",
        "see where its ranks wait (py-spy dump, NCCL_DEBUG=INFO), and set a timeout of NCCL; its size does not matter",
        gain="the GPU time in which it hangs",
    )


def unused(seen: JobSeen) -> SizeProposal | None:
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


def straggler(seen: JobSeen) -> SizeProposal | None:
    if seen.workload != "training" or seen.part_of_runs(STRAGGLER.name) < limits.STRAGGLES:
        return None
    means = [one.mean_milli for one in seen.members]
    return SizeProposal(
        f"a GPU of the job is used {percent(min(means))}, others up to {percent(max(means))}: they wait for it",
        "compare its clocks, throttling, NVLinks and data loading (`dovetail top`); its size does not matter",
        gain="the time in which the others wait for it",
    )


def idle(seen: JobSeen) -> SizeProposal | None:
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


def out_of_memory(seen: JobSeen) -> SizeProposal | None:
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
