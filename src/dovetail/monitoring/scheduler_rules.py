# SPDX-License-Identifier: Apache-2.0
"""Rules about waiting jobs and about the scheduler itself.

Rules: the leader alone knows why jobs wait; its followers have none of these series. Labels name namespace and queue of
waiting jobs, not the jobs: their number is not bounded, and `dovetail queue` lists them.
"""

from __future__ import annotations

from dovetail.monitoring.rule import Alert, Recording, RuleGroup

_WAITS = "namespace, queue, reason, when"
_PENDING = f"""(sched:pending_age_max{{when="NotYet"}} > @pending_min.seconds)
unless on ({_WAITS}) (
  sched:pending_age_max{{when="NotYet"}} <= on (queue) group_left () (@pending_factor * sched:wait:median1d)
)"""
_BUDGET_PART = (
    "max by (queue) (dovetail_queue_budget_used_gpu_hours) / max by (queue) (dovetail_queue_budget_gpu_hours)"
)
_MONEY_PART = "max by (queue) (dovetail_queue_budget_spent_money) / max by (queue) (dovetail_queue_budget_money)"
_IN_QUEUE = "in namespace {{ $labels.namespace }}, queue {{ $labels.queue }}"

_RECORDINGS = (
    Recording("sched:pending_age_max", f"max by ({_WAITS}) (dovetail_waiting_age_seconds)",
              "The longest wait by namespace, queue, reason and verdict, in seconds."),
    Recording("sched:pending_jobs:sum", f"sum by ({_WAITS}) (dovetail_waiting_jobs)", "Waiting jobs by the same."),
    Recording("sched:wait:median1d",
              "histogram_quantile(0.5, sum by (queue, le) (rate(dovetail_wait_seconds_bucket[1d])))",
              "Median time from creation to bind in the last day, by queue, in seconds."),
    Recording("sched:bind_conflicts", 'sum(rate(dovetail_binds_total{result="conflict"}[5m]))',
              "Binds per second that met a conflict."),
    Recording("sched:cache_age", "max by (resource) (dovetail_watch_staleness_seconds)",
              "Seconds since the API server sent anything, by kind."),
    Recording("sched:leaders:count", "sum(dovetail_leader)", "Processes that lead."),
)  # fmt: skip

_ALERTS = (
    Alert("PendingNever", 'sched:pending_jobs:sum{when="Never"} > 0', "warning", "owner",
          f"Jobs can never start {_IN_QUEUE}", "{{ $value }} jobs, reason {{ $labels.reason }}.",
          "No change that the scheduler waits for lets these jobs start: they request what no node has, or a field is "
          "wrong.",
          "`dovetail queue -n NAMESPACE` lists them, `dovetail why POD` names field, value and rule.",
          "Change or delete the job.", "The jobs are gone or can start."),
    Alert("PendingNotYet", _PENDING, "info", "owner",
          f"Jobs wait long {_IN_QUEUE}", "The oldest for {{ $value | humanizeDuration }}, reason {{ $labels.reason }}.",
          "The oldest job waits for more than twice the median wait of its queue, and for 15 minutes at least.",
          "`dovetail queue`: its position and expected start; `dovetail free`: what still fits.",
          "Ask for a shape that fits, or for more quota. Operators: `dovetail defrag`.",
          "The job has started, or waits no longer than twice the median."),
    Alert("GangPartial", "max by (namespace, queue) (dovetail_partial_gang_age_seconds) > @gang_partial.seconds",
          "warning", "owner", f"A gang holds GPUs without running {_IN_QUEUE}",
          "Some of its pods are bound for {{ $value | humanizeDuration }}.",
          "Some pods of a gang are on nodes and the others are not. The scheduler releases them after a minute; here "
          "that did not help.",
          "`dovetail why` for one of its pods; do quota, webhooks or a disruption budget refuse the others?",
          "Delete the job, or remove what refuses its pods.", "The gang has its minimum of pods, or is released."),
    Alert("AdmissionFailureLoop",
          "sum by (namespace, reason) (increase(dovetail_kubelet_rejections_total[5m])) >= @rejections",
          "warning", "owner", "Kubelets reject pods of namespace {{ $labels.namespace }} again and again",
          "{{ $value | humanize }} in five minutes, reason {{ $labels.reason }}.",
          "A controller makes new pods for those that kubelets reject. The count is by namespace, not by controller.",
          "`kubectl get pods --field-selector=status.phase=Failed`; the reason is in `status.reason`.",
          "TopologyAffinityError: ask for fewer GPUs or CPUs, or install the agent, which avoids it.",
          "Fewer than @rejections in five minutes."),
    Alert("NoLeader", "(sched:leaders:count or vector(0)) < 1", "critical", "operator",
          "No scheduler leads", "For @leader_for.",
          "No process of the scheduler holds the lease, so no pod is scheduled.",
          "`kubectl get pods,lease -n dovetail-system`; logs of both replicas.",
          "Restart the pods; check their rights on leases.", "A process leads.", lasts="@leader_for",
          inhibits=("CacheStale", "ReportsBacklog"), equal=()),
    Alert("CacheStale", "sched:cache_age > @cache_age.seconds", "warning", "operator",
          "The scheduler gets no changes of {{ $labels.resource }}", "For {{ $value | humanizeDuration }}.",
          "The watch of this kind is silent for longer than a quiet watch (40 s): decisions are made on old data.",
          "Is the API server overloaded? Logs of the scheduler.", "Restart the scheduler if the API server is well.",
          "The server sends something about this kind."),
    Alert("CacheDrift", "sum by (resource) (increase(dovetail_watch_drift_total[15m])) > 0", "warning", "operator",
          "The scheduler's {{ $labels.resource }} differed from the API server's", "Found by an audit.",
          "Changes were lost on the way. The audit repairs it; nothing may lose changes.",
          "Logs of the scheduler around that time; proxies between it and the API server.",
          "Report it with a recording.", "15 minutes without such an audit."),
    Alert("BindConflicts", "sched:bind_conflicts > @conflict_rate", "warning", "operator",
          "Many binds meet conflicts", "{{ $value | humanize }} per second.",
          "Something else binds or changes the same pods or claims.",
          "Do two schedulers have the same name?", "Give each its own `schedulerName`.",
          "The rate is below @conflict_rate per second.", lasts="@temp_for"),
    Alert("BindRefused", 'sum(increase(dovetail_binds_total{result="refused"}[5m])) > 0', "warning", "operator",
          "The API server refuses binds", "{{ $value | humanize }} in five minutes.",
          "A webhook, a policy or missing rights keep the scheduler from binding.",
          "Events of the pods (`FailedScheduling`), logs of the scheduler.", "Change the webhook or the rights.",
          "Five minutes without one."),
    Alert("EvictionRefused", 'sum by (cause) (increase(dovetail_evictions_total{result="refused"}[15m])) > 0',
          "info", "operator", "Evictions are refused ({{ $labels.cause }})", "{{ $value | humanize }} in 15 minutes.",
          "A disruption budget keeps pods that are to be evicted, so jobs do not get what is due to them.",
          "`kubectl get pdb -A`", "Set budgets that let one pod go.", "15 minutes without one."),
    Alert("ReportsBacklog", "dovetail_reports_queued > 0", "warning", "operator",
          "Conditions and events of the scheduler are late", "{{ $value }} wait for @backlog_for.",
          "The reporter does not keep up, so users see old reasons.", "Latency of the API server; its flow schemas.",
          "Raise the scheduler's share in flow control.", "All are written.", lasts="@backlog_for"),
    Alert("QueueStatusRefused", 'increase(dovetail_queue_statuses_total{result="refused"}[15m]) > 0',
          "warning", "operator", "The status of queues cannot be written", "{{ $value | humanize }} in 15 minutes.",
          "The history of usage is in that status: it would be lost with the process.",
          "Rights on `queues/status`; is the installed CRD of this version?", "Apply `deploy/crds`.",
          "15 minutes without a refusal."),
    Alert("QueueBudgetUsed", _BUDGET_PART + " >= 1", "warning", "operator",
          "Queue {{ $labels.queue }} has used its budget", "{{ $value | humanizePercentage }} of its GPU-hours.",
          "With `whenUsed: Hold` it starts no job until the period is over.",
          "`dovetail cost --by user`, or the status of the queue.",
          "Raise `spec.budget.gpuHours` of the queue, or wait.", "The next period begins, or the budget is raised.",
          inhibits=("QueueBudgetNear",), equal=("queue",)),
    Alert("QueueBudgetNear", _BUDGET_PART + " >= @budget_part", "info", "operator",
          "Queue {{ $labels.queue }} will soon have used its budget",
          "{{ $value | humanizePercentage }} of its GPU-hours.",
          "At this rate it is used before the period ends, if that is not near.",
          "`kubectl get queue QUEUE -o yaml`: `status.budget` has the period.",
          "Talk to the team, or raise `spec.budget.gpuHours`.", "The next period begins, or the budget is raised."),
    Alert("QueueMoneySpent", _MONEY_PART + " >= 1", "warning", "operator",
          "Queue {{ $labels.queue }} has spent its budget", "{{ $value | humanizePercentage }} of its money.",
          "With `whenUsed: Hold` it starts no job until the period is over.",
          "`dovetail cost --by queue`, or `status.money` of the queue.",
          "Raise `spec.budget.money` of the queue, or wait.", "The next period begins, or the budget is raised.",
          inhibits=("QueueMoneyNear",), equal=("queue",)),
    Alert("QueueMoneyNear", _MONEY_PART + " >= @budget_part", "info", "operator",
          "Queue {{ $labels.queue }} will soon have spent its budget",
          "{{ $value | humanizePercentage }} of its money.",
          "At this rate it is spent before the period ends, if that is not near.",
          "`kubectl get queue QUEUE -o yaml`: `status.money` has the period.",
          "Talk to the team, or raise `spec.budget.money`.", "The next period begins, or the budget is raised."),
    Alert("RecordingEnded", "dovetail_recording_errors_total > 0", "info", "operator",
          "The scheduler does not record any more", "Scheduling goes on.",
          "Writing the recording failed, usually because the disk is full.",
          "The error is in the log of the scheduler.",
          "Make room, and restart the scheduler.", "The scheduler was restarted."),
)  # fmt: skip

GROUPS = (RuleGroup("dovetail-scheduler", (*_RECORDINGS, *_ALERTS)),)
