# SPDX-License-Identifier: Apache-2.0
"""Rules about the health of GPUs, nodes, and of the agents that read them.

Rules: an XID counts from the time at which it was reported, never because its code is above 0: the gauge keeps the
last code for ever. An XID from before a pod had the GPU is not reported for that pod. Errors are increases of counters.
Alerts about a GPU have one series for each of its owners.
"""

from __future__ import annotations

from dovetail.monitoring.rule import DEVICE, Alert, Recording, RuleGroup, device, node

_OWNED = "{{ if $labels.pod }}held by {{ $labels.namespace }}/{{ $labels.pod }}{{ else }}held by no pod{{ end }}"
_GPU = "GPU {{ $labels.gpu }} of {{ $labels.hostname }}"
_WHERE = f"{_GPU} ({{{{ $labels.modelName }}}}, {{{{ $labels.UUID }}}}), {_OWNED}"


def _owners(expr: str) -> str:
    """The devices of these GPUs with the labels of each owner."""
    return f"gpu:allocated and on (UUID) ({expr})"


def _valued(rule: str, least: str) -> str:
    """The same, with the values of a recording rule by UUID that are above a threshold."""
    return f"(gpu:allocated and on (UUID) {rule}) * 0 + on (UUID) group_left () ({rule} > {least})"


_CRC = " or ".join(
    f'label_replace(rate(DCGM_FI_DEV_NVLINK_CRC_{what}_ERROR_COUNT_TOTAL[5m]) > 0, "crc", "{what}", "", "")'
    for what in ("FLIT", "DATA")
)
_HARDWARE = 'reason=~"hw_.*|thermal|board_limit|reliability"'
_NEW_XID = f"""(time() - gpu:xid_last < @xid_window.seconds)
unless on ({DEVICE}, xid, action) (gpu:xid_last < on ({DEVICE}) group_left () gpu:since)"""
_XIDS = (
    Recording("gpu:xid_last", device("dovetail_gpu_xid_last_seconds", "xid, action"),
              "When an XID was reported last, Unix time in seconds, with its code and action."),
    Recording("gpu:xid_new", _NEW_XID,
              "Seconds since an XID was reported; for ten minutes (`xid_window`), and not for a pod that came later."),
)  # fmt: skip
_CLOCKS = (
    Recording("gpu:throttle_ratio",
              device('rate(dovetail_gpu_throttle_seconds_total{reason!="low_utilization"}[5m]) > 0', "reason"),
              "Part of the last five minutes in which the clocks were lowered, by reason, where they were. Idle clocks "
              "(low_utilization) do not count."),
)  # fmt: skip
_ERRORS = (
    Recording("gpu:ecc_dbe_delta",
              "max by (hostname, UUID) (increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[@ecc_window]) > 0)",
              "Double-bit ECC errors in the last ten minutes (`ecc_window`), where there are any."),
    Recording("nvlink:crc_rate", f"sum by (hostname, UUID) (max by (hostname, UUID, crc) ({_CRC}))",
              "NVLink CRC errors per second, all links of a GPU, where there are any."),
    Recording("pcie:replay_rate", "max by (hostname, UUID) (rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[5m]) > 0)",
              "PCIe replays per second, where there are any."),
)  # fmt: skip
_NODES = (
    Recording("node:gpus_missing:count",
              f"{node('dovetail_gpu_expected')} - on (hostname) {node('dovetail_gpu_found')}",
              "GPUs that a node should have and has not."),
    Recording("agent:last_report_age", "max by (instance, node) (dovetail_agent_look_age_seconds)",
              "Seconds since an agent's last look at its machine."),
    Recording("cluster:attribution_missing:ratio",
              "count(gpu:unattributed) / count(gpu:allocated > 0 or gpu:unattributed)",
              "Part of the allocated devices whose owner is unknown. All devices of a node whose owners cannot be read "
              "count as allocated."),
)  # fmt: skip

_XID_CHECK = (
    "`dovetail nodes` (state, reason, next step), `kubectl describe gpunode NODE`, `dmesg | grep Xid` on the node."
)
_XID_CLEARS = "No XID of this action for ten minutes (`xid_window`). Whether the GPU is offered again is its health."

_XID_ALERTS = (
    Alert("XidNode", 'gpu:xid_new{action="quarantine-node"}', "critical", "operator",
          f"XID {{{{ $labels.xid }}}} on {_GPU}: the node has to be rebooted or repaired",
          f"{_WHERE}.",
          "The driver reported an error after which the node is not usable (79: the GPU has fallen off the bus).",
          _XID_CHECK, "Drain and reboot the node. If the XID comes back after two reboots, inspect the hardware.",
          _XID_CLEARS, inhibits=("XidReset", "GpuUnhealthy", "GpuCountMismatch", "GpuSeriesLost"), equal=("hostname",)),
    Alert("XidReset", 'gpu:xid_new{action="quarantine-gpu"}', "critical", "operator",
          f"XID {{{{ $labels.xid }}}} on {_GPU}: the GPU has to be reset",
          f"{_WHERE}.",
          "The driver reported an error after which the GPU is not usable until it is reset.",
          _XID_CHECK, "Let its pods end, reset the GPU (`nvidia-smi --gpu-reset`), run the exit test.",
          _XID_CLEARS, inhibits=("GpuUnhealthy",), equal=("UUID",)),
    Alert("XidApplication", 'gpu:xid_new{action="restart-application"}', "info", "owner",
          f"XID {{{{ $labels.xid }}}} on {_GPU}: the application has to be restarted",
          f"{_WHERE}.",
          "The driver reported an error that an application causes (13, 31: illegal access). The GPU itself is well.",
          "The log of the pod; `compute-sanitizer` finds illegal accesses.",
          "Restart the pod. If other pods get the same XID on the same GPU, suspect the GPU.", _XID_CLEARS),
)  # fmt: skip

_CLOCK_ALERTS = (
    Alert("ThrottleHw", f"gpu:throttle_ratio{{{_HARDWARE}}} > @throttle_ratio", "warning", "operator",
          f"{_GPU} is slowed down by its hardware ({{{{ $labels.reason }}}})",
          f"{{{{ $value | humanizePercentage }}}} of the time; {_WHERE}.",
          "The hardware lowers the clocks because of heat, of its power supply or of its reliability limits. The power "
          "cap that software sets is not meant.",
          "`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`; fans, inlet temperature and power supplies of the node.",
          "Repair cooling or power; until then cordon the node if jobs of many nodes run on it.",
          "It happens in less than @throttle_ratio of the time.", lasts="@throttle_for"),
)  # fmt: skip
_GPU_ALERTS = (
    Alert("GpuUnhealthy", device("dovetail_gpu_healthy == 0"), "warning", "operator",
          f"{_GPU} is unhealthy", f"{_WHERE}.",
          "The agent does not offer the GPU to new pods.",
          "`dovetail nodes`: since when, why, and what is next.", "Follow the next step that is named there.",
          "The agent offers the GPU as healthy again.", lasts="@unhealthy_for"),
    Alert("GpuQuarantined", device('dovetail_gpu_health_state{state="quarantined"} == 1'), "warning", "operator",
          f"{_GPU} is quarantined for more than @quarantine_for", f"{_WHERE}.",
          "A quarantined GPU comes back only after its exit test, which has not passed yet.",
          "`dovetail nodes`: the reason, and the exit test that is due.", "Run the exit test, or replace the GPU.",
          "The GPU is not quarantined any more.", lasts="@quarantine_for", inhibits=("GpuUnhealthy",), equal=("UUID",)),
    Alert("GpuHot",
          device("dovetail_gpu_slowdown_margin_celsius <= @gpu_margin") + " or ("
          + device("DCGM_FI_DEV_GPU_TEMP >= @gpu_temp") + " unless on (UUID) dovetail_gpu_slowdown_margin_celsius)",
          "warning", "operator", f"{_GPU} is hot",
          f"Margin to the slowdown, or temperature: {{{{ $value }}}} C; {_WHERE}.",
          "The GPU is close to the temperature at which it slows down. The margin is used where the driver reports it: "
          "slowdown temperatures of products differ by more than 10 C.",
          "`nvidia-smi -q -d TEMPERATURE`; fans and inlet temperature.", "Repair the cooling.",
          "The margin is larger again.", lasts="@temp_for"),
    Alert("GpuOverheated",
          device("dovetail_gpu_slowdown_margin_celsius <= 0") + " or ("
          + device("DCGM_FI_DEV_GPU_TEMP >= @gpu_temp_critical")
          + " unless on (UUID) dovetail_gpu_slowdown_margin_celsius)",
          "critical", "operator", f"{_GPU} is overheated",
          f"Margin to the slowdown, or temperature: {{{{ $value }}}} C; {_WHERE}.",
          "The GPU has reached the temperature at which it slows down; some degrees more and it shuts off.",
          "As for GpuHot.", "Drain the node, and repair the cooling.", "The margin is above 0 again.",
          lasts="@temp_for", inhibits=("GpuHot", "ThrottleHw"), equal=("UUID",)),
    Alert("MemoryHot", device("DCGM_FI_DEV_MEMORY_TEMP >= @memory_temp"), "warning", "operator",
          f"The memory of {_GPU} is hot", f"{{{{ $value }}}} C; {_WHERE}.",
          "High-bandwidth memory above this temperature is refreshed more often, slows down, and ages.",
          "As for GpuHot.", "Repair the cooling.", "The temperature is below @memory_temp C.", lasts="@temp_for"),
    Alert("MemoryOverheated", device("DCGM_FI_DEV_MEMORY_TEMP >= @memory_temp_critical"), "critical", "operator",
          f"The memory of {_GPU} is overheated", f"{{{{ $value }}}} C; {_WHERE}.",
          "The memory has reached its limit.", "As for GpuHot.", "Drain the node, and repair the cooling.",
          "The temperature is below @memory_temp_critical C.", lasts="@temp_for",
          inhibits=("MemoryHot",), equal=("UUID",)),
    Alert("OrphanGpuMemory",
          device("dovetail_gpu_unowned_memory_bytes > @orphan_bytes", "holder"), "warning", "operator",
          f"Memory of {_GPU} is held by processes without a right to it",
          f"{{{{ $value | humanize1024 }}}}B, holder {{{{ $labels.holder }}}}; {_WHERE}.",
          "Processes use the memory of the GPU that are of another pod, of no pod, or of a pod that is gone. The owner "
          "runs out of memory though its own use is small.",
          "`dovetail doctor`, and the events of the pod, name the processes; `nvidia-smi` on the node.",
          "End the processes. `NVIDIA_VISIBLE_DEVICES=all` in an image is the usual way past the device plugin.",
          "Their memory is below @orphan_bytes bytes.", lasts="@orphan_for"),
    Alert("UseWithoutProcess",
          device("DCGM_FI_DEV_GPU_UTIL > @no_process_util "
                 "and on (UUID) (sum by (UUID) (dovetail_gpu_processes) == 0)"), "warning", "operator",
          f"{_GPU} computes without a process", f"Utilization {{{{ $value }}}} %; {_WHERE}.",
          "NVML reports use and no process: a process hangs in the driver, or runs where NVML does not see it (in "
          "another PID namespace or a virtual machine).",
          "`nvidia-smi`, `fuser -v /dev/nvidia*` on the node.", "End the process; if none is found, reset the GPU.",
          "There is a process, or the use is below @no_process_util %.", lasts="@orphan_for"),
)  # fmt: skip

_ERROR_ALERTS = (
    Alert("RowRemapFailure", _owners("DCGM_FI_DEV_ROW_REMAP_FAILURE > 0"), "critical", "operator",
          f"{_GPU} could not remap a memory row", f"{_WHERE}.",
          "The spare rows for a broken memory row are used up. The GPU gives wrong data or faults.",
          "`nvidia-smi -q -d ROW_REMAPPER`", "Take the GPU out of service and have it replaced.",
          "The driver does not report the failure any more, which is after a replacement."),
    Alert("RowRemapPending", _owners("DCGM_FI_DEV_ROW_REMAP_PENDING > 0"), "warning", "operator",
          f"{_GPU} waits for a reset to remap a memory row", f"{_WHERE}.",
          "A memory row is to be remapped (XID 63). This repairs the GPU, but only at the next reset.",
          "`nvidia-smi -q -d ROW_REMAPPER`", "Reset the GPU when its pods have ended.", "The row is remapped."),
    Alert("EccDbe", _valued("gpu:ecc_dbe_delta", "0"), "critical", "operator",
          f"{_GPU} has double-bit ECC errors", f"{{{{ $value }}}} in @ecc_window; {_WHERE}.",
          "Memory errors that ECC cannot correct. What was computed with that data is lost.",
          "`nvidia-smi -q -d ECC,ROW_REMAPPER`; XIDs 48, 63, 64, 94, 95 in `dmesg`.",
          "Restart the pod from its checkpoint. Reset the GPU; if errors come back, replace it.",
          "No further error for ten minutes (`ecc_window`)."),
    Alert("NvlinkCrc", _valued("nvlink:crc_rate", "@crc_rate"), "warning", "operator",
          f"NVLink errors on {_GPU}", f"{{{{ $value | humanize }}}} CRC errors per second; {_WHERE}.",
          "Packets on NVLink are damaged and sent again, for ten minutes on end. Bandwidth falls before links fail.",
          "`nvidia-smi nvlink --errorcounters`; with NVSwitch the log of the fabric manager.",
          "Have cables, trays and the baseboard checked. Keep jobs of several GPUs away from the node until then.",
          "Five minutes without an error.", lasts="@crc_for"),
    Alert("PcieReplay",
          _valued("pcie:replay_rate", "@replay_rate"), "warning", "operator",
          f"PCIe replays on {_GPU}", f"{{{{ $value | humanize }}}} replays per second; {_WHERE}.",
          "Packets on PCIe are damaged and sent again, for ten minutes on end.",
          "`nvidia-smi -q -d PCIE`: width and generation of the link; `dmesg` for AER messages.",
          "Reseat the card or riser; replace what is broken.", "Five minutes without a replay.", lasts="@replay_for"),
    Alert("FabricNotReady", _owners("dovetail_gpu_fabric_ready == 0"), "warning", "operator",
          f"{_GPU} is not in its NVLink fabric", f"{_WHERE}.",
          "The GPU has not joined the fabric of its NVSwitches. CUDA does not start on it, or only without peers.",
          "`nvidia-smi -q` (section Fabric); state and log of `nvidia-fabricmanager`, or of the IMEX daemon.",
          "Restart the fabric manager; its version has to be that of the driver.", "The GPU has joined the fabric.",
          lasts="@fabric_for"),
)  # fmt: skip

_NODE = "{{ $labels.hostname }}"
_NODE_ALERTS = (
    Alert("GpuCountMismatch", "node:gpus_missing:count > 0", "critical", "operator",
          f"{_NODE} has fewer GPUs than expected", "{{ $value }} are missing.",
          "NVML reads fewer GPUs than the node had, or is configured to have.",
          "`lspci | grep -i nvidia`, `dmesg | grep -i -e xid -e nvrm`.", "Reboot the node; then inspect the hardware.",
          "All GPUs are found, or the expected number is changed.", lasts="@count_for"),
    Alert("AttributionMissing", "cluster:attribution_missing:ratio > @attribution_missing", "warning", "operator",
          "Owners of allocated GPUs are unknown", "{{ $value | humanizePercentage }} of the allocated GPUs.",
          "Series, chargeback and alerts of these GPUs name no owner. After 15 s without an answer of the kubelet the "
          "exporter leaves owners out.",
          "`dovetail_exporter_owners_age_seconds` by node: does the kubelet answer on its PodResources socket? "
          "OrphanGpuMemory for pods past the device plugin.",
          "Restart the kubelet where its socket hangs.", "At most @attribution_missing of them are unknown.",
          lasts="@temp_for"),
    Alert("ExporterStale", device("dovetail_exporter_reading_age_seconds > @reading_age.seconds"),
          "warning", "operator", f"{_GPU} is not read any more", "The last reading is {{ $value }} s old.",
          "Calls of NVML for this GPU hang. Its series keep their last values or are absent.",
          "`nvidia-smi -i GPU` on the node: does it hang too? `dmesg` for XIDs.", "Reset the GPU or reboot the node.",
          "The GPU is read again.", lasts="@count_for"),
    Alert("GpuSeriesLost",
          "(last_over_time(node:gpus:count[@series_lost]) unless on (hostname) node:gpus:count) > 0",
          "warning", "operator", f"No GPU series from {_NODE} any more", "It had {{ $value }} GPUs.",
          "The exporter of the node cannot be scraped. A node that was removed on purpose is forgotten after "
          "@series_lost.",
          "`kubectl get pods -n dovetail-system -o wide`, Prometheus' page of targets.",
          "Restart the agent, or repair the node.", "Its series are back, or @series_lost has passed.",
          lasts="@fabric_for"),
    Alert("AgentStuck", "agent:last_report_age > @agent_age.seconds", "warning", "operator",
          "The agent {{ $labels.instance }} does not look at its machine", "For {{ $value | humanizeDuration }}.",
          "No look at the machine has ended: NVIDIA's library does not answer. The kubelet restarts the agent.",
          "`kubectl logs`, `nvidia-smi` on the node.", "Reboot the node if NVML hangs for every process.",
          "A look has ended.", lasts="@count_for"),
    Alert("AgentFault", "dovetail_agent_faults > 0", "warning", "operator",
          "The agent {{ $labels.instance }} has faults", "{{ $value }} faults.",
          "Something that an operator should see to; the GPUNode lists it under `agent`.",
          "`kubectl get gpunode NODE -o yaml`", "As the fault describes.", "The GPUNode lists no fault.",
          lasts="@fault_for"),
    Alert("AgentNotRegistered", "dovetail_agent_registered == 0", "warning", "operator",
          "The kubelet of {{ $labels.instance }} does not have {{ $labels.resource }}", "For @unhealthy_for.",
          "The device plugin is not registered, so new pods cannot get this resource on the node.",
          "Logs of agent and kubelet; is another device plugin there for the same resource?",
          "Restart the agent, remove the other plugin.", "The kubelet has the resource.", lasts="@unhealthy_for"),
    Alert("DevicesDiffer", 'increase(dovetail_agent_preferences_total{result="unmet"}[5m]) > 0', "warning", "operator",
          "Pods on {{ $labels.instance }} got other devices than were chosen",
          "{{ $value | humanize }} in five minutes.",
          "The kubelet could not give the devices that the scheduler chose. Bandwidth and placement may be worse than "
          "`dovetail why` shows.",
          "`dovetail_device_differences`, and the events of the pods.",
          "Usually another scheduler or plugin gives out the same GPUs: let one do it.",
          "Five minutes without such a pod."),
)  # fmt: skip

GROUPS = (
    RuleGroup("dovetail-xid", (*_XIDS, *_XID_ALERTS)),
    RuleGroup("dovetail-clocks", (*_CLOCKS, *_CLOCK_ALERTS)),
    RuleGroup("dovetail-health", _GPU_ALERTS),
    RuleGroup("dovetail-errors", (*_ERRORS, *_ERROR_ALERTS)),
    RuleGroup("dovetail-nodes", (*_NODES, *_NODE_ALERTS)),
)
