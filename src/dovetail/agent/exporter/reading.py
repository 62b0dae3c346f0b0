# SPDX-License-Identifier: Apache-2.0
"""What one reading of a GPU yields, and which pods hold which devices.

Units are those of the kinds (`kinds.csv`). Times are of the monotonic clock, in seconds.
"""

from __future__ import annotations

from msgspec import Struct


class DeviceReading(Struct):
    """A GPU, or a MIG instance (`parent` is the uuid of its GPU, "" for a GPU).

    gpu: NVML's index of the GPU. minor: the N of /dev/nvidiaN, None if it is unknown.
    gi, ci: the ids of GPU instance and compute instance, None for a GPU. profile: the MIG profile, "" for a GPU.
    values: by name of kind; never NaN, never one of NVML's values for "no data".
    labelled: by name of kind, values with one more label: its name, its value, the number."""

    uuid: str
    gpu: int
    pci_bus_id: str
    product: str
    minor: int | None
    parent: str
    gi: int | None
    ci: int | None
    profile: str
    values: dict[str, float]
    labelled: dict[str, tuple[tuple[str, str, float], ...]] = {}


class Process(Struct, frozen=True):
    """A process that uses the GPU or MIG instance `uuid`. None: NVML does not report the number."""

    pid: int
    uuid: str
    memory_bytes: int | None
    sm_percent: int | None


class GpuReading(Struct):
    """`devices`: the GPU, then its MIG instances. `absent`: the kinds that this GPU does not have, and why."""

    devices: tuple[DeviceReading, ...]
    processes: tuple[Process, ...]
    read_s: float
    absent: dict[str, str]


class Sample(Struct, frozen=True):
    """One value of the kind `name` that a part of the agent adds. `uuid`: of the device whose labels it has, "" for the
    node. `owned`: it also has the labels of each owner. `labels` are its own."""

    name: str
    value: float
    uuid: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    owned: bool = True


class Owner(Struct, frozen=True):
    """A container that holds a device, or a part of it.

    share: the part of the GPU or MIG instance that it holds, up to 1.0 for all of it: of a time-sliced GPU its replicas
    of all replicas, of an MPS GPU its share of memory or SMs, else its fraction.
    vgpu: the id of the replica, "" if the device is not shared.
    queue, job, owner: only with --exporter-job-labels."""

    namespace: str
    pod: str
    pod_uid: str
    container: str
    share: float
    vgpu: str = ""
    queue: str = ""
    job: str = ""
    owner: str = ""


class Owners(Struct):
    """`by_device`: the owners by uuid of the GPU or MIG instance; devices without one are absent."""

    by_device: dict[str, tuple[Owner, ...]]
    read_s: float


class PodValues(Struct, frozen=True):
    """What pods use of the devices, from their processes. `values`: by uuid of the device and uid of the pod, the
    values that replace those of the device in the series of this pod."""

    values: dict[tuple[str, str], dict[str, float]] = {}
    samples: tuple[Sample, ...] = ()
