# SPDX-License-Identifier: Apache-2.0
"""What the agent is told on its command line: what it does, and where things are."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class AgentOptions(Struct, frozen=True):
    """`config` is a file for the device plugin (`agent.config`), or a folder of such (`agent.config_watch`),
    `mig_layouts` one with layouts (`agent.mig.layouts`), `mig_observer` the socket of who may read MIG
    (`agent.mig.observer`), `kubelet_config` the kubelet's own configuration, for where it cannot be asked. The roots
    are where this process sees the host's folders, `..._on_host` what the container runtime calls them, where that
    differs. What is written to `state_folder` must outlive this process. `listen` is HOST:PORT of probes and metrics,
    "" for none."""

    node_name: str
    listen: str = ""
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
