# SPDX-License-Identifier: Apache-2.0
"""The division of a model among GPUs, the parts of the memory of one GPU, and the layouts that are impossible.

Sizes are those of the fullest GPU: with pipeline parallelism usually one of the first or of the last stage. The
tensor-parallel ranks of a stage have equal parts, rounded up.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from dovetail.advice.architecture import Architecture, Layer, distinct
from dovetail.advice.formats import MIB

NCCL_CHANNELS, NCCL_BUFFER = 32, 4 * MIB
_NEAR = 65


class PlanError(ValueError):
    """Options that contradict each other or the model."""


class ParallelLayout(Struct, frozen=True):
    """The numbers of tensor-parallel ranks, pipeline stages and data-parallel replicas."""

    tp: int = 1
    pp: int = 1
    dp: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def communicators(self) -> int:
        return sum(ranks > 1 for ranks in (self.tp, self.pp, self.dp))


class ModelParts(Struct, frozen=True):
    """The parts of the memory of one GPU, in bytes."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    kv_cache: int = 0
    collectives: int = 0
    runtime: int = 0

    @property
    def total(self) -> int:
        # `msgspec.structs.fields` would evaluate the annotations each time, thousands of times for an answer.
        return sum(getattr(self, name) for name in self.__struct_fields__)


class Stage(Struct, frozen=True):
    """The layers of a pipeline stage. The first stage has the embedding, the last has the head; a tied head is a copy
    of the embedding if the stages differ."""

    model: Architecture
    layers: tuple[Layer, ...]
    index: int
    of: int

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.of - 1

    def rest(self, tp: int) -> int:
        """Parameters outside the layers, on one tensor-parallel rank."""
        model = self.model
        embedding = -(-model.embedding // tp) if self.first else 0
        tied = model.vocab * model.embedded if model.tied and not self.first else 0
        return embedding + (-(-(model.head + tied) // tp) + model.vectors if self.last else 0)

    def parameters(self, tp: int) -> int:
        return self.rest(tp) + sum(layer.on_rank(tp) * number for layer, number in distinct(self.layers))


def stages(model: Architecture, pp: int) -> Iterator[Stage]:
    """The stages in order, with the layers divided as evenly as possible; earlier stages have one more."""
    each, more = divmod(len(model.layers), pp)
    start = 0
    for index in range(pp):
        end = start + each + (index < more)
        yield Stage(model, model.layers[start:end], index, pp)
        start = end


def check(model: Architecture, layout: ParallelLayout) -> None:
    """Raises PlanError if the layout cannot divide the model."""
    if layout.pp > len(model.layers):
        raise PlanError(f"{layout.pp} pipeline stages need as many layers, and the model has {len(model.layers)}")
    for layer, _ in distinct(model.layers):
        attention = layer.attention
        divided = {"attention heads": attention.heads, "columns of the MLP": layer.mlp.width or layout.tp}
        if layer.mlp.experts:
            divided["columns of an expert"] = layer.mlp.expert_width
        for what, number in divided.items():
            if number % layout.tp:
                near = ", ".join(str(tp) for tp in range(1, _NEAR) if attention.heads % tp == 0)
                raise PlanError(
                    f"{layout.tp} tensor-parallel ranks do not divide the {number} {what}; heads allow {near}"
                )
        if not attention.kv_rank and attention.kv_heads % layout.tp and layout.tp % attention.kv_heads:
            raise PlanError(
                f"{layout.tp} tensor-parallel ranks and {attention.kv_heads} key-value heads: "
                "one has to divide the other"
            )


def nccl_bytes(layout: ParallelLayout) -> int:
    """Bytes of NCCL's buffers: for each communicator 32 channels x 4 MiB (the default of NCCL_BUFFSIZE), to send and to
    receive. An upper bound: small communicators open fewer channels."""
    return layout.communicators * NCCL_CHANNELS * NCCL_BUFFER * 2
