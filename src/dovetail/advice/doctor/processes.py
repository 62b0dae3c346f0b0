# SPDX-License-Identifier: Apache-2.0
"""Processes that use GPUs which no scheduler allocated to them.

The GPUNode of a node lists them (`status.foreignProcesses`), if the agent sees the processes of the host. A pod has one
finding with all its processes; the processes without a pod of one node have another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dovetail.advice.doctor.records import Check, ClusterFacts, Problems, some
from dovetail.kube.objects.topology import ForeignProcess

_POD_FIX = (
    "request the GPUs in the limits of the pod; or remove NVIDIA_VISIBLE_DEVICES (dovetail lint finds it), privileged, "
    "and the host's /dev from its spec"
)


def _without_request(seen: ClusterFacts) -> Problems:
    for node, found in _of_nodes(seen, lambda one: bool(one.pod)):
        pods: dict[str, list[ForeignProcess]] = {}
        for one in found:
            pods.setdefault(f"{one.namespace}/{one.pod}", []).append(one)
        for pod, its in sorted(pods.items()):
            yield f"pod/{pod}", _evidence(node, its), _POD_FIX


def _no_pod(seen: ClusterFacts) -> Problems:
    for node, found in _of_nodes(seen, lambda one: not one.pod):
        gone = (
            " (the pod of some of them does not exist any more)" if any(one.holder == "gone" for one in found) else ""
        )
        pids = ",".join(str(one.pid) for one in found[:8])
        fix = (
            f"on the node: ps -o pid,user,lstart,args -p {pids}; end them, or run them in a pod that requests the GPUs"
        )
        yield f"node/{node}", f"{_evidence(node, found)}, without a pod{gone}", fix


def _of_nodes(
    seen: ClusterFacts, takes: Callable[[ForeignProcess], bool]
) -> Iterator[tuple[str, list[ForeignProcess]]]:
    for node, status in sorted((seen.gpu_nodes or {}).items()):
        if found := [one for one in status.foreign if takes(one)]:
            yield node, found


def _evidence(node: str, found: Iterable[ForeignProcess]) -> str:
    """The number of processes and their memory, by GPU."""
    gpus: dict[str, list[ForeignProcess]] = {}
    for one in found:
        gpus.setdefault(one.uuid if one.gpu is None else f"GPU {one.gpu} ({one.uuid})", []).append(one)
    each = [
        f"{len(its)} {'process uses' if len(its) == 1 else 'processes use'} "
        f"{sum(one.memory_mib for one in its)} MiB of {gpu}"
        for gpu, its in gpus.items()
    ]
    return f"GPUNode {node}, status.foreignProcesses: {some(each)}"


CHECKS = (
    Check("processes/without-request", "warning", "the pod uses a GPU that it does not hold",
          ("gpu_nodes",), _without_request),
    Check("processes/no-pod", "warning", "processes outside of pods use GPUs of the node", ("gpu_nodes",), _no_pod),
)  # fmt: skip
