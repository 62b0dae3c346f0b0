# SPDX-License-Identifier: Apache-2.0
"""Speed of allocating devices by claim in the core: pods per second of CPU time, from pending to decided.

    python benchmarks/claims_speed.py [--nodes 500] [--runs 5] [-o json]

Load: nodes with one ResourceSlice of 8 GPUs each (type, product, architecture, driver version, PCI bus id, uuid,
memory) and the usual topology, and pods with one claim each until all GPUs are allocated. The class has one selector
and so has each claim. `one selector`: all claims are the same. `100 selectors`: a hundred selectors in turn, which all
match. `8 GPUs`: claims of a whole node. `linked pairs`: claims of 2 GPUs with the same driver version. `partitions`:
GPUs with 7 partitions (counters of compute and memory slices, one device per placement), and claims of each size in
turn. `shares`: GPUs that several claims share, and claims of 10 GiB of their memory. `first ms` is the step that
decides the first pod of each kind; it includes the compilation and first evaluation of selectors and the comparison of
nodes.

Objects from before the measurement are frozen for the garbage collector, which runs as seldom as in the live scheduler
and collects only new objects.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterator
from itertools import cycle, islice

from msgspec.structs import replace

from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.devices.products import assumed_layout
from dovetail.core.dra.types import (
    Capacity,
    Claim,
    ClaimSpec,
    Constraint,
    CounterSet,
    CounterUse,
    Device,
    DeviceClass,
    DeviceRequest,
    RequestPolicy,
    Slice,
    Value,
    Version,
)
from dovetail.core.event_handlers import apply
from dovetail.core.events import ClaimChanged, DeviceClassChanged, Event, NodeChanged, PodChanged, SliceChanged
from dovetail.core.model import CPU, MEMORY, PODS, Node, Pod, Request
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.scheduler.serve import COLLECT_AFTER

DRIVER = "gpu.nvidia.com"
GIB_MILLI = 1000 * 2**30
GPUS = 8
SLICES = {
    "1g.10gb": (1, 1),
    "1g.20gb": (1, 2),
    "2g.20gb": (2, 2),
    "3g.40gb": (3, 4),
    "4g.40gb": (4, 4),
    "7g.80gb": (7, 8),
}
STARTS = {
    "1g.10gb": range(7), "1g.20gb": (0, 2, 4, 6), "2g.20gb": (0, 2, 4),
    "3g.40gb": (0, 4), "4g.40gb": (0,), "7g.80gb": (0,),
}  # fmt: skip
"""(compute slices, memory slices) of the profiles of an H100, and their possible memory offsets."""


def gpu(node: int, index: int, kind: str = "gpu") -> Device:
    attributes: dict[str, Value] = {
        f"{DRIVER}/type": kind,
        f"{DRIVER}/uuid": f"GPU-{node}-{index}",
        f"{DRIVER}/productName": "NVIDIA H100 80GB HBM3",
        f"{DRIVER}/architecture": "Hopper",
        f"{DRIVER}/driverVersion": Version("580.65.6"),
        "resource.kubernetes.io/pciBusID": f"0000:{index:02x}:00.0",
    }
    memory = ((f"{DRIVER}/memory", Capacity(80 * GIB_MILLI)),)
    return Device(f"gpu-{index}", tuple(sorted(attributes.items())), memory)


def partitions(node: int, index: int) -> list[Device]:
    def part(profile: str, start: int) -> Device:
        compute, memory = SLICES[profile]
        slots = [(f"memory-slice-{i}", 1000) for i in range(start, start + memory)]
        uses = CounterUse(f"gpu-{index}", tuple(sorted([("compute", 1000 * compute), *slots])))
        made = gpu(node, index, "mig")
        attributes = tuple(sorted((*made.attributes, (f"{DRIVER}/profile", profile))))
        return replace(made, name=f"gpu-{index}-mig-{profile}-{start}", attributes=attributes, consumes=(uses,))

    return [part(profile, start) for profile, starts in STARTS.items() for start in starts]


def node_slices(node: int, case: str) -> Iterator[Slice]:
    name = f"node-{node}"
    made = Slice(f"{name}-gpus", DRIVER, name, 1, 1, node=name)
    if case == "partitions":
        counters = (("compute", 7000), *((f"memory-slice-{i}", 1000) for i in range(8)))
        sets = tuple(CounterSet(f"gpu-{i}", counters) for i in range(GPUS))
        devices = tuple(device for i in range(GPUS) for device in partitions(node, i))
        yield replace(made, pool_slices=2, devices=devices)
        yield replace(made, name=f"{name}-counters", pool_slices=2, counter_sets=sets)
    elif case == "shares":
        policy = RequestPolicy(80 * GIB_MILLI, least_milli=GIB_MILLI, step_milli=GIB_MILLI)
        memory = ((f"{DRIVER}/memory", Capacity(80 * GIB_MILLI, policy)),)
        yield replace(made, devices=tuple(replace(gpu(node, i), capacity=memory, shareable=True) for i in range(GPUS)))
    else:
        yield replace(made, devices=tuple(gpu(node, i) for i in range(GPUS)))


PRODUCT = f"device.attributes['{DRIVER}'].productName.startsWith('NVIDIA H100')"
ONE = DeviceRequest("gpu", "gpu", (PRODUCT,))
WIDE = f"device.capacity['{DRIVER}'].memory.compareTo(quantity('{{}}Mi')) >= 0"
CASES: dict[str, tuple[tuple[ClaimSpec, ...], int]] = {
    "one selector": ((ClaimSpec(((ONE,),)),), GPUS),
    "100 selectors": (tuple(ClaimSpec(((replace(ONE, selectors=(WIDE.format(1 + i),)),),)) for i in range(100)), GPUS),
    "8 GPUs": ((ClaimSpec(((replace(ONE, count=8),),)),), 1),
    "linked pairs": (
        (ClaimSpec(((replace(ONE, count=2),),), (Constraint((), f"{DRIVER}/driverVersion"),)),),
        GPUS // 2,
    ),
    "partitions": (
        tuple(
            ClaimSpec(((DeviceRequest("gpu", "mig", (f"device.attributes['{DRIVER}'].profile == '{profile}'",)),),))
            for profile in ("1g.10gb", "2g.20gb", "4g.40gb")
        ),
        3 * GPUS,
    ),
    "shares": ((ClaimSpec(((replace(ONE, amounts=((f"{DRIVER}/memory", 10 * GIB_MILLI),)),),)),), 8 * GPUS),
}
"""The specs of the claims, used in turn, and the number of claims that fit a node."""


def case_events(case: str, nodes: int) -> Iterator[Event]:
    layout = assumed_layout("NVIDIA-H100-80GB-HBM3", GPUS)
    for kind in ("gpu", "mig"):
        yield DeviceClassChanged(
            DeviceClass(kind, (f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'",))
        )
    for i in range(nodes):
        amounts = ((CPU, 192_000), (MEMORY, 2048 * 2**30), (PODS, 110))
        yield NodeChanged(Node(f"node-{i}", amounts, layout=layout))
        yield from (SliceChanged(one) for one in node_slices(i, case))


def waiting(case: str, pods: int) -> Iterator[Event]:
    for i, spec in enumerate(islice(cycle(CASES[case][0]), pods)):
        claim = Claim(f"claim-{i}", "default", f"pod-{i}-gpu", spec, owner_pod=f"pod-{i}")
        yield ClaimChanged(claim)
        request = Request(((CPU, 1000),))
        yield PodChanged(Pod(f"pod-{i}", "default", f"pod-{i}", request, created_ms=i + 1, device_claims=(claim.key,)))


def run(case: str, nodes: int) -> dict[str, float]:
    """Pods per second on a state that has all objects, and the time of the first decisions."""
    gc.collect()
    state = State(Policy())
    step(state, list(case_events(case, nodes)), 0)
    specs, per_node = CASES[case]
    pods = nodes * per_node
    events = list(waiting(case, pods))
    first_s, first = drain(state, events[: 2 * len(specs)], len(specs))
    seconds, bound = drain(state, events[2 * len(specs) :], pods - len(specs))
    problems = [*state.cluster.check(), *state.cluster.claims.check()]
    if problems or first + bound < pods:
        raise SystemExit(f"{case}: {first + bound} of {pods} pods were placed; {problems}")
    return {"claims_per_s": bound / seconds, "first_ms": 1000 * first_s}


def drain(state: State, events: list[Event], expected: int) -> tuple[float, int]:
    """The CPU seconds of the steps after the events are applied, and the number of pods that they place."""
    for event in events:
        apply(state, event)
    gc.set_threshold(COLLECT_AFTER)
    gc.collect()
    gc.freeze()
    bound, now, started = 0, 1, time.process_time()
    while state.busy and bound < expected:
        bound += sum(isinstance(decision, Bind) for decision in step(state, (), now))
        now += 1
    seconds = time.process_time() - started
    gc.unfreeze()
    return seconds, bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    rows = []
    for case in options.cases:
        runs = [run(case, options.nodes) for _ in range(options.runs)]
        medians = {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        rows.append({"claims": case, "pods": options.nodes * CASES[case][1], **medians})
    if options.output == "json":
        print(json.dumps(rows, indent=1))
        return
    print("| claims | pods | claims/s | first ms |\n|---|---:|---:|---:|")
    for row in rows:
        print(f"| {row['claims']} | {row['pods']} | {row['claims_per_s']:,.0f} | {row['first_ms']:.1f} |")


if __name__ == "__main__":
    main()
