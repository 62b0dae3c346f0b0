# SPDX-License-Identifier: Apache-2.0
"""The work that a model is: operations and bytes of its weights and of its KV cache, for each token and each step.

Sources: operations of a decoder by parameters: Kaplan et al. (2020), section 2.1; of attention with grouped queries:
Ainslie et al. (2023). Latent attention, decoding with absorbed matrices: DeepSeek-V2 (2024), section 2.1.2.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.advice.architecture import Architecture, Layer, distinct
from dovetail.advice.formats import CACHE_BYTES, FORMATS, bytes_of

ADAPTED = ("attention", "mlp")
"""The kinds of matrices that get an adapter; experts get none."""
_BYTES_16_BIT = 2


class LayerWork(Struct, frozen=True):
    """The work of `count` equal layers, each: parameters and bytes that every token uses (`dense`), those of all
    experts, the experts and those for a token, and the attention: operations for each token of context in a prefill and
    in decoding, bytes cached by a token, the ranks that can divide them, and the window (0: full context)."""

    count: int
    dense: int
    dense_bytes: int
    expert: int
    expert_bytes: int
    experts: int
    per_token: int
    prefill_ops: int
    decode_ops: int
    cached_bytes: int
    cache_parts: int
    window: int

    def seen(self, context: float) -> float:
        """Tokens of a context that the attention reads."""
        return min(context, self.window) if self.window else context


class ModelWork(Struct, frozen=True):
    """The work of a model with weights and cache in some formats. `head` are the parameters of the output matrix, which
    is in 16 bits; `held_bytes` of embedding and head. `adapters` LoRA adapters are held, of `adapter`
    parameters each."""

    hidden: int
    number: int
    layers: tuple[LayerWork, ...]
    head: int
    held_bytes: int
    adapters: int = 0
    adapter: int = 0

    @property
    def has_experts(self) -> bool:
        return any(layer.experts for layer in self.layers)

    @property
    def expert_layers(self) -> int:
        return sum(layer.count for layer in self.layers if layer.experts)

    def cached(self, context: float, tp: int) -> float:
        """Bytes that a sequence of this context caches on one of `tp` ranks."""
        return sum(
            layer.count * layer.seen(context) * layer.cached_bytes / min(tp, layer.cache_parts) for layer in self.layers
        )

    def weight_bytes(self, tp: int, dp: int) -> float:
        """Bytes of the weights on one GPU, of all stages together. Each rank is taken to hold all of an adapter."""
        inside = sum(layer.count * (layer.dense_bytes / tp + layer.expert_bytes / (tp * dp)) for layer in self.layers)
        return inside + self.held_bytes / tp + self.adapters * self.adapter * _BYTES_16_BIT

    @property
    def loaded_bytes(self) -> float:
        """Bytes of the weights of one copy."""
        return self.weight_bytes(1, 1)


def work_of(model: Architecture, weights: str, cache: str, adapters: int = 0, rank: int = 16) -> ModelWork:
    """The work of a model. `weights` is a key of FORMATS, or the format of its checkpoint; `cache` one of
    CACHE_BYTES. LoRA adapters of this rank (Hu et al. 2021) are on the matrices of ADAPTED kinds."""
    layers = tuple(_layer(model, layer, count, weights, cache) for layer, count in distinct(model.layers))
    head = model.vocab * model.embedded
    held = (model.embedding + model.head) * _BYTES_16_BIT
    return ModelWork(model.hidden, len(model.layers), layers, head, held, adapters, _adapter(model, rank))


def _adapter(model: Architecture, rank: int) -> int:
    """Parameters of an adapter."""
    return sum(
        count * sum(rank * (m.inputs + m.outputs) * m.copies for m in layer.matrices if m.kind in ADAPTED)
        for layer, count in distinct(model.layers)
    )


def _layer(model: Architecture, layer: Layer, count: int, weights: str, cache: str) -> LayerWork:
    stored = layer.stored if weights == model.weights and model.head_stored else ()
    dense = dense_bytes = expert = expert_bytes = 0
    for index, matrix in enumerate(layer.matrices):
        if stored:
            size = bytes_of(matrix.parameters, stored[index])
        elif matrix.kind in FORMATS[weights].kinds:
            size = FORMATS[weights].bytes_of(matrix.parameters)
        else:
            size = matrix.parameters * _BYTES_16_BIT
        if matrix.kind == "expert":
            expert += matrix.parameters
            expert_bytes += size
        else:
            dense += matrix.parameters
            dense_bytes += size
    a = layer.attention
    prefill = 2 * a.heads * (a.qk_dim + a.v_dim)
    decode = 2 * a.heads * (2 * a.kv_rank + a.rope_dim) if a.kv_rank else prefill
    return LayerWork(
        count, dense, dense_bytes, expert, expert_bytes, layer.mlp.experts, layer.mlp.per_token, prefill, decode,
        a.cached * CACHE_BYTES[cache], a.cache_parts, a.window,
    )  # fmt: skip
