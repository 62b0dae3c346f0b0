# SPDX-License-Identifier: Apache-2.0
"""The hints of the CPU Manager by definition: every set of NUMA nodes is examined, CPU by CPU."""

from itertools import combinations

from dovetail.core.devices.kubelet.inventory import Cpu

Described = list[tuple[tuple[int, ...], bool]]


def cpu_hints(
    cpus: tuple[Cpu, ...], available: set[int], reusable: set[int], count: int, by_socket: bool = False
) -> Described:
    numas = sorted({cpu.numa for cpu in cpus})
    subsets = [set(subset) for size in range(1, len(numas) + 1) for subset in combinations(numas, size)]
    large = [subset for subset in subsets if sum(cpu.numa in subset for cpu in cpus) >= count]
    least = min((len(subset) for subset in large), default=len(numas))
    sockets = {cpu.socket for cpu in cpus}
    numas_per_socket = len(numas) // len(sockets)
    answer: Described = []
    for subset in subsets:
        inside = {cpu.id for cpu in cpus if cpu.numa in subset}
        if not reusable <= inside or len(inside & available) + len(reusable) < count:
            continue
        preferred = len(subset) == least
        if by_socket and numas_per_socket:
            spanned = len({cpu.socket for cpu in cpus if cpu.numa in subset})
            preferred |= spanned == -(-least // numas_per_socket)
        answer.append((tuple(sorted(subset)), preferred))
    return answer
