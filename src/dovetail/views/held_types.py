# SPDX-License-Identifier: Apache-2.0
"""What pods hold of GPUs and devices, and why they are refused some, as answers have it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

SHARE, DEVICES = "share of a GPU", "devices"
"""Used in place of a resource name if a share of a GPU, or devices by claim, are missing."""


class DeviceHolder(Struct, frozen=True):
    """A pod that holds some of what is missing. `devices` are the devices that it holds, if known. `next`: the pod
    holds nothing yet, and gets this in the next step, as it is before the other in queue order."""

    pod: str
    node: str
    resource: str
    amount: str
    devices: tuple[str, ...] = ()
    next: bool = False


class HeldPart(Struct, frozen=True):
    """A MIG instance, a share of a GPU (`milli` thousandths of it; else 0) or a device by claim of a pod. `device` is
    "" if it is not known which GPU the share is of."""

    kind: Literal["instance", "share", "claimed"]
    device: str
    milli: int = 0


class HolderRefused(Struct, frozen=True):
    """Devices of a node that `rule` refuses to a pod. `holders` are the pods or claims that hold them or parts of them.
    `lacks` is the distance to fitting, the less the closer: for a GPU in MIG mode the thousandths in use, for a shared
    GPU the thousandths that are missing, else the number of devices that are missing on the node."""

    node: str
    devices: tuple[str, ...]
    rule: str
    holders: tuple[str, ...]
    lacks: int


class NodeHolder(Struct, frozen=True):
    """A pod with `count` whole GPUs, of which the indices are `gpus` if they are known, and `parts`: MIG instances,
    shares and devices by claim. `job` and `queue` are "" for pods of other schedulers and for leases."""

    pod: str
    job: str
    user: str
    queue: str
    count: int
    gpus: tuple[int, ...] | None
    parts: tuple[HeldPart, ...]


class NodeGpus(Struct, frozen=True):
    """A node that offers `gpus` GPUs of a `model` ("" if not known), and the pods that hold them or parts of them."""

    node: str
    model: str
    gpus: int
    holders: tuple[NodeHolder, ...]


class HeldGpus(Struct, frozen=True):
    """The nodes with GPUs, by name."""

    now_ms: int
    nodes: tuple[NodeGpus, ...]
