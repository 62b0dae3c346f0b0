# SPDX-License-Identifier: Apache-2.0
"""Rules about limits of host memory that were meant as GPU memory.

A limit of 80Gi for a GPU of 80 GB is often right. It is reported if it equals the memory of one GPU and the container
has eight or more, or if it equals the memory of the GPUs and is unusual for host memory: 64 or more, and no multiple of
4 or 5, such as the 141 of an H200.

A limit of less than 1 GiB for each of several GPUs of a framework is reported, too: each GPU has a process, and a CUDA
context with its libraries takes more than that. The worker of an MPIJob without a command runs what the launcher starts
there, such as nccl-tests, which need less. Where the command names a known model, the limit must hold what
`advice.host` counts for the processes and /dev/shm, and one file of weights: the kernel may free those that others have
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dovetail.advice.gpus import named
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, amount, count, runs_framework, words_of
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.selection import may_run
from dovetail.advice.lint.served import ServedModel, served
from dovetail.core.model import GPU
from dovetail.core.quantities import QuantityError, units

_PRODUCT, _MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
_MIB = re.compile(r"[0-9]{1,9}")
_MANY_GPUS, _LARGE_GB = 8, 64
_LEAST_GIB = 1
_STARTED_FROM_OUTSIDE = frozenset({("kubeflow.org", "MPIJob")})
"""Kinds whose workers only wait for a program that another pod starts."""
_UNMISTAKABLE_MIB = 143_771
"""The memory of an H200, which is checked if the manifest selects no GPU model."""


def _gpu_memory(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    for container in pod.containers:
        limit = container.at("resources", "limits", "memory")
        bytes_ = amount(limit)
        if not bytes_:
            continue
        gpus = count(container.at("resources", "limits", GPU)) or 0
        least_gib = gpus * _LEAST_GIB
        if gpus > 1 and bytes_ < least_gib * 2**30 and _runs(pod, container):
            message = (
                f"{limit.value} for the processes of {gpus} GPUs: each takes more than {_LEAST_GIB} GiB of host memory "
                f"for CUDA and the framework alone: write {least_gib}Gi at least"
            )
            yield RuleMatch(limit, message)
            continue
        model = served(pod, container)
        least, right = _to_load(model, gpus) if model is not None else (0, 0)
        if model is not None and bytes_ < least:
            message = (
                f"{limit.value} of host memory, and to load {model.name} on {gpus} {'GPUs' if gpus > 1 else 'GPU'} "
                f"takes {_gib(least)}Gi at least: write {_gib(right)}Gi"
            )
            yield RuleMatch(limit, message)
            continue
        size = _size(limit) if gpus > 0 else 0
        if size < _LARGE_GB:
            continue
        memory_mib = selected_mib(pod, facts)
        for gb in _written_as(memory_mib or _UNMISTAKABLE_MIB):
            odd = gb >= _LARGE_GB and gb % 4 != 0 and gb % 5 != 0
            if (odd and size in (gb, gb * gpus)) or (size == gb >= _LARGE_GB and gpus >= _MANY_GPUS and memory_mib):
                whose = "one of its GPUs" if size == gb else f"its {gpus} GPUs"
                message = (
                    f"{limit.value} is the memory of {whose}, and the limit is for host memory: write what the "
                    "program needs of that; GPU memory has no limit"
                )
                yield RuleMatch(limit, message)
                break


def _runs(pod: Template, container: Field) -> bool:
    """Whether the container itself runs a framework, and not what another pod starts in it."""
    return runs_framework(container) and bool(pod.group_kind not in _STARTED_FROM_OUTSIDE or words_of(container))


def _to_load(model: ServedModel, gpus: int) -> tuple[int, int]:
    """The bytes of host memory without which the server cannot load, and those that it needs at once."""
    # Imported here: most manifests serve no model.
    from dovetail.advice.host import serving_need

    one, each = (serving_need(model.weight_bytes, ranks) for ranks in (1, gpus))
    return one.loading + each.shared_memory + each.processes, each.total


def _gib(size: int) -> int:
    return -(-size // 2**30)


def _size(limit: Field) -> int:
    """The limit in Gi or G, from any unit; 0 if it is not a whole number of either."""
    try:
        size = units(str(limit.value)) if limit else 0
    except QuantityError:
        return 0
    return next((size // unit for unit in (2**30, 10**9) if size % unit == 0), 0)


def _written_as(memory_mib: int) -> tuple[int, ...]:
    """The nominal sizes of a GPU in GB: 80 for an H100 of 81559 MiB, 48 for an L40S of 46068 MiB."""
    return tuple(dict.fromkeys((-(-memory_mib // 1024), memory_mib * 2**20 // 10**9)))


def selected_mib(pod: Template, facts: Facts) -> int:
    """The memory of the GPUs that the nodeSelector selects, or of the GPUs of all nodes that may run the pod; 0 if it
    is unknown or differs."""
    selector = pod.spec.at("nodeSelector")
    memory = selector.at(_MEMORY).text
    if _MIB.fullmatch(memory):
        return int(memory)
    gpu = named(selector.at(_PRODUCT).text)
    if gpu is not None:
        return gpu.memory_mib
    found = {
        node.labels.get(_MEMORY, "") for node in facts.nodes or () if may_run(pod, node) and _PRODUCT in node.labels
    }
    (only,) = found if len(found) == 1 else ("",)
    return int(only) if _MIB.fullmatch(only) else 0


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  nodeSelector: {{nvidia.com/gpu.product: NVIDIA-H200}}
  containers:
  - name: train
    image: registry.example.com/train:1.4
    resources:
      limits: {{nvidia.com/gpu: 1, cpu: 16, memory: {0}}}
"""

RULES = (
    Rule(
        id="G28",
        level=Severity.WARNING,
        title="The memory limit is that of the GPU, or too small for the number of GPUs or the model",
        effect=(
            "The limit is for host memory: data loaders, pinned buffers, /dev/shm, checkpoints. If it is too low, the "
            "kernel kills the container: `OOMKilled`, exit code 137. It does not limit GPU memory."
        ),
        bad=_POD.format("141Gi"),
        good=_POD.format("192Gi"),
        template=_gpu_memory,
        source="https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#meaning-of-memory",
    ),
)  # fmt: skip
