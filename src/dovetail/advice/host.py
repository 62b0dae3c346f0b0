# SPDX-License-Identifier: Apache-2.0
"""The memory of its host that a job needs on each node, as containers count it: /dev/shm is a part of it.

Sources
- Loading: a process reads a file of weights at a time, of up to 5 GB (`max_shard_size` of Transformers), and copies it
  to its GPU. In training each process loads all that it trains before it is divided (`from_pretrained`), but with
  ZeRO-3, which divides at once (`zero.Init`), and FSDP, where the first of a node loads
  (`fsdp_cpu_ram_efficient_loading` of Accelerate). Pages of files that are only cached are not counted: the kernel
  frees them.
- Offloaded optimizer: ZeRO-Offload (Ren et al. 2021, section 3): states, master weights and gradients, 16 bytes per
  parameter with Adam; with DeepSpeed's factor of 1.5 for its pinned buffers (`estimate_zero2_model_states_mem_needs`).
- /dev/shm: 2 GiB in vLLM's guide to Kubernetes; 1 GiB in NCCL's, section on shared memory. A container has 64 MiB.
- A process of PyTorch with CUDA: 2 GiB, an assumption."""

from __future__ import annotations

from msgspec import Struct

from dovetail.advice.architecture import Architecture
from dovetail.advice.formats import MIB, OPTIMIZERS, PRECISIONS
from dovetail.advice.layout import ModelParts, ParallelLayout
from dovetail.advice.serving import Serving
from dovetail.advice.training import Training

_GIB = 1024 * MIB
_SHARD, _PROCESS = 5 * 10**9, 2 * _GIB
_SHM_SERVING, _SHM_TRAINING = 2 * _GIB, _GIB
_GRADIENT = 4
"""Bytes of a gradient that the CPU adds to the weights."""


class HostNeed(Struct, frozen=True):
    """Bytes on each node. `loading` is the peak while weights are loaded, `optimizer` what is offloaded, `pinned` its
    buffers, `shared_memory` the size of /dev/shm, 0 if that of a container is enough."""

    loading: int
    optimizer: int = 0
    pinned: int = 0
    shared_memory: int = 0
    processes: int = 0

    @property
    def total(self) -> int:
        """The peak: what loading takes is free when the optimizer is made."""
        return max(self.loading, self.optimizer + self.pinned) + self.shared_memory + self.processes


def serving_need(weight_bytes: int, ranks: int) -> HostNeed:
    """The need of a server of these weights, with a process for each of the GPUs of one host."""
    return HostNeed(ranks * min(_SHARD, weight_bytes), 0, 0, _SHM_SERVING if ranks > 1 else 0, ranks * _PROCESS)


def host_need(
    model: Architecture, plan: Training | Serving, layout: ParallelLayout, parts: ModelParts, gpus_per_node: int
) -> HostNeed:
    """The need of the fullest node. `parts` are those of a GPU."""
    ranks = min(layout.gpus, gpus_per_node)
    divided = layout.tp * layout.pp
    if isinstance(plan, Serving):
        return serving_need(parts.weights * divided, ranks)
    whole = model.parameters * 2
    loading = whole if plan.fsdp else ranks * (min(_SHARD, whole) if plan.level > 2 else -(-whole // divided))
    offloaded = 0
    if plan.offload:
        trained = plan.trainable(model)
        states = OPTIMIZERS[plan.optimizer].bytes_of(trained, PRECISIONS[plan.precision]) + trained * _GRADIENT
        offloaded = -(-states * ranks // layout.gpus)
    shared = _SHM_TRAINING if ranks > 1 else 0
    return HostNeed(loading, offloaded, -(-offloaded // 2), shared, ranks * _PROCESS)
