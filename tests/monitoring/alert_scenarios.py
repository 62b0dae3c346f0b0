# SPDX-License-Identifier: Apache-2.0
"""For each alert: series that make it fire and others just under the threshold that must not, and when it clears."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.monitoring.scenarios import GPU, Labels, Scenario, Series, selector

A = GPU("a")
B = GPU("b", pod="train-1")
FREE = GPU("f", pod="", job="")
NOTEBOOK = GPU("n", pod="jupyter-ann", job="jupyter-ann")
OTHER_NOTEBOOK = GPU("o", pod="jupyter-bob", job="jupyter-bob")
UTIL = "DCGM_FI_DEV_GPU_UTIL"


def used(gpu: GPU, values: str) -> list[Series]:
    """The GPU is held, and has this utilization in percent."""
    return [gpu.held(), gpu.series(UTIL, values)]


def plain(metric: str, values: str, **labels: str) -> Series:
    """A series of the scheduler or of an agent."""
    return selector(metric, labels), values


def fired(alert: str, series: Sequence[Series], firing: Mapping[str, Sequence[Labels]]) -> Scenario:
    return Scenario(alert, series, firing)


def budget(spent: str, near: str, whole: str, part: str) -> list[Scenario]:
    """A queue that uses all of its budget, and a fifth less; another one stays just under that."""

    def of(red: str, blue: str) -> list[Series]:
        queues = (("red", red), ("blue", blue))
        return [
            plain(f"dovetail_queue_budget_{name}", values, queue=queue, instance="s1")
            for queue, used in queues for name, values in ((whole, "100x60"), (part, used))
        ]  # fmt: skip

    red = [{"queue": "red"}]
    return [
        fired(spent, of("90+1x20 0x40", "99x60"), {"9m": [], "10m": red, "20m": red, "30m": []}),
        fired(near, of("70+1x50 0x9", "79x60"), {"9m": [], "10m": red, "29m": red, "55m": []}),
    ]


def gang(job: str, *utils: int, then: int | None = None) -> list[Series]:
    """GPUs of a job with these utilizations; after 20 minutes the last one has `then`."""
    made = []
    for number, util in enumerate(utils):
        last = then is not None and number == len(utils) - 1
        values = f"{util}x20 {then}x60" if last else f"{util}x80"
        made += used(GPU(f"{job}{number}", pod=f"{job}-{number}", job=job), values)
    return made


LAGS = GPU("lag3", pod="lag-3", job="lag")
XID = "dovetail_gpu_xid_last_seconds"


def xid(alert: str, action: str, code: str) -> Scenario:
    """An XID at 20 minutes on a GPU with a pod and on a free one; the first has another pod from minute 25 on."""
    before, after = A, GPU("a", pod="next-0", job="next")
    labels = {"xid": code, "action": action}
    series = [
        before.held("1x24 stale"), before.series(XID, "_x20 1200x4 stale", **labels),
        after.held("_x25 1x40"), after.series(XID, "_x25 1200x40", **labels),
        FREE.held("0x60"), FREE.series(XID, "_x20 1200x40", **labels),
        B.held(), B.series(XID, "0x60", **labels), B.series(XID, "1200x60", xid=code, action="note"),
        B.series("DCGM_FI_DEV_XID_ERRORS", f"{code}x60"),
    ]  # fmt: skip
    return fired(
        alert,
        series,
        {
            "19m": [],
            "20m": [before.labels | labels, FREE.labels | labels],
            "26m": [FREE.labels | labels],
            "29m": [FREE.labels | labels],
            "30m": [],
        },
    )


def state_of(alert: str, metric: str, under: str, over: str, lasts: int, **extra: str) -> Scenario:
    """A gauge of two GPUs: one is over the threshold from minute 10 to 100, the other just under it all the time."""
    before = f"{under}x9"
    labels = A.labels | {key: value for key, value in extra.items() if key == "holder"}
    series = [A.held("1x200"), B.held("1x200"), A.series(metric, f"{before} {over}x90 {under}x60", **extra)]
    series += [B.series(metric, f"{under}x200", **extra)]
    return fired(alert, series, {f"{9 + lasts}m": [], f"{10 + lasts}m": [labels], "100m": [labels], "101m": []})


def rising(alert: str, over: Series, under: Series, labels: Labels, at: str, ended: str) -> Scenario:
    """A counter that rises too fast, and one that does not."""
    return fired(alert, [over, under], {"9m": [], at: [labels], ended: []})


STEP = "0x9 1x40"
"""A counter that goes up once, at minute 10."""
HISTOGRAM = "dovetail_wait_seconds_bucket"
PENDING = "dovetail_waiting_age_seconds"


def waits(queue: str, age_s: str) -> Series:
    labels = {"namespace": "red", "queue": queue, "reason": "NoNodeFits", "when": "NotYet"}
    return plain(PENDING, age_s, **labels, instance="s1")


def median_550(queue: str) -> list[Series]:
    """Binds of a queue: all of them waited between 500 and 600 s."""
    buckets = ("500", "0x60"), ("600", "0+10x60"), ("+Inf", "0+10x60")
    return [plain(HISTOGRAM, values, queue=queue, le=le) for le, values in buckets]


LONG = {"namespace": "red", "reason": "NoNodeFits", "when": "NotYet"}
NEVER = {"namespace": "red", "queue": "research", "reason": "NoNodeFits", "when": "Never"}
HOSTS = [GPU(f"g{number}", host=f"n{number}") for number in range(100)]


def owners_read(*ages_s: int) -> list[Series]:
    """One GPU on each of these nodes; the age of the list of owners. A GPU whose owners are unknown has none."""
    made = []
    for gpu, age_s in zip(HOSTS, ages_s, strict=False):
        node = plain("dovetail_exporter_owners_age_seconds", f"{age_s}x60", instance=gpu.host, Hostname=gpu.host)
        unknown = GPU(gpu.name, host=gpu.host, pod="", job="")
        made += [unknown.held("0x60") if age_s > 60 else gpu.held(), node]
    return made


def found(host: str, gpus: str) -> list[Series]:
    labels = {"instance": host, "hostname": host}
    return [plain("dovetail_gpu_expected", "8x60", **labels), plain("dovetail_gpu_found", gpus, **labels)]


AGENT = {"instance": "n1:10352"}
OTHER_AGENT = {"instance": "n2:10352"}
HOT = GPU("hot", pod="hot-0", job="hot")
COOL = GPU("cool", pod="cool-0", job="cool")

SCENARIOS = (
    fired("IdleAllocatedNotebook",
          [*used(NOTEBOOK, "4x60 50x20"), *used(OTHER_NOTEBOOK, "6x90"), *used(A, "0x90")],
          {"39m": [], "40m": [NOTEBOOK.pod_labels], "60m": [NOTEBOOK.pod_labels], "61m": []}),
    fired("IdleAllocated",
          [*used(A, "4x90 50x20"), *used(B, "6x200"), *used(NOTEBOOK, "0x200")],
          {"69m": [], "70m": [A.pod_labels], "90m": [A.pod_labels], "91m": []}),
    fired("IdleAllocatedLong",
          [A.held("1x300"), A.series(UTIL, "4x260 50x40"), B.held("1x300"), B.series(UTIL, "6x300")],
          {"249m": [], "250m": [A.pod_labels], "260m": [A.pod_labels], "261m": []}),
    fired("LowUtil",
          [A.held("1x400"), A.series(UTIL, "29x365 100x30"), HOT.held("1x400"), HOT.series(UTIL, "31x400")],
          {"359m": [], "360m": [A.job_labels], "365m": [A.job_labels], "370m": []}),
    Scenario("MonthlyMean",
             [A.held("1x40"), A.series(UTIL, "39x10 100x30"), HOT.held("1x40"), HOT.series(UTIL, "41x40"),
              COOL.held("_x8 1x5 stale"), COOL.series(UTIL, "_x8 10x5 stale")],
             {"5d": [], "6d": [A.job_labels], "10d": [A.job_labels], "11d": [], "13d": []},
             step="1d"),
    fired("JobStraggler",
          [*gang("lag", 80, 80, 80, 50, then=80), *gang("even", 80, 80, 80, 71), *gang("few", 80, 50)],
          {"14m": [], "15m": [LAGS.labels], "20m": [LAGS.labels], "30m": []}),
    xid("XidNode", "quarantine-node", "79"),
    xid("XidReset", "quarantine-gpu", "64"),
    xid("XidApplication", "restart-application", "13"),
    state_of("GpuUnhealthy", "dovetail_gpu_healthy", "1", "0", 2),
    state_of("GpuQuarantined", "dovetail_gpu_health_state", "0", "1", 60, state="quarantined"),
    state_of("RowRemapFailure", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "0", "1", 0),
    state_of("RowRemapPending", "DCGM_FI_DEV_ROW_REMAP_PENDING", "0", "1", 0),
    fired("EccDbe",
          [A.held(), A.series("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", STEP), FREE.held("0x60"),
           FREE.series("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", STEP), B.held(),
           B.series("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "7x60")],
          {"9m": [], "10m": [A.labels, FREE.labels], "18m": [A.labels, FREE.labels], "19m": []}),
    fired("ThrottleHw",
          [A.series("dovetail_gpu_throttle_seconds_total", "0+3.3x30 99x40", reason="hw_thermal"),
           A.series("dovetail_gpu_throttle_seconds_total", "0+60x60", reason="power"),
           B.series("dovetail_gpu_throttle_seconds_total", "0+2.9x60", reason="hw_thermal")],
          {"19m": [], "20m": [A.labels | {"reason": "hw_thermal"}], "30m": [A.labels | {"reason": "hw_thermal"}],
           "36m": []}),
    state_of("GpuHot", "dovetail_gpu_slowdown_margin_celsius", "6", "5", 5),
    fired("GpuHot",
          [HOT.series("DCGM_FI_DEV_GPU_TEMP", "85x30 84x30"), COOL.series("DCGM_FI_DEV_GPU_TEMP", "84x60"),
           A.series("DCGM_FI_DEV_GPU_TEMP", "90x60"), A.series("dovetail_gpu_slowdown_margin_celsius", "10x60")],
          {"4m": [], "5m": [HOT.labels], "30m": [HOT.labels], "31m": []}),
    state_of("GpuOverheated", "dovetail_gpu_slowdown_margin_celsius", "1", "0", 5),
    fired("GpuOverheated",
          [HOT.series("DCGM_FI_DEV_GPU_TEMP", "95x30 94x30"), COOL.series("DCGM_FI_DEV_GPU_TEMP", "94x60"),
           A.series("DCGM_FI_DEV_GPU_TEMP", "99x60"), A.series("dovetail_gpu_slowdown_margin_celsius", "3x60")],
          {"4m": [], "5m": [HOT.labels], "30m": [HOT.labels], "31m": []}),
    state_of("MemoryHot", "DCGM_FI_DEV_MEMORY_TEMP", "84", "85", 5),
    state_of("MemoryOverheated", "DCGM_FI_DEV_MEMORY_TEMP", "94", "95", 5),
    fired("NvlinkCrc",
          [A.held(), A.series("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "0+1x30 30x30"),
           A.series("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "4x60"),
           HOT.held(), HOT.series("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "0+1x30 30x30"),
           B.held(), B.series("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "9x60")],
          {"10m": [], "11m": [A.labels, HOT.labels], "30m": [A.labels, HOT.labels], "36m": []}),
    fired("PcieReplay",
          [A.held(), A.series("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "0+1x30 30x30"),
           B.held(), B.series("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "9x60")],
          {"10m": [], "11m": [A.labels], "30m": [A.labels], "36m": []}),
    state_of("FabricNotReady", "dovetail_gpu_fabric_ready", "1", "0", 5),
    state_of("OrphanGpuMemory", "dovetail_gpu_unowned_memory_bytes", "67108864", "67108865", 5, holder="gone"),
    fired("UseWithoutProcess",
          [FREE.series(UTIL, "51x30 0x30"), FREE.series("dovetail_gpu_processes", "0x60", holder="no_pod"),
           A.series(UTIL, "50x60"), A.series("dovetail_gpu_processes", "0x60", holder="owner"),
           B.series(UTIL, "90x60"), B.series("dovetail_gpu_processes", "1x60", holder="owner"),
           HOT.series(UTIL, "90x60")],
          {"4m": [], "5m": [FREE.labels], "30m": [FREE.labels], "31m": []}),
    fired("GpuCountMismatch", [*found("n1", "8x9 7x20 8x20"), *found("n2", "8x60"), *found("n3", "9x60")],
          {"10m": [], "11m": [{"hostname": "n1"}], "30m": [{"hostname": "n1"}], "31m": []}),
    fired("AttributionMissing", owners_read(*(61, 61), *(60,) * 98), {"4m": [], "5m": [{}]}),
    fired("AttributionMissing", owners_read(61, *(60,) * 99), {"5m": [], "30m": []}),
    fired("AttributionMissing",
          [A.held(), FREE.held("0x60"), FREE.series("dovetail_gpu_processes", "1x30 0x30", holder="other_pod")],
          {"4m": [], "5m": [{}], "30m": [{}], "31m": []}),
    state_of("ExporterStale", "dovetail_exporter_reading_age_seconds", "60", "61", 1),
    fired("GpuSeriesLost", [A.held("1x10 stale _x19 1x20"), GPU("z", host="n2").held("1x60")],
          {"15m": [], "16m": [{"hostname": "n1"}], "29m": [{"hostname": "n1"}], "31m": []}),
    fired("AgentStuck",
          [plain("dovetail_agent_look_age_seconds", "900x9 901x20 0x30", **AGENT),
           plain("dovetail_agent_look_age_seconds", "900x60", **OTHER_AGENT)],
          {"10m": [], "11m": [AGENT], "30m": [AGENT], "31m": []}),
    fired("AgentFault",
          [plain("dovetail_agent_faults", "0x9 1x20 0x30", **AGENT),
           plain("dovetail_agent_faults", "0x60", **OTHER_AGENT)],
          {"19m": [], "20m": [AGENT], "30m": [AGENT], "31m": []}),
    fired("AgentNotRegistered",
          [plain("dovetail_agent_registered", "1x9 0x20 1x30", **AGENT, resource="nvidia.com/gpu"),
           plain("dovetail_agent_registered", "1x60", **OTHER_AGENT, resource="nvidia.com/gpu")],
          {"11m": [], "12m": [AGENT | {"resource": "nvidia.com/gpu"}],
           "30m": [AGENT | {"resource": "nvidia.com/gpu"}], "31m": []}),
    rising("DevicesDiffer",
           plain("dovetail_agent_preferences_total", STEP, **AGENT, result="unmet"),
           plain("dovetail_agent_preferences_total", "0+1x60", **OTHER_AGENT, result="chosen"),
           AGENT | {"result": "unmet"}, "10m", "15m"),
    fired("PendingNever",
          [plain("dovetail_waiting_jobs", "0x9 1x20 stale", **NEVER, instance="s1"),
           plain("dovetail_waiting_jobs", "9x60", **(NEVER | {"when": "NotYet"}), instance="s1")],
          {"9m": [], "10m": [NEVER], "30m": [NEVER], "31m": []}),
    fired("PendingNotYet",
          [waits("research", "900x9 901x20 0x30"), waits("other", "900x60"), *median_550("fast"), *median_550("slow"),
           waits("fast", "1095x60"), waits("slow", "1095x9 1105x20 stale")],
          {"9m": [], "10m": [LONG | {"queue": "research"}, LONG | {"queue": "slow"}],
           "30m": [LONG | {"queue": "research"}, LONG | {"queue": "slow"}], "31m": []}),
    fired("GangPartial",
          [plain("dovetail_partial_gang_age_seconds", "90x9 91x20 stale", namespace="red", queue="q", instance="s1"),
           plain("dovetail_partial_gang_age_seconds", "90x60", namespace="blue", queue="q", instance="s1")],
          {"9m": [], "10m": [{"namespace": "red", "queue": "q"}], "30m": [{"namespace": "red", "queue": "q"}],
           "31m": []}),
    fired("AdmissionFailureLoop",
          [plain("dovetail_kubelet_rejections_total", "0x8 1 2 3x40", namespace="red", reason="TopologyAffinityError"),
           plain("dovetail_kubelet_rejections_total", "0x8 1 2x40", namespace="blue", reason="TopologyAffinityError")],
          {"10m": [], "11m": [{"namespace": "red", "reason": "TopologyAffinityError"}], "16m": []}),
    fired("NoLeader",
          [plain("dovetail_leader", "1x9 0x20 1x30", instance="s1"),
           plain("dovetail_leader", "0x60", instance="s2")],
          {"10m": [], "11m": [{}], "30m": [{}], "31m": []}),
    fired("NoLeader", [plain("up", "1x9", instance="s1")], {"0m": [], "1m": [{}]}),
    fired("CacheStale",
          [plain("dovetail_watch_staleness_seconds", "60x9 61x20 0x30", instance="s1", resource="pods/v1"),
           plain("dovetail_watch_staleness_seconds", "60x60", instance="s1", resource="nodes/v1")],
          {"9m": [], "10m": [{"resource": "pods/v1"}], "30m": [{"resource": "pods/v1"}], "31m": []}),
    rising("CacheDrift",
           plain("dovetail_watch_drift_total", STEP, instance="s1", resource="pods/v1"),
           plain("dovetail_watch_drift_total", "4x60", instance="s1", resource="nodes/v1"),
           {"resource": "pods/v1"}, "10m", "25m"),
    fired("BindConflicts",
          [plain("dovetail_binds_total", "0+6.1x30 183x30", result="conflict"),
           plain("dovetail_binds_total", "0+900x60", result="bound")],
          {"9m": [], "10m": [{}], "30m": [{}], "36m": []}),
    fired("BindConflicts", [plain("dovetail_binds_total", "0+5.9x60", result="conflict")], {"10m": [], "60m": []}),
    rising("BindRefused",
           plain("dovetail_binds_total", STEP, result="refused"),
           plain("dovetail_binds_total", "0+9x60", result="gone"),
           {}, "10m", "15m"),
    rising("EvictionRefused",
           plain("dovetail_evictions_total", STEP, cause="reclaim", result="refused"),
           plain("dovetail_evictions_total", "0+9x60", cause="preempt", result="evicted"),
           {"cause": "reclaim"}, "10m", "25m"),
    fired("ReportsBacklog",
          [plain("dovetail_reports_queued", "0x9 1x20 0x30", instance="s1"),
           plain("dovetail_reports_queued", "0x9 1x9 0 1x9 0x30", instance="s2")],
          {"19m": [], "20m": [{"instance": "s1"}], "29m": [{"instance": "s1"}], "31m": []}),
    rising("QueueStatusRefused",
           plain("dovetail_queue_statuses_total", STEP, result="refused", instance="s1"),
           plain("dovetail_queue_statuses_total", "0+9x60", result="written", instance="s1"),
           {"instance": "s1", "result": "refused"}, "10m", "25m"),
    *budget("QueueBudgetUsed", "QueueBudgetNear", "gpu_hours", "used_gpu_hours"),
    *budget("QueueMoneySpent", "QueueMoneyNear", "money", "spent_money"),
    rising("RecordingEnded",
           plain("dovetail_recording_errors_total", "0x9 1x20 0x30", instance="s1"),
           plain("dovetail_recording_errors_total", "0x60", instance="s2"), {"instance": "s1"}, "10m", "31m"),
)  # fmt: skip
