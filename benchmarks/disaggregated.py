# SPDX-License-Identifier: Apache-2.0
"""How many disaggregated replicas the core places per second, and whether each is inside one clique.

    python benchmarks/disaggregated.py [--nodes 5000] [--replicas 200] [--runs 3] [-o table|json]

Load: nodes with 4 GPUs each, 18 of them in a clique (72 GPUs), all of them free; a third of the cliques have one node
that is taken. A replica has 2 instances of prefill and 4 of decode with 4 GPUs each, and must be inside one clique.
`parts`: a gang with a sub-gang for each role, as a PodGang of Grove or a RoleSet declares it. `sets`: a gang of gangs
of gangs, as a slice of a DisaggregatedSet is, where each instance is a group of a LeaderWorkerSet. CPU time of the core
alone, in one process; medians of the runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator

from benchmarks.core_speed import drain
from dovetail import __runs__ as runs_on
from dovetail.core.event_handlers import apply
from dovetail.core.events import GangChanged, NodeChanged, PodChanged
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Gang, Node, Pod, Request
from dovetail.core.state import State

CLIQUE = "nvidia.com/gpu.clique"
TRAYS = 18
ROLES = {"prefill": 2, "decode": 4}
_GIB = 2**30
_INSTANCE = Request(((CPU, 64_000), (MEMORY, 512 * _GIB), (GPU, 4)))


def cluster(nodes: int) -> State:
    """The nodes, with one of them taken in every third clique."""
    state = State()
    amounts = ((CPU, 144_000), (MEMORY, 960 * _GIB), (PODS, 110), (GPU, 4))
    for i in range(nodes):
        name = f"tray-{i}"
        labels = (("kubernetes.io/hostname", name), (CLIQUE, f"clique-{i // TRAYS}"))
        apply(state, NodeChanged(Node(name, amounts, labels)))
    for i in range(0, nodes, 3 * TRAYS):
        apply(state, PodChanged(Pod(f"other-{i}", "default", f"other-{i}", _INSTANCE, node=f"tray-{i}")))
    return state


def replica(number: int, shape: str) -> Iterator[GangChanged | PodChanged]:
    """The gangs and pods of one replica."""
    root, created_ms = f"replica-{number}", number + 1
    yield GangChanged(Gang(root, "default", root, 0, required=(CLIQUE,), created_ms=created_ms))
    for role, instances in ROLES.items():
        part = f"{root}/{role}"
        least, groups = (instances, 0) if shape == "parts" else (0, instances)
        yield GangChanged(
            Gang(part, "default", part, least, parent=root, min_groups=groups, created_ms=created_ms)
        )  # fmt: skip
        for i in range(instances):
            own = f"{part}/{i}"
            if shape == "sets":
                yield GangChanged(Gang(own, "default", own, 1, parent=part, created_ms=created_ms))
            gang = part if shape == "parts" else own
            yield PodChanged(Pod(own, "default", own, _INSTANCE, created_ms=created_ms, gang=gang))


def split(state: State) -> int:
    """How many replicas are in more than one clique, or not placed as a whole."""
    cliques: dict[str, list[int]] = {}
    domains = state.cluster.fabric.domains(CLIQUE)
    for uid, placement in state.cluster.placements.items():
        if uid.startswith("replica-"):
            cliques.setdefault(uid.partition("/")[0], []).append(int(domains[placement.slot]))
    whole = sum(ROLES.values())
    return sum(len(found) != whole or len(set(found)) != 1 for found in cliques.values())


def one_run(nodes: int, replicas: int, shape: str) -> dict[str, float]:
    state = cluster(nodes)
    for number in range(replicas):
        for event in replica(number, shape):
            apply(state, event)
    wanted = replicas * sum(ROLES.values())
    seconds, bound = drain(state, wanted)
    return {"replicas_per_s": replicas / seconds, "unplaced_pods": wanted - bound, "split": split(state)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--replicas", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {"parts": [], "sets": []}
    for _ in range(options.runs):
        for shape, found in runs.items():
            found.append(one_run(options.nodes, options.replicas, shape))
    rows = {
        shape: {key: statistics.median(run[key] for run in found) for key in found[0]} for shape, found in runs.items()
    }
    if options.output == "json":
        print(json.dumps(rows, indent=1))
        return
    load = f"{options.replicas} replicas on {options.nodes} nodes"
    print(f"{load}, CPU time, medians of {options.runs} runs, {runs_on()}")
    print(f"{'shape':>8} {'replicas/s':>11} {'not placed':>11} {'split':>6}")
    for shape, row in rows.items():
        print(f"{shape:>8} {row['replicas_per_s']:>11.0f} {row['unplaced_pods']:>11.0f} {row['split']:>6.0f}")


if __name__ == "__main__":
    main()
