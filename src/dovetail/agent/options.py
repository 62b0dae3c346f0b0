# SPDX-License-Identifier: Apache-2.0
"""The command line options of the agent: its functions and its paths."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class AgentOptions(Struct, frozen=True):
    """Functions and paths of the agent.

    listen: HOST:PORT of probes and metrics, "" for none.
    exporter: HOST:PORT of the GPUs' metrics, "" for none.
    exporter_counters: which of them, as a counter list of dcgm-exporter (`agent.exporter.counter_list`).
    exporter_job_labels: with the labels queue, job and owner.
    exporter_dcgm: HOST:PORT of a DCGM host engine, for GPUs that NVML does not measure; "" for none.
    config: a configuration file of the device plugin (`agent.config`), or a folder of them (`agent.config_watch`).
    mig_layouts: a file with MIG layouts (`agent.mig.layouts`).
    mig_observer: the socket of the MIG observer (`agent.mig.observer`).
    xid_actions: a file with actions of XIDs (`agent.health.xids`).
    expected_gpus: how many GPUs the node should have, 0 if that is not known.
    clean_period: the seconds without an error before a quarantine ends.
    exit_test: the administrator's test of a GPU before its quarantine ends (`agent.health.exit_test`), "" for none, and
    after how many seconds it has failed.
    kubelet_config: the kubelet's configuration file, if the kubelet cannot be queried.
    state_folder: must outlive this process.
    *_root: the host's folders as this process sees them; *_on_host as the container runtime sees them, if its paths
    differ."""

    node_name: str
    listen: str = ""
    exporter: str = ""
    exporter_counters: Path | None = None
    exporter_job_labels: bool = False
    exporter_dcgm: str = ""
    device_plugin: bool = True
    fence: bool = True
    claims: bool = False
    partitionable: bool = False
    labels: bool = False
    topology_objects: bool = False
    mig: bool = False
    config: Path | None = None
    mig_layouts: Path | None = None
    mig_observer: Path | None = None
    xid_actions: Path | None = None
    expected_gpus: int = 0
    clean_period: float = 600.0
    exit_test: str = ""
    exit_test_timeout: float = 600.0
    kubelet_config: Path | None = None
    kubelet_folder: Path = Path("/var/lib/kubelet")
    state_folder: Path = Path("/var/lib/dovetail")
    cdi_folder: Path = Path("/var/run/cdi")
    mps_folder: Path = Path("/run/dovetail/mps")
    sysfs_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    dev_root: Path = Path("/dev")
    driver_root: Path = Path("/")
    dev_root_on_host: Path | None = None
    driver_root_on_host: Path | None = None

    @property
    def pod_resources(self) -> Path:
        return self.kubelet_folder / "pod-resources/kubelet.sock"
