# SPDX-License-Identifier: Apache-2.0
"""The processes on GPUs, as the status of a GPUNode lists them: the MOST_PROCESSES with the most memory, by GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from dovetail.agent.exporter.processes import Foreign, OwnProcess
from dovetail.agent.machine.host import Host
from dovetail.kube.objects.topology import ForeignProcess, HolderProcess

MOST_PROCESSES = 64
_MIB = 1 << 20
_P = TypeVar("_P", Foreign, OwnProcess)
_S = TypeVar("_S", ForeignProcess, HolderProcess)


def holder_processes(host: Host, own: Iterable[OwnProcess]) -> tuple[HolderProcess, ...]:
    """Those on devices that their pods hold."""

    def shown(one: OwnProcess, gpu: int | None) -> HolderProcess:
        return HolderProcess(gpu, one.uuid, one.pid, one.namespace, one.pod, one.memory_bytes // _MIB)

    return _listed(host, own, shown)


def foreign_processes(host: Host, foreign: Iterable[Foreign]) -> tuple[ForeignProcess, ...]:
    """Those on devices that their pods do not hold."""

    def shown(one: Foreign, gpu: int | None) -> ForeignProcess:
        return ForeignProcess(gpu, one.uuid, one.pid, one.holder, one.namespace, one.pod, one.memory_bytes // _MIB)

    return _listed(host, foreign, shown)


def _listed(host: Host, processes: Iterable[_P], shown: Callable[[_P, int | None], _S]) -> tuple[_S, ...]:
    indices = _indices(host)
    most = sorted(processes, key=lambda one: (-one.memory_bytes, one.uuid, one.pid))[:MOST_PROCESSES]
    # Those of GPUs that are not known come last.
    most.sort(key=lambda one: (one.uuid not in indices, indices.get(one.uuid, 0), one.uuid, one.pid))
    return tuple([shown(one, indices.get(one.uuid)) for one in most])


def _indices(host: Host) -> dict[str, int]:
    """The index of the GPU by its uuid, and by those of its MIG instances."""
    return {uuid: gpu.index for gpu in host.gpus for uuid in (gpu.uuid, *(one.uuid for one in gpu.mig or ()))}
