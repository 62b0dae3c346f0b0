# SPDX-License-Identifier: Apache-2.0
"""A machine: its GPUs, their wiring, its NICs, and the fields that could not be read.

Rules: a field that could not be read is None (or UNKNOWN in a matrix) and listed in `unread` with the reason. Nothing
is assumed here. GPUs are in the order of NVML's indices.
PCI bus ids are written as in sysfs (`0000:19:00.0`). Memory is in MiB, rates in MB/s (10^6 bytes), one way.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dovetail.agent.machine.sysfs import Hca, HostInterface
from dovetail.core.devices.layout import Matrix

Sight = Literal["all", "some", "none"]
"""Which of the machine's GPUs a look has read: all that NVML or the kernel lists, some of them, or none although the
kernel lists some or cannot be read. For a machine without GPUs it is "all"."""


class Unread(Struct, frozen=True):
    """`what` is a field as in `dovetail agent inspect` (`gpus[3].fabric`), `why` names the call or the file."""

    what: str
    why: str


class Obstacle(Struct, frozen=True):
    """What keeps GPUDirect RDMA from working, or slows it down: a code of `gpu_direct`, and the evidence: a file of the
    host and its value."""

    code: str
    file: str
    value: str


class GpuEngines(Struct, frozen=True):
    """The number of each engine of a GPU or MIG instance. `multiprocessors` is 0 if it is unknown."""

    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


class GpuProfile(Struct, frozen=True):
    """A MIG profile of a GPU, from its driver. `index` is NVML's enumerator, `id` the number that nvidia-smi shows (19
    for 1g), `compute` its compute slices. An instance takes `size` memory slices from one of `starts` on; at most
    `most` fit."""

    index: int
    id: int
    name: str
    compute: int
    size: int
    starts: tuple[int, ...]
    most: int
    memory_mib: int
    engines: GpuEngines = GpuEngines()


class GpuInstance(Struct, frozen=True):
    """A MIG instance: the compute instance `ci` that fills the GPU instance `gi`, on the memory slices
    [start, start + size). `uuid` begins with MIG-."""

    uuid: str
    profile: str
    gi: int
    ci: int
    start: int
    size: int
    memory_mib: int
    engines: GpuEngines = GpuEngines()


class GpuFabric(Struct, frozen=True):
    """The NVLink fabric of a GPU. `state` is completed, in-progress, not-started or not-supported."""

    state: str
    cluster_uuid: str = ""
    clique: int = 0

    @property
    def domain(self) -> str:
        """`CLUSTER.CLIQUE`, as in the label nvidia.com/gpu.clique; "" if the GPU is in no NVLink domain. A board
        without one reports a completed fabric with an all-zero uuid."""
        joined = self.state == "completed" and self.cluster_uuid.strip("0-")
        return f"{self.cluster_uuid}.{self.clique}" if joined else ""


class Gpu(Struct, frozen=True):
    """`minor` is the N of /dev/nvidiaN, `compute` the compute capability. `mig` are the instances, None if MIG mode is
    off; `mig_pending` is the mode after the next reset if it differs, else None. `profiles` is empty if the GPU has no
    MIG."""

    index: int
    minor: int
    uuid: str
    product: str
    pci_bus_id: str
    memory_mib: int
    brand: str = ""
    architecture: str = ""
    compute: tuple[int, int] | None = None
    serial: str = ""
    module: int | None = None
    addressing: str = ""
    numa: int | None = None
    pcie_root: str = ""
    fabric: GpuFabric | None = None
    mig: tuple[GpuInstance, ...] | None = None
    mig_pending: bool | None = None
    profiles: tuple[GpuProfile, ...] = ()
    engines: GpuEngines = GpuEngines()

    @property
    def mig_capable(self) -> bool:
        return bool(self.profiles) or self.mig is not None


class HostNic(Struct, frozen=True):
    """`name` is the RDMA device (mlx5_0), or the network interface of a NIC without RDMA. `speed_mbps` is 0 if it is
    unknown. `levels[i]` is the distance to GPU i."""

    name: str
    interface: str
    pci_bus_id: str
    pcie_root: str
    numa: int | None
    speed_mbps: int
    rdma: bool
    levels: tuple[int, ...]


class Host(Struct, frozen=True):
    """`driver` and `nvml` are versions, `cuda` the newest CUDA version that the driver supports. `pcie[i][j]` is a
    level of `core.devices.layout`, `nvlinks[i][j]` the number of active NVLinks between the GPUs i and j, through
    switches or not. `machine` is the product name in the firmware. With the sight "none" the machine may have GPUs:
    NVML does not answer, or not yet. `gpu_direct` are the obstacles of GPUDirect RDMA, None if there
    is nothing to examine."""

    driver: str = ""
    nvml: str = ""
    cuda: tuple[int, int] | None = None
    machine: str = ""
    gpus: tuple[Gpu, ...] = ()
    pcie: Matrix = ()
    nvlinks: Matrix | None = ()
    nics: tuple[HostNic, ...] | None = ()
    hcas: tuple[Hca, ...] = ()
    interfaces: tuple[HostInterface, ...] = ()
    gpu_direct: tuple[Obstacle, ...] | None = None
    unread: tuple[Unread, ...] = ()
    sight: Sight = "all"

    @property
    def hidden(self) -> dict[str, str]:
        """The GPUs in MIG mode whose instances are unknown, by uuid, with the reason."""
        why = {one.what: one.why for one in self.unread}
        hidden = ((gpu.uuid, why.get(f"gpus[{gpu.index}].mig", "")) for gpu in self.gpus if gpu.mig is not None)
        return {uuid: reason for uuid, reason in hidden if reason}

    @property
    def known(self) -> bool:
        """Whether the GPUs of the machine are known."""
        return self.sight != "none" or bool(self.gpus)

    @property
    def clique(self) -> str:
        """The NVLink domain of all GPUs, "" if they are not in the same one."""
        domains = {gpu.fabric.domain if gpu.fabric else "" for gpu in self.gpus}
        return domains.pop() if len(domains) == 1 else ""

    def gpu(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
