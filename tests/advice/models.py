# SPDX-License-Identifier: Apache-2.0
"""Models that tests are about."""

from __future__ import annotations

from functools import cache
from typing import Any

from dovetail.advice import catalog
from dovetail.advice.architecture import Architecture
from dovetail.advice.config import read

GIB = 1 << 30


@cache
def model(name: str) -> Architecture:
    """One that is built in."""
    entry = catalog.find(name)
    assert entry is not None, name
    return read(entry.config)


def llama(**changes: Any) -> dict[str, Any]:
    """A small config.json in the manner of Llama."""
    return {
        "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "intermediate_size": 1536, "vocab_size": 8000, "max_position_embeddings": 4096,
    } | changes  # fmt: skip


def gpt(layers: int, hidden: int, heads: int, vocab: int = 51_200, positions: int = 4096) -> Architecture:
    """A GPT as in the papers on training: all heads have keys of their own, the MLP is four times as wide, dropout."""
    return read(
        {"model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads, "vocab_size": vocab,
         "n_positions": positions}
    )  # fmt: skip
