# SPDX-License-Identifier: Apache-2.0
"""The memory of numbers by format, and of optimizer states.

Sizes are bits per block of 16,384 numbers, so that the overhead of scales is an integer:
- INT4 (GPTQ, AWQ): a scale of 16 bits and a zero point of 4 bits per 128 numbers.
- NF4 with double quantisation (Dettmers et al. 2023, QLoRA, section 3): 8 bits per 64 numbers, 32 bits per 16,384.
- MXFP4 (OCP Microscaling Formats 1.0): a scale of 8 bits per 32 numbers.
- NVFP4 (NVIDIA, documentation of cuDNN's block scaling): a scale of 8 bits per 16 numbers.
- FP8 (DeepSeek-V3 2024, section 3.3): a scale of 32 bits per 128 x 128 numbers.

These are the usual formats, for --weights. What a checkpoint states of itself is read by `advice.quantization`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MIB = 1 << 20
BLOCK = 16_384


def bytes_of(numbers: int, block_bits: int) -> int:
    """Bytes of so many numbers, of which 16,384 have `block_bits`."""
    return -(-numbers * block_bits // (BLOCK * 8))


class WeightFormat(NamedTuple):
    """`block_bits` is the size of 16,384 numbers in bits. `kinds` are the matrices in this format; the rest of the
    model has 16 bits."""

    block_bits: int
    kinds: frozenset[str]

    def bytes_of(self, numbers: int) -> int:
        return bytes_of(numbers, self.block_bits)


_LINEAR = frozenset({"attention", "mlp", "expert"})
_EVERYTHING = _LINEAR | {"router", "rest"}
FORMATS: Mapping[str, WeightFormat] = {
    "fp32": WeightFormat(32 * BLOCK, _EVERYTHING),
    "fp16": WeightFormat(16 * BLOCK, _EVERYTHING),
    "bf16": WeightFormat(16 * BLOCK, _EVERYTHING),
    "fp8": WeightFormat(8 * BLOCK + 32, _LINEAR),
    "int8": WeightFormat(8 * BLOCK + 16 * 128, _LINEAR),
    "int4": WeightFormat(4 * BLOCK + (16 + 4) * 128, _LINEAR),
    "nf4": WeightFormat(4 * BLOCK + 8 * 256 + 32, _LINEAR),
    "nvfp4": WeightFormat(4 * BLOCK + 8 * 1024, _LINEAR),
    "mxfp4": WeightFormat(4 * BLOCK + 8 * 512, frozenset({"expert"})),
}
"""In quantised formats, embeddings, head, router, norms and biases keep 16 bits. INT8 has a scale per 128 numbers."""
CACHE_BYTES: Mapping[str, int] = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
"""Bytes of a number in the KV cache."""


class Precision(NamedTuple):
    """Bytes per parameter and per activation. `master` is the copy of the weights that the optimizer updates."""

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
"""Mixed precision as in Micikevicius et al. (2018), counted as in Rajbhandari et al. (2020, ZeRO, section 3.1): with
Adam, 16 bytes per parameter."""


class Optimizer(NamedTuple):
    """`states` is the number of values per parameter. `block_bits` is the size of 2,048 quantised values with their
    scale in bits; 0: not quantised."""

    states: int
    block_bits: int = 0

    def bytes_of(self, parameters: int, precision: Precision) -> int:
        """Bytes of the optimizer states and the master copy."""
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
"""AdamW: mean and variance (Loshchilov and Hutter 2019); in 8 bits, block-wise (Dettmers et al. 2022). Lion: momentum
(Chen et al. 2023). SGD with momentum."""
