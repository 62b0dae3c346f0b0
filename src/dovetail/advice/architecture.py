# SPDX-License-Identifier: Apache-2.0
"""The architecture of a decoder: its layers as matrices and vectors, with their numbers of parameters.

Rules
- A matrix is the weight of a linear layer. It can be quantised, divided among tensor-parallel ranks and adapted by
  LoRA.
- Vectors are norms, biases and other small parameters. Every rank holds all of them, unquantised.
- Parameters are counted, not estimated: they equal those of the published checkpoint, without vision or audio towers
  and without layers for multi-token prediction.

Sources: the models' own code in Hugging Face Transformers; for multi-head latent attention DeepSeek-V2 (2024), section
2.1; for grouped queries Ainslie et al. (2023).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct


class Matrix(NamedTuple):
    """`copies` matrices of one shape, one for each expert. `parts` is the largest number of parts into which each can
    be divided. `kind` is attention, mlp, expert or router; `name` is its role in the layer, such as q or shared.up."""

    kind: str
    name: str
    inputs: int
    outputs: int
    parts: int
    copies: int = 1

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs * self.copies

    def on_rank(self, tp: int) -> int:
        """Parameters on one of `tp` tensor-parallel ranks. With more ranks than `parts`, the parts are replicated."""
        return -(-self.parameters // min(tp, self.parts))


class Attention(Struct, frozen=True):
    """The attention of a layer. `qk_dim` and `v_dim` are the dimensions per head of queries and keys, and of values.

    With `kv_rank` it is multi-head latent attention: the cache has a latent vector and `rope_dim` of the key. `q_rank`
    0: queries are not compressed. `window` 0: full context. `vectors` are the parameters of biases, norms of queries
    and keys, and sinks."""

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    window: int = 0
    vectors: int = 0

    @property
    def cached(self) -> int:
        """Numbers in the KV cache for each token."""
        return self.kv_rank + self.rope_dim if self.kv_rank else self.kv_heads * (self.qk_dim + self.v_dim)

    @property
    def cache_parts(self) -> int:
        """The largest number of tensor-parallel ranks that divide the cache. A latent vector is whole on each rank."""
        return 1 if self.kv_rank else self.kv_heads

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        queries, outputs = self.heads * self.qk_dim, self.heads * self.v_dim
        if self.q_rank:
            yield Matrix("attention", "q_a", hidden, self.q_rank, 1)
            yield Matrix("attention", "q_b", self.q_rank, queries, self.heads)
        else:
            yield Matrix("attention", "q", hidden, queries, self.heads)
        if self.kv_rank:
            yield Matrix("attention", "kv_a", hidden, self.kv_rank + self.rope_dim, 1)
            nope = self.qk_dim - self.rope_dim
            yield Matrix("attention", "kv_b", self.kv_rank, self.heads * (nope + self.v_dim), self.heads)
        else:
            yield Matrix("attention", "k", hidden, self.kv_heads * self.qk_dim, self.kv_heads)
            yield Matrix("attention", "v", hidden, self.kv_heads * self.v_dim, self.kv_heads)
        yield Matrix("attention", "o", outputs, hidden, self.heads)


class Mlp(Struct, frozen=True):
    """The MLP of a layer. `width` is that of the dense part or the shared experts, 0 without them. Each of `experts`
    experts has `expert_width`, and a token goes to `per_token` of them. `vectors` are the parameters of all biases."""

    width: int
    gated: bool = True
    experts: int = 0
    per_token: int = 0
    expert_width: int = 0
    vectors: int = 0

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        ups = ("gate", "up") if self.gated else ("up",)
        if self.width:
            dense = "shared." if self.experts else ""
            for up in ups:
                yield Matrix("mlp", dense + up, hidden, self.width, self.width)
            yield Matrix("mlp", f"{dense}down", self.width, hidden, self.width)
        if self.experts:
            yield Matrix("router", "router", hidden, self.experts, 1)
            for up in ups:
                yield Matrix("expert", f"expert.{up}", hidden, self.expert_width, self.expert_width, self.experts)
            yield Matrix("expert", "expert.down", self.expert_width, hidden, self.expert_width, self.experts)


class Layer(Struct, frozen=True, dict=True):
    """`norms` is the number of norms, `norm_vectors` the parameters of each in units of the hidden size. `stored` are
    the bits of 16,384 numbers of each of `matrices` in a quantised checkpoint; empty if it is not quantised."""

    hidden: int
    attention: Attention
    mlp: Mlp
    norms: int
    norm_vectors: int
    stored: tuple[int, ...] = ()

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        return (*self.attention.matrices(self.hidden), *self.mlp.matrices(self.hidden))

    @cached_property
    def vectors(self) -> int:
        return self.attention.vectors + self.mlp.vectors + self.norms * self.norm_vectors * self.hidden

    @cached_property
    def parameters(self) -> int:
        return self.vectors + sum(matrix.parameters for matrix in self.matrices)

    @cached_property
    def active(self) -> int:
        """Parameters that are used for a token."""
        idle = sum(
            m.parameters // m.copies * (m.copies - self.mlp.per_token) for m in self.matrices if m.kind == "expert"
        )
        return self.parameters - idle

    def on_rank(self, tp: int) -> int:
        return self.vectors + sum(matrix.on_rank(tp) for matrix in self.matrices)


class Architecture(Struct, frozen=True, dict=True):
    """A decoder.

    `tied`: the head uses the matrix of the embedding. `embedded` is the size of an embedding; if it differs from the
    hidden size, projections lead in and out. `position_rows` is the number of learned positions. `vectors` are those
    outside of layers. `max_context` 0: not in the configuration. `dropout`: training keeps masks. `weights` is the
    format of the published checkpoint, `head_stored` as `stored` of a layer; `notes` list the assumptions."""

    family: str
    hidden: int
    vocab: int
    tied: bool
    layers: tuple[Layer, ...]
    embedded: int
    position_rows: int
    vectors: int
    max_context: int
    dropout: bool
    weights: str
    notes: tuple[str, ...] = ()
    head_stored: int = 0

    @cached_property
    def embedding(self) -> int:
        """Parameters before the first layer."""
        lead = self.embedded * self.hidden * (self.embedded != self.hidden)
        return self.vocab * self.embedded + self.position_rows * self.hidden + lead

    @cached_property
    def head(self) -> int:
        """Parameters of the matrices after the last layer, without a tied embedding."""
        lead = self.embedded * self.hidden * (self.embedded != self.hidden)
        return (0 if self.tied else self.vocab * self.embedded) + lead

    @cached_property
    def parameters(self) -> int:
        return self.embedding + self.head + self.vectors + sum(layer.parameters for layer in self.layers)

    @cached_property
    def active(self) -> int:
        """Parameters that are used for a token."""
        return self.embedding + self.head + self.vectors + sum(layer.active for layer in self.layers)

    @property
    def heads(self) -> int:
        return self.layers[0].attention.heads

    def by_kind(self) -> dict[str, int]:
        """Parameters by kind, without the kinds that the model does not have."""
        found = {"embedding": self.embedding, "attention": 0, "mlp": 0, "expert": 0, "router": 0, "head": self.head}
        for layer in self.layers:
            for matrix in layer.matrices:
                found[matrix.kind] += matrix.parameters
        found["vectors"] = self.vectors + sum(layer.vectors for layer in self.layers)
        return {kind: parameters for kind, parameters in found.items() if parameters}


def distinct(layers: tuple[Layer, ...]) -> list[tuple[Layer, int]]:
    """The distinct layers and their counts. Equal layers of an architecture are one object."""
    found = Counter(map(id, layers))
    kinds = {id(layer): layer for layer in layers}
    return [(kinds[key], number) for key, number in found.items()]
