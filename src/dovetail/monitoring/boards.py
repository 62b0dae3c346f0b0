# SPDX-License-Identifier: Apache-2.0
"""The boards: fleet, node, job, team, health and scheduler, and the documents that Grafana loads.

Rules: queries use the recording rules where there is one (`monitoring.rules`), else metrics of the exporter and of the
scheduler. Steps are the thresholds of the alerts. A GPU is counted once, whatever pods share it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from dovetail.monitoring.board import Board, Panel, Query, Variable, dashboard
from dovetail.monitoring.thresholds import Value, resolved, seconds

_V: Mapping[str, Value] = resolved()
_NODE = Variable("node", "Node", "gpu:allocated", "hostname")
_NAMESPACE = Variable("namespace", "Namespace", "gpu:allocated", "namespace")
_JOB = Variable("job", "Job", "gpu:allocated", "job")
_TEAM = Variable("team", "Team", "team:gpu_allocated:sum", "team")
_QUEUE = Variable("queue", "Queue", "dovetail_queue_allocated", "queue")
_GPU = "{{hostname}} GPU {{gpu}}"
_KEY = "UUID, GPU_I_ID, namespace, pod, container, vgpu"
_PROFILE = (
    ("DCGM_FI_PROF_SM_ACTIVE", "SM active"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "memory"),
)
_MEMORY = (
    'sum by (hostname, gpu) (max by (hostname, gpu, pod, container, vgpu) (DCGM_FI_DEV_FB_USED{GPU_I_ID="", $filter}))'
)
_UNHEALTHY = "count(group by (UUID) (dovetail_gpu_healthy{$filter} == 0)) or vector(0)"


def _number(name: str) -> float:
    return float(_V[name])


def _seconds(name: str) -> float:
    return seconds(str(_V[name]))


_IDLE = ((_number("idle_util"), "yellow"), (_number("low_util"), "green"))
_NONE = ((1.0, "red"),)


def _by_gpu(metric: str, scale: str = "") -> str:
    """The metric once for each GPU, also if several pods share it."""
    return f'max by (hostname, gpu) ({metric}{{GPU_I_ID="", $filter}}){scale}'


def _moved(link: str) -> str:
    """Bytes per second over all instances of a GPU."""
    sent, received = (f"DCGM_FI_PROF_{link}_{way}_BYTES{{$filter}}" for way in ("TX", "RX"))
    return f"sum by (hostname, gpu) (max by (hostname, gpu, GPU_I_ID) ({sent} + {received}))"


def _of_job(metric: str) -> str:
    """The metric of the GPUs of a job, whose label the exporter may lack."""
    return f"gpu:allocated{{$filter}} * 0 + on ({_KEY}) group_left () {metric}"


_FLEET = Board(
    "dovetail-fleet", "GPU fleet", "Are we healthy and busy?", 'hostname=~"$node"',
    (_NODE,),
    (
        ("Now", (
            Panel("GPUs", "How many GPUs are there?", "stat", (Query("sum(node:gpus:count{$filter})"),), width=4),
            Panel("Allocated", "Which part of them is held by pods?", "stat",
                  (Query("sum(gpu:allocated{$filter}) / sum(node:gpus:count{$filter})"),), "percentunit", 4),
            Panel("Used", "Which part of them computes?", "stat",
                  (Query("sum(gpu:used{$filter}) / sum(node:gpus:count{$filter})"),), "percentunit", 4,
                  _IDLE, "red"),
            Panel("Idle but allocated", "How many GPUs are held by pods that do not use them?", "stat",
                  (Query("sum(gpu:idle_allocated{$filter}) or vector(0)"),), "short", 4, ((1.0, "yellow"),)),
            Panel("Largest free block", "How many GPUs of one node can a job get now?", "stat",
                  (Query("max(node:largest_free_block{$filter}) or vector(0)"),), "short", 4),
            Panel("Unhealthy", "How many GPUs are not offered?", "stat",
                  (Query(_UNHEALTHY),), "short", 4, _NONE),
        )),
        ("Use", (
            Panel("GPUs by use", "How did allocation and use change?", "timeseries", (
                Query("sum(node:gpus:count{$filter})", "GPUs"),
                Query("sum(gpu:allocated{$filter})", "allocated"),
                Query("sum(gpu:used{$filter})", "used"),
            )),
            Panel("Free GPUs and what they can hold", "Is the free room usable?", "timeseries", (
                Query("cluster:gpus_free:count", "free"),
                Query("cluster:stranded_gpus", "free that no waiting job can use"),
                Query("max(node:largest_free_block) or vector(0)", "largest free block of a node"),
            )),
            Panel("Use by node", "Which nodes are idle?", "bargauge",
                  (Query("avg by (hostname) (gpu:real_util{$filter})", "{{hostname}}"),), "percentunit", 12,
                  _IDLE, "red", 1.0),
            Panel("Power", "How much power do the GPUs draw?", "timeseries", (
                Query(f"sum by (hostname) ({_by_gpu('DCGM_FI_DEV_POWER_USAGE')})", "{{hostname}}"),
            ), "watt", stacked=True),
            Panel("Idle but allocated, by pod", "Which pods hold idle GPUs?", "table", (
                Query("sum by (namespace, pod, queue, hostname) (gpu:idle_allocated{$filter}) > 0", "idle GPUs"),
            ), width=24, empty="no pod holds an idle GPU", faults=True,
                shown=("namespace", "pod", "queue", "hostname")),
        )),
    ),
)  # fmt: skip

_NODES = Board(
    "dovetail-node", "GPU node", "What does each GPU of this node do, and for which pod?", 'hostname=~"$node"',
    (_NODE,),
    (
        ("GPUs", (
            Panel("Pods", "Which pods hold which GPUs?", "table", (
                Query('gpu:allocated{$filter, pod!=""}', "share"),
            ), "percentunit", 24, empty="no pod holds a GPU",
                shown=("hostname", "gpu", "GPU_I_PROFILE", "modelName", "namespace", "pod", "container", "queue")),
            Panel("Use", "How much of each GPU is used?", "timeseries",
                  (Query("max by (hostname, gpu) (gpu:real_util{$filter})", _GPU),), "percentunit", most=1.0),
            Panel("Utilization", "In which part of the time does a kernel run?", "timeseries",
                  (Query(_by_gpu("DCGM_FI_DEV_GPU_UTIL"), _GPU),), "percent", most=100.0),
            Panel("Memory used", "How much memory is in use?", "timeseries",
                  (Query(_MEMORY, _GPU),), "decmbytes"),
            Panel("Memory interface", "Is memory bandwidth what bounds it?", "timeseries",
                  (Query("max by (hostname, gpu) (DCGM_FI_PROF_DRAM_ACTIVE{$filter})", _GPU),), "percentunit",
                  most=1.0, empty="these GPUs do not report it"),
            Panel("Tensor cores", "Are the tensor cores busy?", "timeseries",
                  (Query("max by (hostname, gpu) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{$filter})", _GPU),),
                  "percentunit", most=1.0, empty="these GPUs do not report it"),
            Panel("PCIe and NVLink", "How much is moved?", "timeseries", (
                Query(_moved("PCIE"), f"{_GPU} PCIe"),
                Query(_moved("NVLINK"), f"{_GPU} NVLink"),
            ), "Bps", empty="these GPUs do not report it"),
        )),
        ("Hardware", (
            Panel("Temperature", "Is a GPU hot?", "timeseries", (Query(_by_gpu("DCGM_FI_DEV_GPU_TEMP"), _GPU),),
                  "celsius", steps=((_number("gpu_temp"), "yellow"), (_number("gpu_temp_critical"), "red"))),
            Panel("Power", "How much power does each GPU draw?", "timeseries",
                  (Query(_by_gpu("DCGM_FI_DEV_POWER_USAGE"), _GPU),), "watt"),
            Panel("SM clock", "How fast do the SMs run?", "timeseries",
                  (Query(_by_gpu("DCGM_FI_DEV_SM_CLOCK", " * 1e6"), _GPU),), "hertz"),
            Panel("Lowered clocks", "Which limits lower the clocks?", "timeseries",
                  (Query("max by (hostname, gpu, reason) (gpu:throttle_ratio{$filter})", _GPU + " {{reason}}"),),
                  "percentunit", empty="no limit lowers the clocks", faults=True,
                  steps=((_number("throttle_ratio"), "yellow"),)),
        )),
    ),
)  # fmt: skip

_JOBS = Board(
    "dovetail-job", "GPU job", "Does this job use what it holds, and what bounds it?",
    'namespace=~"$namespace", job=~"$job"', (_NAMESPACE, _JOB),
    (
        ("Now", (
            Panel("GPUs held", "How many GPUs does it hold?", "stat",
                  (Query("sum(job:gpu_allocated:sum{$filter})"),), width=6),
            Panel("Use", "Which part of them is used?", "stat",
                  (Query("sum(job:gpu_used:sum{$filter}) / sum(job:gpu_allocated:sum{$filter})"),),
                  "percentunit", 6, _IDLE, "red"),
            Panel("Idle GPUs", "How many of them are idle?", "stat",
                  (Query("sum(gpu:idle_allocated{$filter}) or vector(0)"),), "short", 6, ((1.0, "yellow"),)),
            Panel("Straggler", "How far is the slowest GPU below the median?", "stat",
                  (Query("max(job:straggler_gap{$filter})"),), "percentunit", 6,
                  ((_number("straggler_gap"), "yellow"),)),
        )),
        ("GPUs", (
            Panel("Use by GPU", "Do all GPUs do the same work?", "timeseries",
                  (Query("gpu:real_util{$filter}", "{{pod}} " + _GPU),), "percentunit", most=1.0),
            Panel("SM active and tensor", "Does it compute, and on tensor cores?", "timeseries", (
                *(Query(f"avg by (namespace, job) ({_of_job(one)})", "{{job}} " + name) for one, name in _PROFILE),
            ), "percentunit", most=1.0, empty="its GPUs do not report it"),
            Panel("Memory used", "How near is it to running out of memory?", "timeseries", (
                Query(_of_job("DCGM_FI_DEV_FB_USED"), "{{pod}} " + _GPU),
            ), "decmbytes"),
            Panel("Members", "Which pods of it are where?", "table",
                  (Query("sum by (namespace, job, pod, hostname) (gpu:allocated{$filter} > 0)", "GPUs"),),
                  empty="it holds no GPU", shown=("namespace", "job", "pod", "hostname")),
        )),
    ),
)  # fmt: skip

_TEAMS = Board(
    "dovetail-team", "GPU teams", "How much does each team hold, use and wait for?", "",
    (_TEAM, _QUEUE),
    (
        ("Teams", (
            Panel("GPUs held", "How many GPUs does each team hold?", "timeseries",
                  (Query('team:gpu_allocated:sum{team=~"$team"}', "{{team}}"),), stacked=True),
            Panel("GPUs used", "How many of them does it use?", "timeseries",
                  (Query('team:gpu_used:sum{team=~"$team"}', "{{team}}"),), stacked=True),
            Panel("GPUs held idle", "Which team holds idle GPUs?", "timeseries",
                  (Query('team:gpu_idle:sum{team=~"$team"}', "{{team}}"),), stacked=True),
            Panel("Efficiency", "Which part of what it holds does it use?", "bargauge",
                  (Query('sum by (team) (team:gpu_used:sum{team=~"$team"}) / '
                         'sum by (team) (team:gpu_allocated:sum{team=~"$team"})', "{{team}}"),),
                  "percentunit", 12, _IDLE, "red", 1.0),
        )),
        ("Queues", (
            Panel("Fair share", "Has each queue what is due to it?", "table", (
                Query('sum by (queue) (dovetail_queue_allocated{queue=~"$queue", resource="gpu"})', "allocated"),
                Query('sum by (queue) (dovetail_queue_due{queue=~"$queue", resource="gpu"})', "fair share"),
                Query('sum by (queue) (dovetail_queue_borrowed{queue=~"$queue", resource="gpu"})', "borrowed"),
                Query('sum by (queue) (dovetail_queue_pending_jobs{queue=~"$queue"})', "waiting jobs"),
            ), empty="no Queue is defined", shown=("queue",)),
            Panel("Waiting jobs", "How many jobs wait in each queue?", "timeseries",
                  (Query('dovetail_queue_pending_jobs{queue=~"$queue"}', "{{queue}}"),), empty="no Queue is defined"),
        )),
    ),
)  # fmt: skip

_HEALTH = Board(
    "dovetail-health", "GPU health", "Which GPUs are broken, since when, and which pods are hit?", 'hostname=~"$node"',
    (_NODE,),
    (
        ("Now", (
            Panel("Missing GPUs", "Does a node have fewer GPUs than it should?", "stat",
                  (Query("sum(node:gpus_missing:count{$filter} > 0) or vector(0)"),), "short", 6, _NONE),
            Panel("Unhealthy GPUs", "How many GPUs are not offered?", "stat",
                  (Query(_UNHEALTHY),), "short", 6, _NONE),
            Panel("GPUs with new XIDs", "How many GPUs reported an XID in the last minutes?", "stat",
                  (Query("count(group by (UUID) (gpu:xid_new{$filter})) or vector(0)"),), "short", 6, _NONE),
            Panel("Oldest reading", "Are the readings fresh?", "stat",
                  (Query("max(dovetail_exporter_reading_age_seconds{$filter})"),), "s", 6,
                  ((_seconds("reading_age"), "yellow"),)),
            Panel("Unhealthy", "Which GPUs are not offered, and which pods hold them?", "table",
                  (Query("dovetail_gpu_healthy{$filter} == 0", "healthy"),), width=24, faults=True,
                  empty="all GPUs are healthy",
                  shown=("hostname", "gpu", "GPU_I_PROFILE", "modelName", "UUID", "namespace", "pod")),
            Panel("New XIDs", "Which errors were reported, and for which pod?", "table",
                  (Query("gpu:xid_new{$filter}", "seconds ago"),), "s", 24, faults=True, empty="no new XID",
                  shown=("hostname", "gpu", "xid", "action", "namespace", "pod", "queue")),
        )),
        ("Errors", (
            Panel("XIDs", "Which XIDs are reported, over time?", "timeseries",
                  (Query("sum by (hostname, xid) (increase(dovetail_gpu_xids_total{$filter}[$__rate_interval])) > 0",
                         "{{hostname}} XID {{xid}}"),), empty="no XID", faults=True),
            Panel("Double-bit ECC errors", "Do memory errors that ECC cannot correct occur?", "timeseries",
                  (Query("gpu:ecc_dbe_delta{$filter}", "{{hostname}} {{UUID}}"),), empty="none", faults=True),
            Panel("NVLink CRC errors", "Are links bad?", "timeseries",
                  (Query("nvlink:crc_rate{$filter}", "{{hostname}} {{UUID}}"),), "ops", empty="none", faults=True),
            Panel("PCIe replays", "Are slots bad?", "timeseries",
                  (Query("pcie:replay_rate{$filter}", "{{hostname}} {{UUID}}"),), "ops", empty="none",
                  faults=True),
            Panel("Margin to slowdown", "How much hotter may each GPU become?", "timeseries",
                  (Query(_by_gpu("dovetail_gpu_slowdown_margin_celsius"), _GPU),), "celsius"),
            Panel("Lowered clocks", "Which limits lower the clocks?", "timeseries",
                  (Query("max by (hostname, gpu, reason) (gpu:throttle_ratio{$filter})", _GPU + " {{reason}}"),),
                  "percentunit", empty="no limit lowers the clocks", faults=True),
        )),
        ("Processes", (
            Panel("Memory of processes without a share", "Does a process use a GPU that it does not hold?",
                  "timeseries", (
                Query("sum by (hostname, gpu, holder) (dovetail_gpu_unowned_memory_bytes{$filter}) > 0",
                      _GPU + " {{holder}}"),
            ), "bytes", 24, empty="none", faults=True),
        )),
    ),
)  # fmt: skip

_SCHEDULER = Board(
    "dovetail-scheduler", "GPU scheduler", "Is scheduling fast and sound, and why do jobs wait?", "",
    (),
    (
        ("Jobs", (
            Panel("Waiting jobs by reason", "Why do jobs wait?", "timeseries",
                  (Query("sum by (reason) (sched:pending_jobs:sum)", "{{reason}}"),), stacked=True,
                  empty="no job waits"),
            Panel("Longest wait by reason", "How long do they wait?", "timeseries",
                  (Query("max by (reason) (sched:pending_age_max)", "{{reason}}"),), "s", empty="no job waits"),
            Panel("Wait until the bind", "How long did the jobs wait that started?", "timeseries", (
                Query("histogram_quantile(0.5, sum by (le) (rate(dovetail_wait_seconds_bucket[$__rate_interval])))",
                      "median"),
                Query("histogram_quantile(0.95, sum by (le) (rate(dovetail_wait_seconds_bucket[$__rate_interval])))",
                      "p95"),
            ), "s", empty="no job has started"),
            Panel("Decisions", "What does it decide?", "timeseries",
                  (Query("sum by (kind) (rate(dovetail_decisions_total[$__rate_interval]))", "{{kind}}"),), "ops"),
        )),
        ("Scheduler", (
            Panel("Leaders", "Does one process lead?", "stat", (Query("sched:leaders:count"),), "short", 6,
                  ((1.0, "green"), (2.0, "red")), "red"),
            Panel("Oldest watch", "How old is what it knows?", "stat", (Query("max(sched:cache_age)"),), "s", 6,
                  ((_seconds("cache_age"), "yellow"),)),
            Panel("Queued reports", "Do conditions and events lag behind?", "stat",
                  (Query("sum(dovetail_reports_queued)"),), "short", 6),
            Panel("Reserved wait", "How long is room held for the job that waits longest?", "stat",
                  (Query("max(dovetail_reserved_wait_seconds)"),), "s", 6),
            Panel("Step", "How long does a decision step take?", "timeseries", (
                Query("histogram_quantile(0.5, sum by (le) (rate(dovetail_step_seconds_bucket[$__rate_interval])))",
                      "median"),
                Query("histogram_quantile(0.99, sum by (le) (rate(dovetail_step_seconds_bucket[$__rate_interval])))",
                      "p99"),
            ), "s"),
            Panel("Binds", "How do binds end?", "timeseries",
                  (Query("sum by (result) (rate(dovetail_binds_total[$__rate_interval]))", "{{result}}"),), "ops",
                  empty="no bind yet"),
            Panel("Evictions", "Why are jobs evicted?", "timeseries",
                  (Query("sum by (cause, result) (increase(dovetail_evictions_total[$__rate_interval])) > 0",
                         "{{cause}}: {{result}}"),), empty="no eviction", faults=True),
            Panel("Kubelet rejections", "Do kubelets reject pods?", "timeseries",
                  (Query("sum by (reason) (increase(dovetail_kubelet_rejections_total[$__rate_interval])) > 0",
                         "{{reason}}"),), empty="none", faults=True),
        )),
    ),
)  # fmt: skip

BOARDS = (_FLEET, _NODES, _JOBS, _TEAMS, _HEALTH, _SCHEDULER)


def documents() -> dict[str, dict[str, Any]]:
    """Grafana's documents by uid."""
    return {board.uid: dashboard(board, BOARDS) for board in BOARDS}


def config_map_name(uid: str) -> str:
    """The name of the ConfigMap of a board, and of the file in it. Not the uid: `dovetail-node` would read as the
    configuration of nodes."""
    return f"dovetail-board-{uid.removeprefix('dovetail-')}"


def config_maps(namespace: str = "dovetail-system") -> list[dict[str, Any]]:
    """A ConfigMap for each board; the sidecar of Grafana's Helm chart loads those with this label."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace, "labels": {"grafana_dashboard": "1"}},
            "data": {f"{name}.json": text},
        }
        for name, text in _texts().items()
    ]


@cache
def _texts() -> dict[str, str]:
    """The files by name: the operator asks for them at each turn, and they are always the same."""
    return {config_map_name(uid): json.dumps(board, indent=1) for uid, board in documents().items()}
