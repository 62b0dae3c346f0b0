# SPDX-License-Identifier: Apache-2.0
"""The rules for sizes, as a table: when what is advised.

Rules: faults come first, as a job that hangs or waits for one GPU does not show its size; then what keeps the GPUs
from work, for which a smaller GPU would be no help; then sizes. No rule is triggered by a mean of real use alone.
"""

from __future__ import annotations

from dovetail.advice.sizing import faults, host_requests, machines, sizes, waits
from dovetail.advice.sizing.rule import SizingRule
from dovetail.monitoring.bottleneck import COMMUNICATION, HUNG, STRAGGLER

_3G = "right-sizing rules: memory peak that fits, and p95 below 1/7, 2/7 or 3/7"
_KEMPNER = "classes of KempnerPulse (docs/classification.md, April 2026)"
RULES: tuple[SizingRule, ...] = (
    SizingRule(
        HUNG.name, "it hangs", "a GPU hung for an hour or more",
        "none: nothing is lost by a look", "its log, or its checkpoints, went on in that time",
        "utilization of 100 % by a kernel that spins (stas00/ml-engineering, network debugging)", faults.hung,
        early=True,
    ),
    SizingRule(
        "unused-gpus", "GPUs of the pod are not used",
        "some GPUs of a pod were idle at least 95 % of the time, and others were not",
        "a phase that needs all of them, and did not come in the window",
        "a run uses the GPUs that were idle", "GPUs that a program does not see are idle, whatever its load",
        faults.unused,
    ),
    SizingRule(
        STRAGGLER.name, "one GPU is slower than the others",
        "a GPU of a training job is used less than the median of the job in at least half of the runs' time",
        "none: nothing is lost by a look", "the same GPU is as fast as the others in another job",
        "DCGM: a member that differs from the median by more than two standard deviations", faults.straggler,
        early=True,
    ),
    SizingRule(
        "idle", "it holds GPUs and does not use them",
        "a day was measured, and it was idle at least 95 % of that and used at most 1 % in the mean (a notebook: idle "
        "at least 70 %)",
        "the next start takes as long as the queue and the image; what is not saved is lost",
        "it did work that NVML does not see, or its load comes once a month",
        "Kubeflow culls notebooks after 1440 minutes (ENABLE_CULLING)", faults.idle, early=True,
    ),
    SizingRule(
        "out-of-memory", "the memory of its GPU is too small", "a pod failed with CUDA's message for lack of memory",
        "a larger GPU costs more", "the same run completes with the same memory", "CUDA's and PyTorch's error messages",
        faults.out_of_memory,
    ),
    SizingRule(
        "io-bound", "it waits for data",
        "class io-bound at least half of the time, with a p95 of at most 70 %. More CPUs are not advised where less "
        "than half of those that it requests was used",
        "more CPUs than a node has for each GPU make the job wait", "with twice the CPUs its real use does not rise",
        f"{_KEMPNER}; 46 % of the causes of low use are data operations (ICSE 2024, doi 10.1145/3597503.3639232)",
        waits.io_bound,
    ),
    SizingRule(
        "few-cpus", "it has few CPUs for its GPUs",
        "class small-kernels at least half of the time, with a p95 of at most 70 %, and fewer than 4 CPUs are "
        "requested for each GPU, of which at least half was used where that was measured",
        "more CPUs than a node has for each GPU make the job wait", "with more CPUs its real use does not rise",
        f"{_KEMPNER}: busy with few SMs is bound by small kernels, synchronization or the CPU", waits.few_cpus,
    ),
    SizingRule(
        "link", "a slow link connects its GPUs",
        "class communication-bound at least half of the time, with two or more GPUs, of training, or of another job "
        "that is no service and has a p99 of at most 70 %; and most of the time "
        "they were in several zones, in more nodes than hold as many, or, within a node, they exchanged over PCIe",
        "it waits longer for a place that is closer together",
        "in the place that it asks for a step takes as long; or what it moves over PCIe is memory of the host "
        "(offload)",
        "NCCL's paths: NVLink, then PCIe, then the network; the placement in the history", waits.link,
    ),
    SizingRule(
        COMMUNICATION.name, "its GPUs wait for one another",
        "class communication-bound at least half of the time, with two or more GPUs, of training, or of another job "
        "that is no service and has a p99 of at most 70 %",
        "with fewer GPUs a run takes longer where transfers are not the limit",
        "with half the GPUs a step takes twice as long",
        "NVLink and PCIe transfers against SM activity, as DCGM profiles them", waits.communication,
    ),
    SizingRule(
        "memory-bound", "memory bandwidth bounds it",
        "class memory-bound at least half of the time, with a p95 of at most 70 %",
        "a GPU with more bandwidth costs more", "on a GPU with more bandwidth a step takes as long", _KEMPNER,
        waits.memory_bound,
    ),
    SizingRule(
        "epoch-gaps", "it is idle between times of work",
        "a training job is idle a tenth of the time or more in hours of work, and its p95 is 50 % or more",
        "an evaluation elsewhere sees a model that is some steps old",
        "the idle times are not those of evaluations and checkpoints",
        "a GPU that is low only between epochs is not too large", waits.gaps,
    ),
    SizingRule(
        "mig", "a MIG instance is enough",
        "one GPU for each pod, a p95 (p99 of a service) below the compute slices of a profile of up to 3 of 7, and a "
        "memory peak of at most 90 % of its memory",
        "the node has to offer the profile; bandwidth is divided with the memory; an instance has no NVLink",
        "its load rises above that of the window, or its real use on the instance reaches 90 % at the p95",
        f"NVIDIA's MIG user guide; {_3G}", sizes.mig,
    ),
    SizingRule(
        "fewer-gpus", "fewer GPUs do the same work",
        "the p95 of the busiest GPU (p99 of a service) and the memory of all fit on a divisor of the number of GPUs, "
        "at 80 % and 90 %",
        "a run takes longer where several GPUs were faster together",
        "with fewer GPUs a step takes longer in proportion",
        "SM activity of 80 % is effective use (NVIDIA's guidance for DCGM)", sizes.fewer,
    ),
    SizingRule(
        "smaller-gpu", "a smaller GPU is enough",
        "a slower model of the cluster holds the p95 (p99 of a service) at 80 %, scaled by tensor rate and bandwidth, "
        "and the memory at 90 %",
        "peak rates are not what every kernel gets; number formats and features differ between models",
        "on the smaller GPU a request or a step takes longer than its owner can accept",
        "NVIDIA's data sheets (advice.speeds)", sizes.smaller,
    ),
    SizingRule(
        "share", "it can share a GPU",
        "one GPU for each pod of a service or a notebook, of which two or more fit: memory peaks and p99 up to 80 %",
        "time-slicing keeps nothing apart: only with pods that are trusted, and whose loads do not peak together",
        "its latency rises when the others on the GPU are busy", f"NVIDIA's device plugin, time-slicing; {_3G}",
        sizes.share,
    ),
    SizingRule(
        "smaller-instance", "a smaller MIG instance is enough",
        "one MIG instance for each pod, and a smaller profile of its GPU holds the p95 (p99 of a service) at 80 %, "
        "scaled by compute and memory slices, and a memory peak of at most 90 % of its memory",
        "the node has to offer the profile; bandwidth is divided with the memory",
        "its load rises above that of the window, or its real use on the instance reaches 90 % at the p95",
        f"NVIDIA's MIG user guide; {_3G}", sizes.smaller_instance,
    ),
    SizingRule(
        "smaller-share", "a smaller share of a GPU is enough",
        "one share for each pod, of which the memory peak at 90 % and the p95 (p99 of a service) at 80 % need at most "
        "half, in twentieths of a GPU",
        "time-slicing keeps nothing apart: pods that get the rest take time on the GPU, too",
        "its latency rises when the others on the GPU are busy, or it is out of memory",
        f"NVIDIA's device plugin, time-slicing; {_3G}", sizes.smaller_share,
    ),
    SizingRule(
        "instance", "another instance type has the same GPUs for less",
        "an instance type of its cloud and region costs at least 10 % less for each GPU, and has for each pod the CPUs "
        "and the memory that it requests or uses, and the GPUs that work together in one machine",
        "the cluster has to offer the instance type; where its use of CPUs and memory was not measured it may use more "
        "than it requests; local disks and networks differ",
        "on the other instance type its real use falls, or it is out of memory of the host",
        "the price tables of the project or of the user, with their dates (docs/reference/instances.md)",
        machines.instance,
    ),
    SizingRule(
        "host-requests", "it requests CPUs or memory of its node that it does not use",
        "the CPUs of its busiest hour, or its most memory, each with 15 % more and at least one CPU and one GiB for "
        "each GPU, are at most half of what it requests; measured for half of the time; and class neither io-bound "
        "nor small-kernels half of the time",
        "a start-up that needs more for minutes takes longer; other requests than limits change the QoS class, and "
        "with it whether CPUs are its own",
        "with the smaller requests its real use falls, or it is evicted or killed for lack of memory",
        "the recommender of VPA: what was used, and 15 % more; the cgroups of the pods", host_requests.spare,
        beside=True,
    ),
    SizingRule(
        "spot", "it can run on spot nodes",
        "a training job declares `dovetail.dev/checkpoint-interval`, or went on after an interruption and completed, "
        "or has runs of less than an hour; and useful work costs at least 10 % less on spot, or, without a price, the "
        "cluster has spot nodes of its model",
        "an interruption costs the work since the last checkpoint, and the restart; spot nodes may not be had",
        "it starts over after an interruption, or nodes are interrupted more often than that",
        "Daly's interval and the break-even of `dovetail spot` (advice.interruptions)", machines.on_spot,
        beside=True,
    ),
    SizingRule(
        "checkpoints", "it has to save its work before it can run on spot nodes",
        "a training job for which spot would be cheaper as above, and nothing shows that it saves its work",
        "saving takes time, and storage", "it saves its work, and does not declare it",
        "Daly's interval and the break-even of `dovetail spot` (advice.interruptions)", machines.checkpoints,
        beside=True,
    ),
)  # fmt: skip
