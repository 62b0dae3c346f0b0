# SPDX-License-Identifier: Apache-2.0
"""The lists of openb, Alibaba's GPU cluster of 2023: nodes, and pods that request CPU, memory, GPUs or GPU shares.

Rules
- Nodes: `sn`, `cpu_milli`, `memory_mib`, `gpu` (count), `model` (empty: none). The list has no maximum number of pods
  per node, so that number is never the limit.
- Pods: `name`, `cpu_milli`, `memory_mib`, `num_gpu`, `gpu_milli` (of each GPU). Less than 1000 is a share of one GPU.
  `gpu_spec` lists the accepted models, as in `V100M16|V100M32`; empty means any.
- Times are seconds from the start of the trace, in three columns: either all or none. A pod arrives at `creation_time`
  and runs from `scheduled_time` to `deletion_time`. If one of the latter is empty, as for pods that were never
  scheduled, the run time is unknown.
- Rows stay in the order of the file. `qos` and `pod_phase` are ignored.
Source: https://github.com/alibaba/clusterdata, cluster-trace-gpu-v2023; Weng et al., "Beware of Fragmentation" (USENIX
ATC'23). https://github.com/hkust-adsl/kubernetes-scheduler-simulator (data/csv) has the same files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources.abc import Traversable
from pathlib import Path

from dovetail.core.model import (
    CPU,
    GPU,
    MAX_GPUS,
    MEMORY,
    PODS,
    WHOLE_GPU_MILLI,
    Node,
    NodeTerm,
    Pod,
    Request,
    Requirement,
)
from dovetail.sim.traces.nodes import HOSTNAME, NO_LIMIT_PODS
from dovetail.sim.traces.table import TraceRow, read_rows
from dovetail.sim.workload import SimJob

GPU_PRODUCT = "nvidia.com/gpu.product"
NAMESPACE = "default"

_MIB = 2**20
_MOST_MIB = 2**40
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_MILLI = {0: (0, 0), 1: (1, WHOLE_GPU_MILLI)}
_TIMES = ("creation_time", "deletion_time", "scheduled_time")


def read_nodes(path: Path | Traversable) -> tuple[Node, ...]:
    """The nodes of the list. Raises TraceError."""
    nodes: dict[str, Node] = {}
    for row in read_rows(path, _NODE_COLUMNS):
        name, model = row.text("sn"), row.values["model"]
        if name in nodes:
            raise row.error("sn", f"{name!r} is there twice: node names must differ")
        amounts = {
            CPU: row.whole("cpu_milli"),
            MEMORY: row.whole("memory_mib", most=_MOST_MIB) * _MIB,
            GPU: row.whole("gpu", most=MAX_GPUS),
            PODS: NO_LIMIT_PODS,
        }
        labels = ((HOSTNAME, name), (GPU_PRODUCT, model)) if model else ((HOSTNAME, name),)
        nodes[name] = Node(name, _resources(amounts), labels)
    return tuple(nodes.values())


def read_pods(path: Path | Traversable) -> tuple[SimJob, ...]:
    """The pods of the list, each as one job. Raises TraceError."""
    jobs: dict[str, SimJob] = {}
    for row in read_rows(path, _POD_COLUMNS):
        name = row.text("name")
        if name in jobs:
            raise row.error("name", f"{name!r} is there twice: pod names must differ")
        at_ms, duration_ms = _times(row)
        pod = Pod(name, NAMESPACE, name, _request_of(row), created_ms=at_ms)
        jobs[name] = SimJob(at_ms, (pod,), duration_ms=duration_ms)
    return tuple(jobs.values())


def has_times(jobs: Iterable[SimJob]) -> bool:
    """Whether the list has arrival and run times. Without them all pods arrive at 0 and never end."""
    return any(job.at_ms or job.duration_ms is not None for job in jobs)


def unknown_models(nodes: Iterable[Node], jobs: Iterable[SimJob]) -> dict[str, int]:
    """The number of pods by each GPU model that they select and no node has."""
    known = {value for node in nodes for key, value in node.labels if key == GPU_PRODUCT}
    named = Counter(model for job in jobs for pod in job.pods for model in _models(pod.request))
    return {model: count for model, count in sorted(named.items()) if model not in known}


def _models(request: Request) -> set[str]:
    terms = request.node_terms or ()
    return {value for term in terms for need in term.expressions if need.key == GPU_PRODUCT for value in need.values}


def _times(row: TraceRow) -> tuple[int, int | None]:
    """(arrival, duration) in milliseconds; the duration is None if unknown."""
    there = [column for column in _TIMES if column in row.values]
    if not there:
        return 0, None
    if len(there) < len(_TIMES):
        raise row.error("", f"has the column {' and '.join(there)}; needed together: {', '.join(_TIMES)}")
    at_ms = row.milliseconds("creation_time")
    end_ms, start_ms = (row.milliseconds(time) if row.values[time] else None for time in _TIMES[1:])
    if end_ms is None or start_ms is None:
        return at_ms, None
    if end_ms < start_ms:
        raise row.error("deletion_time", f"{row.values['deletion_time']!r} is before scheduled_time")
    return at_ms, end_ms - start_ms


def _request_of(row: TraceRow) -> Request:
    gpus = row.whole("num_gpu", most=MAX_GPUS)
    milli = row.whole("gpu_milli")
    least, most = _MILLI.get(gpus, (WHOLE_GPU_MILLI, WHOLE_GPU_MILLI))
    if not least <= milli <= most:
        rule = f"must be 0 without a GPU, 1 to {WHOLE_GPU_MILLI} of one, {WHOLE_GPU_MILLI} of each of several"
        raise row.error("gpu_milli", f"'{milli}' with {gpus} in num_gpu: {rule}")
    shared = 0 < milli < WHOLE_GPU_MILLI
    return _request(
        row.whole("cpu_milli"),
        row.whole("memory_mib", most=_MOST_MIB) * _MIB,
        0 if shared else gpus,
        milli if shared else 0,
        _alternatives(row),
    )


def _alternatives(row: TraceRow) -> tuple[str, ...]:
    """The accepted models, without duplicates: the published lists repeat some."""
    spec = row.values.get("gpu_spec", "")
    if not spec:
        return ()
    models = {model.strip() for model in spec.split("|")}
    if "" in models:
        raise row.error("gpu_spec", f"{spec!r} has an empty model; write A|B, or nothing for any model")
    return tuple(sorted(models))


@lru_cache(maxsize=65536)
def _request(cpu_milli: int, memory_bytes: int, gpus: int, gpu_milli: int, models: tuple[str, ...]) -> Request:
    """The request of a pod, cached: equal pods share one object."""
    terms = (NodeTerm((Requirement(GPU_PRODUCT, "In", models),)),) if models else None
    return Request(_resources({CPU: cpu_milli, MEMORY: memory_bytes, GPU: gpus}), gpu_milli, node_terms=terms)


def _resources(amounts: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
