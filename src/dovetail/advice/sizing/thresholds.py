# SPDX-License-Identifier: Apache-2.0
"""The numbers of the rules for sizes, in thousandths unless their names have another unit, each with its reason."""

from __future__ import annotations

from dovetail.history.records import HOUR_MS

FEWEST_DAYS, FEWEST_RUNS = 7, 20
"""Less is not enough data: a week has its quiet days."""
LEAST_COVERAGE = 500
"""A job of which less was measured could have done anything."""
ONE_DAY_MS = 24 * HOUR_MS
"""How much must be measured to call a job idle: Kubeflow culls notebooks after 24 h."""
HUNG_MS = HOUR_MS
IDLE_JOB_P95, IDLE_JOB_MEAN, IDLE_NOTEBOOK = 50, 10, 700
"""A job is idle if it is so 95 % of the time, and used 1 % in the mean: a service that is used 3 % does serve. A
notebook is if it is used less than a third of the time for which it is held."""
UNUSED_IDLE, USED_P95 = 950, 200
STRAGGLES, CLASS_TIME = 500, 500
"""The part of the time in which a class has to hold."""
QUIET_P95 = 700
"""A job that needs more does use its GPU at times: its mean does not show its size."""
GAP, GAP_P95 = 100, 500
"""Gaps of a tenth of the time, in hours whose busy time is real work."""
GPU_LOAD = 800
"""The most real use that is planned for a GPU: above it queues form. NVIDIA calls SM activity of 80 % effective use."""
MEMORY_LOAD = 900
"""The most memory that is planned for one job, as `dovetail memory` keeps 10 % free."""
SHARED_MEMORY_LOAD = 800
"""The most memory that is planned for several pods on one GPU, which nothing keeps apart."""
SAME_MEMORY = 980
"""GPUs of 80 GB differ by some hundred MiB."""
MOST_SHARES = 8
FULL_PART = 500
"""Of a part of a GPU: one that needs more would not fit on half of it."""
SHARE_STEP = 50
"""Shares are advised in twentieths of a GPU."""
MIG_SLICES = 3
"""The largest MIG profile, in compute slices, that is advised: above it a card has room for one instance only."""
NVLINK_PART = 50
"""Of what PCIe carries: NVLink has some traffic of its own."""
CHEAPER = 100
"""The part that an instance type or spot has to be cheaper by: a move has its own cost, and prices change."""
HOST_LOAD = 900
"""The part of a node's CPUs and memory that pods can request: the system and the kubelet keep the rest."""
HOST_MARGIN = 150
"""What is requested beyond the CPUs and the memory of the busiest hour, as the recommender of VPA has it."""
SPARE_HOST = 500
"""At most this part of the CPUs or memory that are requested is used: the rest keeps others from the node's GPUs."""
LEAST_CPU_MILLI, LEAST_MEMORY_MIB = 1000, 1024
"""What a pod with GPUs is advised to request for each of them at least: one CPU, and a GiB."""
SHORT_RUN_MS = HOUR_MS
"""A shorter run may start over after an interruption."""
SPOT_MTBI_S = 8 * 3600
"""The assumed time between two interruptions of a spot node. No cloud states it; see the least time in the advice."""
RESTART_S = 600
"""The assumed time from an interruption until work goes on, with the wait for another node."""
CHECKPOINT_MIB_S = 512
"""The assumed rate at which the memory of a GPU is saved."""
FEW_CPUS = 4
"""For each GPU: below it a loader and the process that starts kernels share too few."""
CPUS_PER_GPU = 8
"""What is proposed where a manifest requests no CPUs; clouds have 8 to 24 for each GPU of a training node."""
