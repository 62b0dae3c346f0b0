# SPDX-License-Identifier: Apache-2.0
"""Speed of device selectors: compilation, and the first evaluation on each device.

    python benchmarks/cel_speed.py [--devices 2000] [-o json]

Devices are distinct GPUs as the NVIDIA driver publishes them (11 attributes, one capacity). Each selector is evaluated
once on each. Microseconds, medians and 99th percentiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import kubecel
from dovetail.core.dra.types import Capacity, Device, Version

DRIVER = "gpu.nvidia.com"
ATTRIBUTES = f'device.attributes["{DRIVER}"]'
SELECTORS = {
    "class of a driver": f'device.driver == "{DRIVER}" && {ATTRIBUTES}.type == "gpu"',
    "product name": f'{ATTRIBUTES}.productName == "NVIDIA H100 80GB HBM3"',
    "one of several": f'{ATTRIBUTES}.architecture in ["Ampere", "Hopper", "Blackwell"]',
    "memory": f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0',
    "driver version": f'{ATTRIBUTES}.driverVersion.compareTo(semver("550.54.0")) >= 0',
    "optional": f"{ATTRIBUTES}.?numaNode.orValue(0) == 0",
    "bound name": f'cel.bind(gpu, {ATTRIBUTES}, gpu.productName.startsWith("NVIDIA") && gpu.brand == "Nvidia")',
    "exists in a list": f"{ATTRIBUTES}.links.exists(link, link > 5)",
    "includes": f"{ATTRIBUTES}.links.includes(3)",
    "regular expression": f'{ATTRIBUTES}.productName.matches("(A|H)[0-9]+0 80GB")',
    "several terms": (
        f'has({ATTRIBUTES}.productName) && {ATTRIBUTES}.productName.lowerAscii().contains("h100") '
        f'&& {ATTRIBUTES}.cudaComputeCapability.isGreaterThan(semver("8.0.0")) '
        f'&& device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("39Gi")) && {ATTRIBUTES}.index < 8'
    ),
}


def gpu(number: int) -> Device:
    """A GPU with a distinct driver version, memory and uuid."""
    product = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA B200", "Tesla T4")[number % 4]
    attributes = {
        "architecture": ("Hopper", "Ampere", "Blackwell", "Turing")[number % 4], "brand": "Nvidia",
        "cudaComputeCapability": Version(f"{9 - number % 4}.{number % 10}.0"), "cudaDriverVersion": Version("12.4.0"),
        "driverVersion": Version(f"5{number % 60:02d}.54.{number}"), "index": number % 8,
        "links": tuple(range(number % 8)), "numaNode": number % 2, "productName": product, "type": "gpu",
        "uuid": f"GPU-{number:08x}",
    }  # fmt: skip
    memory = Capacity((80 - number % 4 * 20) * 2**30 * 1000 + number * 1000)
    return Device(
        f"gpu-{number}",
        attributes=tuple((f"{DRIVER}/{name}", value) for name, value in attributes.items()),
        capacity=((f"{DRIVER}/memory", memory),),
    )


def summary(taken_us: list[float]) -> dict[str, float]:
    percentiles = statistics.quantiles(taken_us, n=100)
    return {"median_us": round(percentiles[49], 1), "p99_us": round(percentiles[98], 1)}


def compiling(expression: str, runs: int = 200) -> list[float]:
    taken = []
    for _ in range(runs):
        began = time.perf_counter_ns()
        kubecel.compile(expression)
        taken.append((time.perf_counter_ns() - began) / 1000)
    return taken


def asking(expression: str, devices: list[Device]) -> tuple[list[float], int]:
    """The time of each evaluation, and the number of matching devices."""
    selector = kubecel.compile(expression)
    taken, matched = [], 0
    for device in devices:
        began = time.perf_counter_ns()
        matched += selector.matches(device, DRIVER)
        taken.append((time.perf_counter_ns() - began) / 1000)
    return taken, matched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2000)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    devices = [gpu(number) for number in range(options.devices)]
    found, rows = {}, []
    for name, expression in SELECTORS.items():
        taken, matched = asking(expression, devices)
        compiled, asked = summary(compiling(expression)), summary(taken)
        found[name] = {"compile": compiled, "ask": asked, "matched": matched}
        figures = [*compiled.values(), *asked.values()]
        rows.append(f"{name:20} {figures[0]:12} {figures[1]:8} {figures[2]:8} {figures[3]:8} {matched:8}")
    if options.output == "json":
        print(json.dumps(found, indent=2))
        return
    print(f"{'selector':20} {'compile us':>12} {'p99':>8} {'ask us':>8} {'p99':>8} {'matched':>8}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
