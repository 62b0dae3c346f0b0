# SPDX-License-Identifier: Apache-2.0
"""Machines, pods and arrivals for the tests of the CPU and Memory Managers, written shortly."""

from collections.abc import Callable, Iterable, Sequence

from dovetail.core.devices.kubelet.hints import Hint, ids_of, mask_of
from dovetail.core.devices.kubelet.holdings import AllocationRefused, Arrival, HeldResources, Holdings, PodHeld
from dovetail.core.devices.kubelet.inventory import Cpu, Inventory, MemoryPool
from dovetail.core.devices.kubelet.pods import ManagedContainer, ManagedKind, ManagedPod, amounts

GIB = 1 << 30
UID = "pod"


def cpu_set(text: str) -> int:
    """As the kubelet writes CPU sets: 0-3,8."""
    mask = 0
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        mask |= mask_of(range(int(first), int(last or first) + 1))
    return mask


def machine(
    cores: int,
    threads: int,
    numa: Callable[[int], int],
    socket: Callable[[int], int] = lambda core: 0,
    uncore: Callable[[int], int] | None = None,
) -> tuple[Cpu, ...]:
    """Thread t of core c is CPU c + t * cores. Without `uncore` the L3 cache is the socket's."""
    return tuple(
        Cpu(core + t * cores, core, socket(core), numa(core), (uncore or socket)(core))
        for t in range(threads)
        for core in range(cores)
    )


ONE_SOCKET_HT = machine(4, 2, numa=lambda core: 0)
TWO_SOCKETS = machine(8, 1, numa=lambda core: core // 4, socket=lambda core: core // 4)
TWO_SOCKETS_HT = machine(6, 2, numa=lambda core: core % 2, socket=lambda core: core % 2)
ONE_CACHE_TWO_SOCKETS_HT = machine(
    6, 2, numa=lambda core: core % 2, socket=lambda core: core % 2, uncore=lambda core: 0
)
TWO_BLOCKS_HT = machine(6, 2, numa=lambda core: core // 3, socket=lambda core: core // 3)
FOUR_NUMA_HT = machine(40, 2, numa=lambda core: core // 10, socket=lambda core: core // 20)
"""Two sockets of two NUMA nodes of ten cores."""
FOUR_SOCKETS_TWO_NUMA_HT = machine(40, 2, numa=lambda core: core // 20, socket=lambda core: core // 10)
EIGHT_NUMA_HT = machine(128, 2, numa=lambda core: core // 16, socket=lambda core: core // 64)
FOUR_CACHES = machine(16, 1, numa=lambda core: 0, uncore=lambda core: core // 4)
FOUR_CACHES_TWO_NUMA = machine(16, 1, numa=lambda core: core // 8, uncore=lambda core: core // 4)
FOUR_CACHES_TWO_SOCKETS = machine(
    16, 1, numa=lambda core: core // 8, socket=lambda core: core // 8, uncore=lambda core: core // 4
)
TWO_CACHES_HT = machine(8, 2, numa=lambda core: 0, uncore=lambda core: core // 4)
FIVE_SMALL_NUMA = machine(10, 1, numa=lambda core: core // 2)


def cpu_inventory(
    cpus: tuple[Cpu, ...],
    *options: str,
    reserved: str = "0",
    topology_policy: str = "best-effort",
    **more: object,
) -> Inventory:
    return Inventory(
        numa=tuple(sorted({cpu.numa for cpu in cpus})),
        topology_policy=topology_policy,
        cpu_policy="static",
        cpu_options=frozenset(options),
        cpus=cpus,
        reserved_cpus=frozenset(ids_of(cpu_set(reserved))),
        **more,  # type: ignore[arg-type]
    )


def memory_inventory(
    gib: Sequence[int], huge_gib: Sequence[int] = (), reserved_gib: int = 1, **more: object
) -> Inventory:
    """A machine with that much memory, and huge pages of 1 GiB, per NUMA node; some of node 0 is reserved on top."""
    pools = []
    for numa, size in enumerate(gib):
        reserved = reserved_gib if numa == 0 else 0
        huge = huge_gib[numa] if huge_gib else 0
        pools.append(MemoryPool(numa, "memory", (size + reserved + huge) * GIB, reserved * GIB))
        if huge_gib:
            pools.append(MemoryPool(numa, "hugepages-1Gi", huge * GIB))
    return Inventory(
        numa=tuple(range(len(gib))),
        topology_policy="best-effort",
        memory_policy="Static",
        memory=tuple(pools),
        **more,  # type: ignore[arg-type]
    )


def container(
    cpu_milli: int, kind: ManagedKind = ManagedKind.APP, memory_gib: int = 1, huge_gib: int | None = None
) -> ManagedContainer:
    asked = {"cpu": cpu_milli, "memory": memory_gib * GIB}
    if huge_gib is not None:
        asked["hugepages-1Gi"] = huge_gib * GIB
    return ManagedContainer(amounts(asked), amounts(asked), kind)


def arrival(pod: ManagedPod, holdings: Holdings, uid: str = UID) -> Arrival:
    """Guaranteed as the pod's own requests make it; what it holds already is kept."""
    before = holdings.pods.get(uid)
    held = list(before.containers) if before else [HeldResources()] * len(pod.containers)
    return Arrival(uid, pod, pod.qos(True, True).value == "Guaranteed", holdings.copy(), held)


def settled(coming: Arrival) -> Holdings:
    """The holdings once the pod is in."""
    after = coming.holdings.copy()
    after.pods[coming.uid] = PodHeld(coming.pod, tuple(coming.held), coming.pod_cpus, coming.pod_memory)
    return after


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    """The reason and message with which the call is refused."""
    try:
        call()
    except AllocationRefused as error:
        return error.reason, error.message
    raise AssertionError("was not refused")


def unexpected_text(error: str) -> tuple[str, str]:
    return "UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected"


def hint(*numa: int, preferred: bool = True) -> Hint:
    return Hint(mask_of(numa), preferred)


def described(hints: Iterable[Hint] | None) -> list[tuple[tuple[int, ...], bool]] | None:
    return None if hints is None else [(ids_of(hint.mask or 0), hint.preferred) for hint in hints]
