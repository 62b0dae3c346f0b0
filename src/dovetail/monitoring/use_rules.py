# SPDX-License-Identifier: Apache-2.0
"""Rules about the use of GPUs by device, job, team, node and cluster, and alerts about GPUs that are held unused.

Rules: `gpu:*` have one series per device and owner, with the labels of `rule.DEVICE`; a shared GPU has one for each
owner, so that sums over owners are weighted by `gpu:allocated`. GPU-hours are counted in steps of the threshold
`interval`: while Prometheus is down nothing is counted. Means over days are of hourly and daily values, so that no rule
reads more than some thousand samples of a series.
"""

from __future__ import annotations

from dovetail.monitoring.real_use import PARTS, SIGMA_BY_MAD
from dovetail.monitoring.rule import JOB, POD, Alert, Recording, RuleGroup, device, node, team

_KEY = "UUID, GPU_I_ID, namespace, pod, container, vgpu"
"""The labels that identify a device and its owner. Few labels make joins of many series fast."""
_UTILIZATION = f"""max by ({_KEY}) (DCGM_FI_DEV_GPU_UTIL / 100)
or max by ({_KEY}) (DCGM_FI_PROF_GR_ENGINE_ACTIVE)"""
_PROFILED = " + ".join(f"{part.weight} * max by ({_KEY}) ({part.metric})" for part in PARTS)
_UNPROFILED = " + ".join(
    f"{part.weight} * (max by ({_KEY}) ({part.metric} and on (UUID) gpu:unprofiled) or gpu:unprofiled)"
    for part in PARTS
)
_REAL_UTIL = f"gpu:allocated * 0 + on ({_KEY}) group_left () (gpu:profiled_util or {_UNPROFILED})"
_ALLOCATED = """dovetail_gpu_allocated_share or (
  (DCGM_FI_DEV_FB_USED{pod!=""} * 0 + 1 or DCGM_FI_DEV_FB_USED{pod=""} * 0)
  unless on (UUID) dovetail_gpu_allocated_share
)"""
_SINCE = "(last_over_time(gpu:since[10m]) and gpu:allocated > 0) or (gpu:allocated > 0) * 0 + time()"
_WAITING = 'kube_pod_container_status_waiting_reason{reason=~"ContainerCreating|PodInitializing|.*ImagePull.*"} == 1'
_STARTUP = f"""(gpu:allocated > 0) and (
  time() - gpu:since < @settle.seconds
  or gpu:since and on (namespace, pod) {_WAITING}
)"""
_IDLE = "((gpu:allocated > 0) * (avg_over_time(gpu:real_util[5m]) < bool @idle_util)) unless gpu:startup"
_FREE = """(max by (hostname, modelName, UUID) (gpu:allocated{GPU_I_ID=""}) == 0)
unless on (UUID) gpu:allocated{GPU_I_ID!=""}
unless on (UUID) (dovetail_gpu_healthy == 0)
unless on (UUID) gpu:unattributed"""
_OLD = f"{node('dovetail_exporter_owners_age_seconds')} > @owners_age.seconds"
_UNATTRIBUTED = f"""(gpu:allocated and on (hostname) ({_OLD}))
or ((gpu:allocated == 0) and on (UUID) (dovetail_gpu_processes{{holder="other_pod"}} > 0))"""

_DEVICES = RuleGroup("dovetail-gpu", (
    Recording("gpu:allocated", device(_ALLOCATED),
              "Part of the device that the pod holds, 0 (and no pod) for a free one."),
    Recording("gpu:unattributed", _UNATTRIBUTED,
              "Devices whose owner is unknown: the node's list of owners is old (`owners_age`), or pods compute on a "
              "device that no pod holds. Its value is what is known of `gpu:allocated`."),
    Recording("gpu:since", _SINCE, "When the pod was first seen on the device, Unix time in seconds."),
    Recording("gpu:startup", _STARTUP,
              "The part that is held by a pod in its first ten minutes (`settle`), or by one whose images are pulled "
              "(with kube-state-metrics)."),
))  # fmt: skip

_USE = RuleGroup("dovetail-gpu-use", (
    Recording("gpu:utilization", _UTILIZATION,
              "Part of the time in which a kernel ran; where it is not reported, as for MIG instances, that of the "
              "graphics engine. Only with the labels that identify device and owner."),
    Recording("gpu:profiled_util", _PROFILED, "Use by all four profiling values, with the same labels."),
    Recording("gpu:unprofiled", "gpu:utilization unless gpu:profiled_util",
              "`gpu:utilization` of devices that lack one of them."),
    Recording("gpu:real_util", _REAL_UTIL,
              "Use of the device, 0 to 1: 35 % SM active, 35 % tensor pipe, 20 % memory interface, 10 % graphics "
              "engine. Parts that the card does not report are taken from its utilization."),
    Recording("gpu:used", "gpu:real_util * gpu:allocated", "Use, weighted by the part that the pod holds."),
    Recording("gpu:idle_allocated", _IDLE,
              "The part that is held and idle (mean of five minutes below `idle_util`), 0 where it is used; absent "
              "during start-up."),
))  # fmt: skip

_FLEET = RuleGroup("dovetail-fleet", (
    Recording("gpu:free", _FREE, "One series (0) for each whole, healthy GPU that no pod holds."),
    Recording("node:gpus:count", 'count by (hostname) (group by (hostname, UUID) (gpu:allocated))', "GPUs by node."),
    Recording("node:largest_free_block", "count by (hostname) (gpu:free)",
              "Whole, healthy, free GPUs of a node: the largest job that fits on it. Absent where there are none."),
    Recording("cluster:gpus:count", "sum(node:gpus:count)", "GPUs with series."),
    Recording("cluster:gpus_free:count", "count(gpu:free) or cluster:gpus:count * 0", "Free GPUs."),
    Recording("cluster:stranded_gpus",
              '(cluster:gpus_free:count and on () sum(dovetail_waiting_jobs'
              '{reason=~"NoNodeFits|GangDoesNotFit|SearchLimit"}) > 0) or cluster:gpus_free:count * 0',
              "Free GPUs that no waiting job can use: those that are free while jobs wait for room."),
))  # fmt: skip

_COMPARED = '(gpu:real_util:avg10m{GPU_I_ID=""} and gpu:allocated == 1)'
_STRAGGLER = f"""gpu:straggler_gap >= @straggler_gap
and on ({JOB}) (count by ({JOB}) (gpu:straggler_gap) >= @straggler_gpus)
and gpu:straggler_gap > on ({JOB}) group_left () (
  @straggler_sigma * {SIGMA_BY_MAD} * quantile by ({JOB}) (0.5, abs(gpu:straggler_gap))
)"""

_JOBS = RuleGroup("dovetail-jobs", (
    Recording("job:gpu_allocated:sum", f"sum by ({JOB}) (gpu:allocated > 0)", "GPUs that a job holds."),
    Recording("job:gpu_used:sum", f"sum by ({JOB}) (gpu:used and gpu:allocated > 0)", "GPUs that it uses."),
    Recording("gpu:real_util:avg10m", "avg_over_time(gpu:real_util[10m]) and gpu:allocated > 0",
              "Mean use in ten minutes of devices that are held."),
    Recording("job:gpu_real_util:median10m", f"quantile by ({JOB}) (0.5, {_COMPARED})",
              "The median of that over the whole GPUs of a job."),
    Recording("gpu:straggler_gap",
              f"job:gpu_real_util:median10m - on ({JOB}) group_right () {_COMPARED}",
              "How far a whole GPU is below the median of its job."),
    Recording("job:straggler_gap", f"max by ({JOB}) (gpu:straggler_gap)", "The largest such gap of a job."),
    Recording("team:gpu_allocated:sum", team("gpu:allocated > 0"),
              "GPUs that a team holds. The team is the queue where the exporter sets it, else the namespace."),
    Recording("team:gpu_used:sum", team("gpu:used and gpu:allocated > 0"), "GPUs that it uses."),
    Recording("team:gpu_idle:sum", team("gpu:idle_allocated"), "GPUs that it holds idle."),
    Recording("team:gpu_startup:sum", team("gpu:startup"), "GPUs that it holds during start-up."),
))  # fmt: skip


def _hours(level: str, what: str) -> Recording:
    hourly = f"sum_over_time({level}:gpu_{what}:sum[1h]) * @interval.seconds / 3600"
    return Recording(f"{level}:gpu_hours_{what}:1h", hourly, f"GPU-hours of a {level} in the last hour: {what}.")


def _days(level: str, what: str) -> Recording:
    daily = f"sum_over_time({level}:gpu_hours_{what}:1h[1d])"
    return Recording(f"{level}:gpu_hours_{what}:1d", daily, f"GPU-hours of a {level} in the last day: {what}.")


_COUNTED = (
    *(("job", what) for what in ("allocated", "used")),
    *(("team", what) for what in ("allocated", "used", "idle", "startup")),
)
_HOURLY = RuleGroup("dovetail-hourly", tuple(_hours(*one) for one in _COUNTED), "1h")
_DAILY = RuleGroup("dovetail-daily", tuple(_days(*one) for one in _COUNTED), "1d")
_MEANS = RuleGroup("dovetail-means", (
    Recording("job:gpu_real_util:avg1h",
              "(sum_over_time(job:gpu_used:sum[1h]) / sum_over_time(job:gpu_allocated:sum[1h])) "
              "and job:gpu_allocated:sum",
              "Mean use of a running job in the last hour, weighted by GPU and time."),
    Recording("job:gpu_real_util:avg24h",
              "(sum_over_time(job:gpu_hours_used:1h[24h]) / sum_over_time(job:gpu_hours_allocated:1h[24h])) "
              "and job:gpu_allocated:sum",
              "The same over 24 hours; from the first full hour on."),
    Recording("job:gpu_real_util:avg30d",
              "(sum_over_time(job:gpu_hours_used:1d[30d]) / sum_over_time(job:gpu_hours_allocated:1d[30d])) "
              "and job:gpu_allocated:sum",
              "The same over 30 days; from the first full day on."),
    *(Recording(f"team:gpu_hours_{what}", f"sum_over_time(team:gpu_hours_{what}:1h[24h])",
                f"GPU-hours that were {what} in the last 24 hours.")
      for what in ("allocated", "used", "idle", "startup")),
    Recording("team:gpu_real_util:avg30d",
              "sum_over_time(team:gpu_hours_used:1d[30d]) / sum_over_time(team:gpu_hours_allocated:1d[30d])",
              "Mean use of a team's GPUs over 30 days."),
))  # fmt: skip

_HOLDER = "{{ $labels.namespace }}/{{ $labels.pod }}"
_JOB_NAME = "{{ $labels.namespace }}/{{ $labels.job }}"
_IDLE_CHECK = (
    "`kubectl logs` and `kubectl exec POD -- nvidia-smi`: does a process run, and does it wait for data, for another "
    "pod or for a user? `dovetail top` shows what bounds it."
)
_IDLE_ACTION = (
    "End the job, or let it end itself (`activeDeadlineSeconds`, `dovetail.dev/max-runtime`). A notebook that is "
    "needed now and then fits on a shared GPU or a MIG instance."
)
_IDLE_CLEARS = "Each of its GPUs is used again (mean of five minutes), or the pod is gone."


def _idle(pods: str) -> str:
    return f"sum by ({POD}) (gpu:idle_allocated{pods}) > 0"


_ALERTS = RuleGroup("dovetail-use", (
    Alert("IdleAllocatedNotebook", _idle('{pod=~"@notebook_pods"}'), "info", "owner",
          f"Notebook {_HOLDER} holds idle GPUs",
          "{{ $value }} GPUs on {{ $labels.hostname }} are idle for @idle_notebook.",
          "A notebook holds GPUs and has not used them for half an hour. Notebooks are recognized by the name of the "
          "pod (`notebook_pods`). Nothing is counted in the first ten minutes, nor while images are pulled.",
          _IDLE_CHECK, _IDLE_ACTION, _IDLE_CLEARS, lasts="@idle_notebook"),
    Alert("IdleAllocated", _idle('{pod!~"@notebook_pods"}'), "info", "owner",
          f"Pod {_HOLDER} holds idle GPUs",
          "{{ $value }} GPUs on {{ $labels.hostname }} are idle for @idle_job.",
          "A pod holds GPUs and has not used them for an hour. Nothing is counted in the first ten minutes, nor while "
          "images are pulled.",
          _IDLE_CHECK, _IDLE_ACTION, _IDLE_CLEARS, lasts="@idle_job",
          inhibits=("LowUtil",), equal=("namespace", "job")),
    Alert("IdleAllocatedLong", _idle(""), "warning", "operator",
          f"Pod {_HOLDER} holds idle GPUs for hours",
          "{{ $value }} GPUs on {{ $labels.hostname }} are idle for @idle_long; the owner was notified before.",
          "As IdleAllocated, and for hours although the owner was notified.",
          _IDLE_CHECK, "Ask the owner (labels `owner`, `queue`, `namespace`), then evict or scale down.",
          _IDLE_CLEARS, lasts="@idle_long", inhibits=("IdleAllocated", "IdleAllocatedNotebook", "LowUtil"),
          equal=("namespace", "job")),
    Alert("LowUtil", "job:gpu_real_util:avg1h < @low_util", "info", "owner",
          f"Job {_JOB_NAME} uses its GPUs little",
          "Its mean use in the last hour is {{ $value | humanizePercentage }}, below @low_util for @low_util_for.",
          "The hourly mean of a job's GPUs, weighted by GPU, was low for six hours, so the job is older than an hour.",
          "`dovetail top` names the bound: data loading (raise workers, cache data locally), communication (fewer, "
          "closer GPUs), small kernels (larger batches).",
          "Remove the bound, or ask for fewer or smaller GPUs.",
          "The hourly mean is at the threshold or above, or the job has ended.", lasts="@low_util_for"),
    Alert("MonthlyMean",
          "job:gpu_real_util:avg30d < @monthly_util "
          "and count_over_time(job:gpu_hours_allocated:1d[30d]) >= @monthly_days",
          "info", "owner", f"Job {_JOB_NAME} could do with smaller GPUs",
          "Its mean use over 30 days is {{ $value | humanizePercentage }}, below @monthly_util.",
          "Over a month (seven days with values at least) the job used little of what it held. This is advice, not a "
          "fault: a service with short peaks may need its GPUs.",
          "Compare peaks with the mean: a service at 20 % mean and 90 % in its peaks is right-sized.",
          "`dovetail memory` and `dovetail instances` name smaller GPUs and MIG profiles that hold it.",
          "The mean is at the threshold or above, or the job has ended."),
    Alert("JobStraggler", _STRAGGLER,
          "info", "owner", f"A GPU of job {_JOB_NAME} lags behind the others",
          f"GPU {{{{ $labels.gpu }}}} on {{{{ $labels.hostname }}}} (pod {_HOLDER}) is "
          "{{ $value | humanizePercentage }} below the median of its job.",
          "One GPU of a job is used much less than the median of the job, by more than two standard deviations. In a "
          "synchronous job the others wait for it. Only whole GPUs are compared; `dovetail top` has the same as a "
          "class.",
          "Temperature and throttling of that GPU, NVLink and PCIe errors of its node, the load of its CPUs, its data.",
          "Move the pod away from the node; if the node is the cause, cordon it.",
          "The gap is below the threshold.", lasts="@straggler_for"),
))  # fmt: skip

GROUPS = (_DEVICES, _USE, _FLEET, _JOBS, _HOURLY, _DAILY, _MEANS, _ALERTS)
