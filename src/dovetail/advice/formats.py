# SPDX-License-Identifier: Apache-2.0
"""What numbers take in memory, by format, and what optimizers keep.

Sizes are bits of a block of 16,384 numbers, so that scales come out even: one of 16 bits and a zero of 4 for 128
numbers in INT4 (GPTQ, AWQ), one of 8 for 64 and one of 32 for 16,384 in NF4 with double quantisation (Dettmers et al.
2023, QLoRA, section 3), one of 8 for 32 in MXFP4 (OCP Microscaling Formats 1.0), one of 32 for 128 x 128 in FP8
(DeepSeek-V3 2024, section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MIB = 1 << 20
_BLOCK = 16_384


class WeightFormat(NamedTuple):
    """`block_bits` are those of 16,384 numbers. `kinds` are the matrices that are kept in it; the rest of the model has
    16 bits."""

    block_bits: int
    kinds: frozenset[str]

    def bytes_of(self, numbers: int) -> int:
        return -(-numbers * self.block_bits // (_BLOCK * 8))


_LINEAR = frozenset({"attention", "mlp", "expert"})
_EVERYTHING = _LINEAR | {"router", "rest"}
FORMATS: Mapping[str, WeightFormat] = {
    "fp32": WeightFormat(32 * _BLOCK, _EVERYTHING),
    "fp16": WeightFormat(16 * _BLOCK, _EVERYTHING),
    "bf16": WeightFormat(16 * _BLOCK, _EVERYTHING),
    "fp8": WeightFormat(8 * _BLOCK + 32, _LINEAR),
    "int8": WeightFormat(8 * _BLOCK + 16 * 128, _LINEAR),
    "int4": WeightFormat(4 * _BLOCK + (16 + 4) * 128, _LINEAR),
    "nf4": WeightFormat(4 * _BLOCK + 8 * 256 + 32, _LINEAR),
    "mxfp4": WeightFormat(4 * _BLOCK + 8 * 512, frozenset({"expert"})),
}
"""Where matrices are quantised, embeddings, head, router, norms and biases keep 16 bits. INT8 has a scale for 128."""
CACHE_BYTES: Mapping[str, int] = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
"""Bytes of a number in the KV cache."""


class Precision(NamedTuple):
    """Bytes of each parameter and of an activation. `master`: a copy that the optimizer changes."""

    weights: int
    gradients: int
    master: int
    state: int
    activations: int


PRECISIONS: Mapping[str, Precision] = {
    "mixed": Precision(2, 2, 4, 4, 2),
    "bf16": Precision(2, 2, 0, 2, 2),
    "fp32": Precision(4, 4, 0, 4, 4),
}
"""Mixed precision as in Micikevicius et al. (2018), and as Rajbhandari et al. (2020, ZeRO, section 3.1) count it: with
Adam 16 bytes for each parameter."""


class Optimizer(NamedTuple):
    """How many numbers it keeps for each parameter; `block_bits` where they are quantised (of 2,048, with a scale)."""

    states: int
    block_bits: int = 0

    def bytes_of(self, parameters: int, precision: Precision) -> int:
        """With the master copy."""
        if self.block_bits:
            states = -(-parameters * self.states * self.block_bits // (2048 * 8))
        else:
            states = parameters * self.states * precision.state
        return states + parameters * precision.master


OPTIMIZERS: Mapping[str, Optimizer] = {
    "adamw": Optimizer(2),
    "adamw-8bit": Optimizer(2, 8 * 2048 + 32),
    "lion": Optimizer(1),
    "sgd": Optimizer(1),
}
"""AdamW: mean and variance (Loshchilov and Hutter 2019); in 8 bits, block by block (Dettmers et al. 2022); Lion: a
momentum (Chen et al. 2023); SGD with momentum."""
