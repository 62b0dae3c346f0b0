# SPDX-License-Identifier: Apache-2.0
"""The memory of each GPU that serves a decoder.

Sources: the KV cache: Pope et al. (2022); with fewer heads: Shazeer (2019, multi-query) and Ainslie et al. (2023,
grouped-query); with a latent vector: DeepSeek-V2 (2024), section 2.1. A layer with a window caches no more than its
window (Mistral 7B, Jiang et al. 2023). Cache blocks as in vLLM (Kwon et al. 2023). No formula is published for the
working memory of a prefill: here it is an upper bound of the tensors that one layer holds at the same time.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from dovetail.advice.architecture import Architecture, Layer, distinct
from dovetail.advice.formats import CACHE_BYTES, FORMATS, bytes_of
from dovetail.advice.layout import ModelParts, ParallelLayout, PlanError, Stage, check, nccl_bytes, stages

_CACHE_BLOCK = 16
"""Tokens per block of the cache: the default of vLLM."""


class Serving(Struct, frozen=True, tag_field="workload", tag="serving"):
    """`batch` concurrent sequences, each of up to `context` tokens of prompt and output. A prefill step computes up to
    `prefill` tokens."""

    context: int
    batch: int = 1
    weights: str = "bf16"
    cache: str = "bf16"
    prefill: int = 8192

    sharded = False

    def sized(self, context: int, batch: int) -> Serving:
        return replace(self, context=context, batch=batch)

    def check(self, model: Architecture, layout: ParallelLayout) -> None:
        """Raises PlanError."""
        check(model, layout)
        if (
            self.weights == "mxfp4"
            and not self._as_stored(model)
            and not any(layer.mlp.experts for layer in model.layers)
        ):
            raise PlanError("mxfp4 is a format of experts, and the model has none")
        if model.position_rows and self.context > model.max_context:
            raise PlanError(f"{self.context} tokens: the model has learned positions for {model.max_context}")

    def parts(self, model: Architecture, layout: ParallelLayout, runtime: int) -> ModelParts:
        """The parts of the memory of the fullest GPU."""
        return max((self._stage(stage, layout, runtime) for stage in stages(model, layout.pp)), key=lambda p: p.total)

    def _stage(self, stage: Stage, layout: ParallelLayout, runtime: int) -> ModelParts:
        return ModelParts(
            weights=self._weights(stage, layout.tp),
            activations=self._working(stage, layout.tp),
            kv_cache=sum(number * self.cached_bytes(layer, layout.tp) for layer, number in distinct(stage.layers)),
            collectives=nccl_bytes(layout),
            runtime=runtime,
        )

    def _weights(self, stage: Stage, tp: int) -> int:
        if self._as_stored(stage.model):
            return _stored_bytes(stage, tp)
        form = FORMATS[self.weights]
        inside = sum(
            sum(matrix.on_rank(tp) for matrix in layer.matrices if matrix.kind in form.kinds) * number
            for layer, number in distinct(stage.layers)
        )
        outside = stage.parameters(tp) - inside
        return form.bytes_of(inside) + (form.bytes_of(outside) if "rest" in form.kinds else outside * 2)

    def _as_stored(self, model: Architecture) -> bool:
        """Whether the weights are as in a quantised checkpoint."""
        return self.weights == model.weights and model.head_stored > 0

    def cached_bytes(self, layer: Layer, tp: int) -> int:
        """Bytes that one layer caches for all sequences."""
        a = layer.attention
        tokens = -(-min(self.context, a.window or self.context) // _CACHE_BLOCK) * _CACHE_BLOCK
        return tokens * self.batch * -(-a.cached // min(tp, a.cache_parts)) * CACHE_BYTES[self.cache]

    def _working(self, stage: Stage, tp: int) -> int:
        """Bytes of the input, the output and the widest intermediate tensors of a layer, in 16 bits, for the tokens of
        a prefill; in the last stage also the logits of all sequences, in 16 and in 32 bits."""
        tokens = min(self.prefill, self.context * self.batch)
        widest = 0
        for layer, _ in distinct(stage.layers):
            a, mlp, hidden = layer.attention, layer.mlp, layer.hidden
            attention = a.heads * (a.qk_dim + a.v_dim) + a.kv_heads * (a.qk_dim + a.v_dim)
            inside = (3 if mlp.gated else 2) * (mlp.width + mlp.per_token * mlp.expert_width)
            routed = 2 * mlp.per_token * hidden
            widest = max(widest, -(-attention // tp) + a.q_rank + a.kv_rank + a.rope_dim, -(-inside // tp) + routed)
        logits = self.batch * stage.model.vocab * 6 if stage.last else 0
        return tokens * (3 * stage.model.hidden + widest) * 2 + logits


def _stored_bytes(stage: Stage, tp: int) -> int:
    """Bytes of the weights of a quantised checkpoint on one tensor-parallel rank. What is no matrix of a layer has 16
    bits, but for the head."""
    total, counted = 0, 0
    for layer, number in distinct(stage.layers):
        for matrix, block_bits in zip(layer.matrices, layer.stored, strict=True):
            numbers = matrix.on_rank(tp)
            total += bytes_of(numbers, block_bits) * number
            counted += numbers * number
    if stage.last:
        head = -(-stage.model.head // tp)
        total += bytes_of(head, stage.model.head_stored)
        counted += head
    return total + (stage.parameters(tp) - counted) * 2
