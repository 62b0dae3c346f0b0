# SPDX-License-Identifier: Apache-2.0
"""The bits in which a quantised checkpoint stores each matrix.

Rules: embeddings, norms, biases and the router keep 16 bits. A scale for a whole matrix is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from dovetail.advice.architecture import Matrix
from dovetail.advice.formats import BLOCK
from dovetail.advice.module_patterns import ModulePatterns

ROW, COLUMN = -1, -2
"""Groups as large as the row of an output, or as the column of an input."""
_MOST_MATCHES = 50_000
_UNQUANTISED = 16 * BLOCK


class QuantizationError(ValueError):
    """A quantization_config that cannot be read."""


class StoredFormat(NamedTuple):
    """Bits of a number, and for each group of so many numbers the bits of scales and zero points."""

    name: str
    bits: int
    beside: tuple[tuple[int, int], ...] = ()

    def block_bits(self, inputs: int, outputs: int) -> int:
        """Bits of 16,384 numbers of a matrix."""
        groups = {ROW: inputs, COLUMN: outputs}
        return self.bits * BLOCK + sum(-(-bits * BLOCK // groups.get(size, size)) for bits, size in self.beside)


class Quantization(Struct, frozen=True):
    """The format of each matrix: that of the first rule with a pattern that matches; 16 bits of what `kept` matches.
    The patterns of a rule are None for all linear layers."""

    rules: tuple[tuple[ModulePatterns | None, StoredFormat], ...]
    kept: ModulePatterns
    head: bool

    @property
    def name(self) -> str:
        """Its formats, such as `nvfp4` or `fp8+nvfp4`."""
        return "+".join(sorted({form.name for _, form in self.rules}))

    def check(self, layers: int) -> None:
        """Raises QuantizationError for patterns that would take too long to compare."""
        globs = self.kept.globs + sum(patterns.globs for patterns, _ in self.rules if patterns)
        if globs * layers > _MOST_MATCHES:
            raise QuantizationError(f"{globs} patterns with wildcards, for {layers} layers; more than can be compared")

    def of_layer(self, index: int, matrices: tuple[Matrix, ...]) -> tuple[int, ...]:
        """Bits of 16,384 numbers of each matrix of a layer."""
        return tuple(
            self._bits(
                [f"model.layers.{index}.{module}" for module in _MODULES.get(one.name, ())], one.inputs, one.outputs
            )
            for one in matrices
        )

    def of_head(self, hidden: int, vocab: int) -> int:
        """Bits of 16,384 numbers of the head."""
        return self._bits(["lm_head"], hidden, vocab) if self.head else _UNQUANTISED

    def _bits(self, modules: list[str], inputs: int, outputs: int) -> int:
        if any(map(self.kept.match, modules)):
            return _UNQUANTISED
        for patterns, form in self.rules:
            if modules and (patterns is None or any(map(patterns.match, modules))):
                return form.block_bits(inputs, outputs)
        return _UNQUANTISED


def _under(parents: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{parent}.{name}" for parent in parents.split() for name in names)


_SHARED = "mlp.shared_experts mlp.shared_expert feed_forward.shared_expert block_sparse_moe.shared_experts"
_EXPERTS = "mlp.experts block_sparse_moe.experts feed_forward.experts"
_MODULES: Mapping[str, tuple[str, ...]] = {
    **{name: _under("self_attn", f"{name}_proj", "qkv_proj") for name in "qkv"},
    "o": _under("self_attn", "o_proj"),
    "q_a": _under("self_attn", "q_a_proj"),
    "q_b": _under("self_attn", "q_b_proj"),
    "kv_a": _under("self_attn", "kv_a_proj_with_mqa"),
    "kv_b": _under("self_attn", "kv_b_proj"),
    "gate": _under("mlp feed_forward", "gate_proj", "gate_up_proj"),
    "up": _under("mlp feed_forward", "up_proj", "gate_up_proj"),
    "down": _under("mlp feed_forward", "down_proj"),
    "shared.gate": _under(_SHARED, "gate_proj"),
    "shared.up": _under(_SHARED, "up_proj"),
    "shared.down": _under(_SHARED, "down_proj"),
    "expert.gate": _under(_EXPERTS, "0.gate_proj", "0.w1", "gate_up_proj"),
    "expert.up": _under(_EXPERTS, "0.up_proj", "0.w3", "gate_up_proj"),
    "expert.down": _under(_EXPERTS, "0.down_proj", "0.w2", "down_proj"),
}
"""The modules of Transformers that have a matrix. Of experts, the first stands for all. A router has none here."""
