# SPDX-License-Identifier: Apache-2.0
"""The room for the KV cache in an instance, and so the sequences that it can hold.

Rule (the memory of vLLM and TensorRT-LLM): an engine takes a part of each GPU's memory; what weights and working memory
leave of it is for the cache.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.advice.formats import MIB
from dovetail.advice.gpus import GpuProduct
from dovetail.advice.serve.engines import Engine
from dovetail.advice.serve.roofline import InstanceLayout, Lengths
from dovetail.advice.serve.work import ModelWork

WORKING_BYTES = 2_000_000_000
"""CUDA, graphs and activations of a step on each GPU."""


class CacheRoom(Struct, frozen=True):
    """Room on the fullest GPU in bytes, negative if the weights do not fit; sequences and tokens of an instance."""

    bytes_per_gpu: int
    sequences: int
    tokens: int


def cache_room(
    work: ModelWork, layout: InstanceLayout, gpu: GpuProduct, engine: Engine, lengths: Lengths, longest: int
) -> CacheRoom:
    """The room for requests of these lengths. `longest` is the context that one sequence can reach: with less room
    than for one such sequence, none is held."""
    # A stage has one layer more than others where their number does not divide.
    stage = -(-work.number // layout.pp) / work.number
    weights = work.weight_bytes(layout.tp, layout.dp) * (stage if layout.pp > 1 else 1)
    free = gpu.memory_mib * MIB * engine.memory_percent / 100 - weights - WORKING_BYTES
    context = lengths.input + lengths.output if engine.reserves else lengths.context
    each = work.cached(context, layout.tp) * stage
    if free < work.cached(longest, layout.tp) * stage:
        return CacheRoom(int(free), 0, 0)
    held = layout.dp * free / each
    most = engine.sequences * layout.dp * layout.pp
    return CacheRoom(int(free), int(min(held, most)), int(held * context))
