# SPDX-License-Identifier: Apache-2.0
"""What a machine has: its GPUs with all that is on them, how they are wired, its NICs, and what nobody could read.

Rules: a record says what was seen. What could not be read is None (or UNKNOWN in a matrix) and stands in `unread` with
the reason; nothing is assumed here. GPUs are in the order of NVML's indices.
PCI bus ids are written as in sysfs (`0000:19:00.0`). Memory is in MiB, rates in MB/s (10^6 bytes), one way.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dovetail.core.devices.layout import Matrix

Sight = Literal["all", "some", "none"]
"""How much of a machine's GPUs a look has read: all that NVML or the kernel knows of, only some of them, or none though
the kernel has some or cannot say. A machine without GPUs is seen whole."""


class Unread(Struct, frozen=True):
    """`what` is a field as `dovetail agent inspect` shows it (`gpus[3].fabric`), `why` names the call or the file."""

    what: str
    why: str


class GpuEngines(Struct, frozen=True):
    """What a GPU or a MIG instance has of each. `multiprocessors` 0: not told."""

    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


class GpuProfile(Struct, frozen=True):
    """A kind of MIG instance that a GPU can have, as its driver tells it. `index` is NVML's enumerator, `id` the number
    that nvidia-smi shows (19 for 1g). It takes `size` memory slices, beginning at one of `starts`."""

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
    """A MIG instance: the compute instance `ci` that fills the GPU instance `gi`, at memory slices
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
        """`CLUSTER.CLIQUE`, as in the label nvidia.com/gpu.clique; "" where the GPU is in none. A board of its own
        reports a completed fabric with an all-zero uuid, which is none."""
        joined = self.state == "completed" and self.cluster_uuid.strip("0-")
        return f"{self.cluster_uuid}.{self.clique}" if joined else ""


class Gpu(Struct, frozen=True):
    """`minor` is that of /dev/nvidiaN. `compute` is the compute capability. `mig` is None where MIG mode is off;
    `mig_pending` is the mode after the next reset where that differs, else None. `profiles` is empty where the GPU
    cannot be divided."""

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
    """`name` is the RDMA device (mlx5_0), or the network interface where it speaks no RDMA. `speed_mbps` 0: not known.
    `levels[i]` is how far GPU i is."""

    name: str
    interface: str
    pci_bus_id: str
    pcie_root: str
    numa: int | None
    speed_mbps: int
    rdma: bool
    levels: tuple[int, ...]


class Host(Struct, frozen=True):
    """`driver` and `nvml` are versions as text, `cuda` the newest CUDA that the driver supports. `pcie[i][j]` is a
    level of `core.devices.layout`, `nvlinks[i][j]` how many working NVLinks join the GPUs i and j, through switches
    or not. `machine` is the product name that the firmware gives. With the sight "none" there may be GPUs all the same:
    NVML is not there, or not yet."""

    driver: str = ""
    nvml: str = ""
    cuda: tuple[int, int] | None = None
    machine: str = ""
    gpus: tuple[Gpu, ...] = ()
    pcie: Matrix = ()
    nvlinks: Matrix | None = ()
    nics: tuple[HostNic, ...] | None = ()
    unread: tuple[Unread, ...] = ()
    sight: Sight = "all"

    @property
    def hidden(self) -> dict[str, str]:
        """The GPUs in MIG mode whose instances nobody can tell, by uuid, and why."""
        why = {one.what: one.why for one in self.unread}
        hidden = ((gpu.uuid, why.get(f"gpus[{gpu.index}].mig", "")) for gpu in self.gpus if gpu.mig is not None)
        return {uuid: reason for uuid, reason in hidden if reason}

    @property
    def known(self) -> bool:
        """Whether anybody can say which GPUs there are."""
        return self.sight != "none" or bool(self.gpus)

    @property
    def clique(self) -> str:
        """The NVLink domain that all GPUs agree on, or ""."""
        domains = {gpu.fabric.domain if gpu.fabric else "" for gpu in self.gpus}
        return domains.pop() if len(domains) == 1 else ""

    def gpu(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
