# SPDX-License-Identifier: Apache-2.0
"""Configuration of a node: containerd's and the kubelet's configuration, the pods' network, and simulated NUMA
nodes.

Rules: in the node all files are at their usual paths (`OWN`), so that an agent's defaults work. The kubelet delegates
authorization to the API server, as in a real cluster. Features that write to the machine outside those paths are off,
or find the intended value already set (`SYSCTLS`).
Fields are those of the pinned versions; only starting the programs verifies them.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from tools.controlplane import components
from tools.node import image

KUBELET_ROOT = Path("/var/lib/kubelet")
CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")
POD_LOGS = Path("/var/log/pods")
CDI = Path("/var/run/cdi")
# /var/log/containers has links into POD_LOGS; the kubelet has no option for its path.
OWN = (KUBELET_ROOT, Path("/var/lib/containerd"), CONTAINERD_SOCKET.parent, CDI, POD_LOGS, Path("/var/log/containers"))
NUMA = Path("/sys/devices/system/node")

# The sysctls that the kubelet sets (setupKernelTunables). It writes only those with a different value.
SYSCTLS = {
    Path("/proc/sys/vm/overcommit_memory"): "1",
    Path("/proc/sys/vm/panic_on_oom"): "0",
    Path("/proc/sys/kernel/panic"): "10",
    Path("/proc/sys/kernel/panic_on_oops"): "1",
    Path("/proc/sys/kernel/keys/root_maxkeys"): "1000000",
    Path("/proc/sys/kernel/keys/root_maxbytes"): "25000000",
}

LOCAL_DISTANCE, REMOTE_DISTANCE = 10, 20


class KubeletOptions(Struct, frozen=True):
    """Options of a node's kubelet. Names and values are those of KubeletConfiguration.

    reserved_cpus: a list such as "0"; required by the static CPU policy.
    reserved_memory_mib: memory per NUMA node that is not available to pods; the Static memory policy requires it to be
        greater than 0.
    fields: additional top-level fields of KubeletConfiguration, which override all others.
    """

    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_options: Mapping[str, str] = field(default_factory=dict)
    cpu_manager_policy: str = "none"
    reserved_cpus: str = ""
    memory_manager_policy: str = "None"
    reserved_memory_mib: Sequence[int] = ()
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


def kubelet(options: KubeletOptions, ca_file: Path, cgroup: str, port: int, healthz_port: int) -> dict[str, Any]:
    """The KubeletConfiguration."""
    memory: dict[str, Any] = {}
    if options.reserved_memory_mib:
        memory = {
            "systemReserved": {"memory": f"{sum(options.reserved_memory_mib)}Mi"},
            "reservedMemory": [
                {"numaNode": node, "limits": {"memory": f"{amount}Mi"}}
                for node, amount in enumerate(options.reserved_memory_mib)
            ],
        }
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(ca_file)},
        },
        "authorization": {"mode": "Webhook"},
        "port": port,
        "readOnlyPort": 0,
        "healthzPort": healthz_port,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "podLogsDir": str(POD_LOGS),
        # The default is below /usr.
        "volumePluginDir": f"{KUBELET_ROOT}/volume-plugins",
        # No server listens there; without an address every pod gets a warning.
        "clusterDNS": ["10.96.0.10"],
        "resolvConf": "",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "enforceNodeAllocatable": [],
        # A full disk or memory of the machine must not affect the tests.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        # The default of 10 s would delay when devices become allocatable.
        "nodeStatusUpdateFrequency": "1s",
        # The default is the value above, where it is set: the status would be written every second, changed or not, and
        # everything that watches nodes would read it.
        "nodeStatusReportFrequency": "5m",
        "topologyManagerPolicy": options.topology_manager_policy,
        "topologyManagerScope": options.topology_manager_scope,
        "topologyManagerPolicyOptions": dict(options.topology_manager_options),
        "cpuManagerPolicy": options.cpu_manager_policy,
        "reservedSystemCPUs": options.reserved_cpus,
        "memoryManagerPolicy": options.memory_manager_policy,
        "featureGates": dict(options.feature_gates),
        **memory,
        **options.fields,
    }


def containerd(runtime: Path, cni: Path, handlers: Mapping[str, Path], snapshotter: str) -> str:
    """containerd's config.toml (version 3), with CDI; `runtime` is executed in place of runc, and for a RuntimeClass
    the program of its handler. snapshotter: overlayfs or native."""
    runtimes = "".join(
        f"""\
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}.options]
BinaryName = "{program}"
SystemdCgroup = false

"""
        for name, program in {"runc": runtime, **handlers}.items()
    )
    return f"""\
version = 3
root = "/var/lib/containerd"
state = "{CONTAINERD_SOCKET.parent}"
# It would make /opt/containerd.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "{snapshotter}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{image.NAME}"

[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = ["{CDI}"]
restrict_oom_score_adj = true
disable_apparmor = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "{cni}"
use_internal_loopback = true

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

{runtimes}"""


def write_cni(folder: Path, plugin: Path, api_server: str, kubelet_address: str) -> None:
    """Write the network of the node's pods: see tools/node/network. api_server, kubelet_address: host and port for this
    machine."""
    folder.mkdir()
    (folder / plugin.name).symlink_to(plugin)
    network = {
        "type": plugin.name,
        "reached": {f"{components.SERVICE_ADDRESS}:443": api_server, kubelet_address: kubelet_address},
        "state": str(folder / "state"),
    }
    settings = {"cniVersion": "1.0.0", "name": "loopback-only", "plugins": [network]}
    (folder / "10-network.conflist").write_text(json.dumps(settings))


def write_numa(folder: Path, nodes: int) -> None:
    """Write a replacement for /sys/devices/system/node: this machine's CPUs and memory in equal, contiguous parts.

    Raises ValueError if there are fewer CPUs than nodes.
    """
    cpus = sorted(os.sched_getaffinity(0))
    if nodes > len(cpus):
        raise ValueError(f"{nodes} NUMA nodes cannot be made of {len(cpus)} CPUs: each needs one")
    total_kib = int(Path("/proc/meminfo").read_text().split()[1])
    folder.mkdir()
    everything = f"0-{nodes - 1}\n" if nodes > 1 else "0\n"
    for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
        (folder / name).write_text(everything)
    for node in range(nodes):
        part = folder / f"node{node}"
        part.mkdir()
        mine = cpus[node * len(cpus) // nodes : (node + 1) * len(cpus) // nodes]
        (part / "cpulist").write_text(",".join(map(str, mine)) + "\n")
        for cpu in mine:
            (part / f"cpu{cpu}").symlink_to(f"../../cpu/cpu{cpu}")
        distances = (LOCAL_DISTANCE if other == node else REMOTE_DISTANCE for other in range(nodes))
        (part / "distance").write_text(" ".join(map(str, distances)) + "\n")
        (part / "meminfo").write_text(
            f"Node {node} MemTotal: {total_kib // nodes} kB\nNode {node} MemFree: {total_kib // nodes} kB\n"
        )
        for size in Path("/sys/kernel/mm/hugepages").glob("hugepages-*"):
            pages = part / "hugepages" / size.name
            pages.mkdir(parents=True)
            (pages / "nr_hugepages").write_text("0\n")
            (pages / "free_hugepages").write_text("0\n")
