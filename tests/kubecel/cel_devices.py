# SPDX-License-Identifier: Apache-2.0
"""A GPU as selectors read it, and what an expression evaluates to on it. `kubecel` prescribes no class for devices."""

from __future__ import annotations

from msgspec import Struct

import kubecel


class Version(Struct, frozen=True):
    text: str


class Capacity(Struct, frozen=True):
    milli: int


class Device(Struct, frozen=True):
    name: str
    attributes: tuple[tuple[str, kubecel.Attribute], ...] = ()
    capacity: tuple[tuple[str, Capacity], ...] = ()
    shareable: bool = False


DRIVER = "gpu.example.com"
GPU = Device(
    "gpu-0",
    attributes=(
        (f"{DRIVER}/driverVersion", Version("550.54.15")),
        (f"{DRIVER}/fast", True),
        (f"{DRIVER}/links", (1, 3, 5)),
        (f"{DRIVER}/names", ("a", "b")),
        (f"{DRIVER}/numaNode", 1),
        (f"{DRIVER}/productName", "NVIDIA H100 80GB HBM3"),
        (f"{DRIVER}/versions", (Version("1.0.0"), Version("2.0.0-rc.1"))),
        ("resource.kubernetes.io/pcieRoot", "pci0000:00"),
    ),
    capacity=((f"{DRIVER}/cores", Capacity(132_000)), (f"{DRIVER}/memory", Capacity(80 * 2**30 * 1000))),
)


def holds(expression: str, device: Device = GPU) -> bool:
    return kubecel.compile(expression).matches(device, DRIVER)


def cost(expression: str) -> int:
    return kubecel.compile(expression).evaluate(GPU, DRIVER)[1]
