# SPDX-License-Identifier: Apache-2.0
"""A reader of Hugging Face's `config.json`, which returns an architecture.

Rules
- One error lists all missing fields. The error of an invalid value states its rule.
- A `model_type` that is not in the table is read as a decoder like Llama if it has Llama's fields, with a note. Other
  structures (encoders, state-space layers, linear attention) are an error.
- Of a model with vision or audio, only the decoder is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.advice import families, quant_methods
from dovetail.advice.architecture import Architecture, Attention, Layer, Mlp
from dovetail.advice.families import ALIASES, FAMILIES, GENERIC, Family
from dovetail.advice.quantization import Quantization, QuantizationError

Config = Mapping[str, Any]
_MOST_LAYERS = 10_000
_MOST_OF_ANY = 1 << 31
_INNER = ("text_config", "llm_config", "language_config")
_LAYER_TYPES = {"full_attention": False, "sliding_attention": True, "chunked_attention": True}
"""Whether a layer of this kind has a window."""


_WRITES = re.compile("CausalLM|LMHead|ConditionalGeneration")
_OF_BOTH = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config")
"""Fields that a model of several parts has once for all parts."""


class ModelConfigError(ValueError):
    """A problem of a config.json that keeps it from being read."""


class _Fields(Struct, frozen=True):
    """The fields of a configuration, with the defaults of its family. `missing` collects required fields without a
    value."""

    config: Config
    family: Family
    missing: list[str]

    def get(self, name: str) -> Any:
        value = self.config.get(name)
        return self.family.defaults.get(name) if value is None else value

    def number(self, name: str, most: int = _MOST_OF_ANY) -> int:
        """A positive number. If it is missing, return 1 and add the name to `missing`."""
        value = self.get(name)
        if value is None:
            self.missing.append(name)
            return 1
        return _number(name, value, 1, most)

    def optional(self, name: str, default: int = 0) -> int:
        value = self.get(name) if name else None
        return default if value is None else _number(name, value, 0)

    def flag(self, name: bool | str) -> bool:
        if isinstance(name, bool):
            return name
        value = self.get(name) if name else False
        if value is not None and not isinstance(value, bool):
            raise ModelConfigError(f"{name}: {value!r} is neither true nor false")
        return bool(value)


def read(config: Config) -> Architecture:
    """The architecture of a model. Raises ModelConfigError."""
    outer, notes = config, []
    for name in _INNER:
        if isinstance(config.get(name), Mapping):
            config = {**{key: outer[key] for key in _OF_BOTH if key in outer}, **config[name]}
            notes.append(f"only the decoder ({name}) is counted, not what sees or hears")
            break
    if not notes and "vision_config" in config:
        notes.append("only the decoder is counted, not what sees (vision_config)")
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelConfigError(
            f"model_type: {'missing' if kind is None else f'{kind!r} is no name'}; is this a config.json?"
        )
    family = FAMILIES.get(ALIASES.get(kind, kind))
    if family is None:
        _refuse(kind, config)
        family = GENERIC
        notes.append(f"model_type {kind!r} is not known: taken for a decoder like Llama")
    fields = _Fields(config, family, [])
    architecture = _architecture(kind, fields, notes)
    if fields.missing:
        known = "" if kind in FAMILIES or kind in ALIASES else " is not known, and as a decoder like Llama"
        raise ModelConfigError(f"model_type {kind!r}{known} lacks {', '.join(dict.fromkeys(fields.missing))}")
    return architecture


def _refuse(kind: str, config: Config) -> None:
    """Raise ModelConfigError if the model of an unknown type differs from Llama."""
    for name, what in families.OTHERWISE.items():
        if config.get(name):
            raise ModelConfigError(
                f"model_type {kind!r} is not known, and has {what} ({name}), which makes it no Llama"
            )
    made = config.get("architectures")
    if isinstance(made, list) and made and not any(_WRITES.search(str(one)) for one in made):
        raise ModelConfigError(f"model_type {kind!r} is not known, and {made[0]!r} is not a decoder that writes text")


def _architecture(kind: str, fields: _Fields, notes: list[str]) -> Architecture:
    family = fields.family
    for name in family.required:
        fields.number(name)
    count, hidden = fields.number(family.layers, _MOST_LAYERS), fields.number(family.hidden)
    learned = family.positions_offset >= 0
    vocab = fields.number(family.vocab)
    context = fields.number(family.context) if learned else fields.optional(family.context)
    attention = _attention(fields, hidden)
    windows = _windows(fields, count)
    norms = _norms(fields)
    outer_norms = 0 if fields.get("do_layer_norm_before") is False else family.outer_norms
    bias_of_head = vocab * fields.flag(family.head_bias)
    tied = fields.get("tie_word_embeddings")
    quantised = _quantised(fields.config, count, notes)
    kinds = list(zip(_routed(fields, count), windows, strict=True))
    plain = {
        (routed, window): Layer(hidden, attention(window), _mlp(fields, hidden, routed), norms, family.norm_vectors)
        for routed, window in dict.fromkeys(kinds)
    }
    stored = [quantised.of_layer(i, plain[kind].matrices) if quantised else () for i, kind in enumerate(kinds)]
    # Equal layers are one object, so that later sums have few terms.
    made = {(kind, bits): replace(plain[kind], stored=bits) for kind, bits in zip(kinds, stored, strict=True)}
    return Architecture(
        family=kind,
        hidden=hidden,
        vocab=vocab,
        tied=family.tied if tied is None else fields.flag("tie_word_embeddings"),
        layers=tuple(made[kind, bits] for kind, bits in zip(kinds, stored, strict=True)),
        embedded=fields.optional("word_embed_proj_dim", hidden),
        position_rows=context + family.positions_offset if learned else 0,
        vectors=hidden * outer_norms * family.norm_vectors + bias_of_head,
        max_context=context,
        dropout=family.dropout,
        weights=quantised.name if quantised else _dtype(fields.config),
        notes=tuple(notes),
        head_stored=quantised.of_head(hidden, vocab) if quantised else 0,
    )


def _norms(fields: _Fields) -> int:
    """The number of norms of a layer. Falcon's fields state whether attention and MLP are parallel, and with how many
    norms."""
    if fields.flag("new_decoder_architecture"):
        return fields.optional("num_ln_in_parallel_attn", 2)
    return 2 if fields.get("parallel_attn") is False else fields.family.norms


def _attention(fields: _Fields, hidden: int) -> Callable[[int], Attention]:
    """A function that returns the attention of a layer from its window."""
    family = fields.family
    heads = fields.number(family.heads)
    if family.latent:
        rope, nope = fields.optional("qk_rope_head_dim"), fields.optional("qk_nope_head_dim")
        q_rank, kv_rank = fields.optional("q_lora_rank"), fields.optional("kv_lora_rank")
        v_dim = fields.optional("v_head_dim")
        return lambda window: Attention(
            heads, heads, nope + rope, v_dim, q_rank, kv_rank, rope, window, q_rank + kv_rank
        )
    kv_heads = _kv_heads(fields, heads)
    dim = fields.optional("head_dim")
    if not dim:
        if hidden % heads and not fields.missing:
            raise ModelConfigError(f"{family.heads}: {heads} heads do not divide {family.hidden} {hidden}")
        dim = hidden // heads
    if heads % kv_heads and not fields.missing:
        raise ModelConfigError(f"{family.kv_heads}: {kv_heads} does not divide the {heads} of {family.heads}")
    vectors = (heads + 2 * kv_heads) * dim * fields.flag(family.qkv_bias) + hidden * fields.flag(family.out_bias)
    if family.qk_norm and (not family.qk_norm_if or fields.flag(family.qk_norm_if)):
        vectors += 2 * dim if family.qk_norm == families.EACH_HEAD else (heads + kv_heads) * dim
    vectors += heads * family.sinks
    return lambda window: Attention(heads, kv_heads, dim, dim, window=window, vectors=vectors)


def _kv_heads(fields: _Fields, heads: int) -> int:
    """The number of key-value heads.

    Falcon and GPTBigCode have a flag for a single one; Falcon's newer layers ignore it. MPT has the number inside
    `attn_config`."""
    name = fields.family.kv_heads
    inner = fields.config.get("attn_config")
    if isinstance(inner, Mapping) and name in inner:
        return _number(name, inner[name], 1)
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        return 1
    return fields.optional(name) or heads


def _mlp(fields: _Fields, hidden: int, routed: bool) -> Mlp:
    family = fields.family
    ups = 2 if family.gated else 1
    if not routed:
        width = fields.optional(family.width) or hidden * family.width_factor or fields.number(family.width)
        return Mlp(width, family.gated, vectors=(ups * width + hidden) * fields.flag(family.mlp_bias))
    experts, width = fields.number(family.experts), fields.number(family.expert_width)
    per_token = fields.number(_per_token(fields))
    shared = fields.optional(family.shared_experts) * width
    shared = shared or (fields.number(family.shared_width) if family.shared_width else 0)
    if per_token > experts and not fields.missing:
        raise ModelConfigError(f"{_per_token(fields)}: {per_token} of {experts} experts")
    vectors = experts * (ups * width + hidden) * family.expert_bias + experts * family.router_vectors
    return Mlp(shared, family.gated, experts, per_token, width, vectors + hidden * family.shared_gate)


def _per_token(fields: _Fields) -> str:
    return "experts_per_token" if fields.get("experts_per_token") is not None else "num_experts_per_tok"


def _routed(fields: _Fields, count: int) -> list[bool]:
    """Whether each layer has experts."""
    family = fields.family
    if not family.experts:
        return [False] * count
    first, step = fields.optional(family.first_dense), fields.optional(family.moe_step, 1) or 1
    dense = fields.get("mlp_only_layers")
    dense = dense if isinstance(dense, list) else []
    # DeepSeek's step begins at the first layer; in other families the last layer of each step has the experts.
    shift = 0 if family.latent else 1
    return [i >= first and (i + shift) % step == 0 and i not in dense for i in range(count)]


def _windows(fields: _Fields, count: int) -> list[int]:
    """The window of each layer; 0: full context."""
    family = fields.family
    width = fields.optional("attention_chunk_size" if family.window == families.CHUNKS else "sliding_window")
    kinds = fields.get("layer_types")
    if isinstance(kinds, list) and not fields.missing:
        strange = sorted({str(kind) for kind in kinds} - _LAYER_TYPES.keys())
        if strange:
            raise ModelConfigError(f"layer_types: {', '.join(strange)} cannot be reckoned yet")
        if len(kinds) != count:
            raise ModelConfigError(f"layer_types: {len(kinds)} for {count} layers")
        return [width if _LAYER_TYPES[kind] else 0 for kind in kinds]
    step = fields.optional("sliding_window_pattern", 1) or 1
    first = fields.optional("max_window_layers", count) if fields.flag("use_sliding_window") else count
    inside: dict[str, Callable[[int], bool]] = {
        families.NO_WINDOW: lambda i: False,
        families.ALL: lambda i: True,
        families.ALTERNATE: lambda i: i % 2 == 0,
        families.PATTERN: lambda i: (i + 1) % step != 0,
        families.UPPER: lambda i: i >= first,
        families.CHUNKS: lambda i: (i + 1) % 4 != 0,
    }
    return [width if inside[family.window](i) else 0 for i in range(count)]


def _dtype(config: Config) -> str:
    """The format in which a checkpoint that is not quantised is served; 16 bits for one of 32 bits."""
    return "fp16" if config.get("dtype", config.get("torch_dtype")) == "float16" else "bf16"


def _quantised(config: Config, layers: int, notes: list[str]) -> Quantization | None:
    stated = config.get("quantization_config")
    if not isinstance(stated, Mapping):
        return None
    found = quant_methods.read(stated)
    if found is None:
        notes.append(
            f"quantization_config: {str(stated.get('quant_method'))!r} is unknown, so 16 bits are assumed; "
            "set --weights otherwise"
        )
        return None
    try:
        found.check(layers)
    except QuantizationError as error:
        raise ModelConfigError(f"quantization_config: {error}") from error
    return found


def _number(name: str, value: object, least: int, most: int = _MOST_OF_ANY) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelConfigError(f"{name}: {value!r} is not a whole number")
    if not least <= value <= most:
        raise ModelConfigError(f"{name}: {value} is not from {least} to {most}")
    return value
