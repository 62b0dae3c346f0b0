# SPDX-License-Identifier: Apache-2.0
"""The `quantization_config` of a checkpoint's config.json, read by its `quant_method`.

Sources, by `quant_method`
- awq, bitsandbytes, eetq, fbgemm_fp8, fp8, gptq, mxfp4, torchao: Transformers' documentation of quantisation, and the
  fields in its `utils/quantization_config.py`. GPTQ and AWQ store a zero point for each group, also of symmetric
  weights; GPTQ stores the group of each input, too (AutoGPTQ, `qlinear`). bitsandbytes: QLoRA, section 3. TorchAO: the
  docstrings of its configurations; its INT4 has a scale and a zero point of 16 bits for a group, and INT4 for dynamic
  INT8 activations is stored in bytes.
- auto-round, intel/auto-round: Intel's AutoRound, in the form of GPTQ or AWQ.
- compressed-tensors: `QuantizationArgs` of the library, and vLLM's documentation of LLM Compressor.
- modelopt, modelopt_fp4, modelopt_mixed: vLLM's documentation of NVIDIA's Model Optimizer (`quant_algo`), and NVIDIA's
  of NVFP4: a scale of 8 bits for 16 numbers. MXFP4 and MXFP8: OCP Microscaling Formats 1.0, 8 bits for 32.
- quark: `QuantizationSpec` of AMD's Quark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dovetail.advice.formats import BLOCK
from dovetail.advice.module_patterns import ModulePatterns
from dovetail.advice.quantization import COLUMN, ROW, Quantization, StoredFormat

Config = Mapping[str, Any]
_LARGEST = 1 << 20


def _whole(value: object, default: int) -> int:
    """A positive number; the default where it is none, or absurd."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LARGEST else default


def _map(value: object) -> Config:
    return value if isinstance(value, Mapping) else {}


def _names(*values: object) -> list[str]:
    """The names in lists, in values that are one name, and in the keys of mappings."""
    found: list[str] = []
    for value in values:
        listed = [value] if isinstance(value, str) else value if isinstance(value, list | Mapping) else []
        found += [name for name in listed if isinstance(name, str)]
    return found


def _group(value: object, default: int) -> int:
    """The size of a group; -1 is one for a row."""
    return ROW if value == ROW else _whole(value, default)


_FP8, _NVFP4 = StoredFormat("fp8", 8), StoredFormat("nvfp4", 4, ((8, 16),))
_MXFP4, _MXFP8 = StoredFormat("mxfp4", 4, ((8, 32),)), StoredFormat("mxfp8", 8, ((8, 32),))
_FP8_ROWS, _FP8_BLOCKS = StoredFormat("fp8", 8, ((32, ROW),)), StoredFormat("fp8", 8, ((32, 128 * 128),))
_INT8_ROWS, _INT4 = StoredFormat("int8", 8, ((16, ROW),)), StoredFormat("int4", 4, ((16, 128),))
_MODELOPT: Mapping[str, StoredFormat] = {
    "FP8": _FP8, "FP8_PER_CHANNEL_PER_TOKEN": _FP8_ROWS, "FP8_PB_WO": _FP8_BLOCKS, "FP8_PB_REAL": _FP8_BLOCKS,
    "NVFP4": _NVFP4, "NVFP4_AWQ": _NVFP4, "NVFP4_SVD": _NVFP4, "W4A16_NVFP4": _NVFP4, "W4A8_NVFP4_FP8": _NVFP4,
    "MXFP4": _MXFP4, "W4A8_MXFP4_FP8": _MXFP4, "MXFP8": _MXFP8, "W8A8_SQ_PER_CHANNEL": _INT8_ROWS, "W8A16": _INT8_ROWS,
    "INT4_AWQ": _INT4, "W4A16": _INT4, "W4A16_AWQ": _INT4, "W4A8_AWQ": _INT4,
}  # fmt: skip
_FLOATS: Mapping[str, StoredFormat] = {
    "fp8": _FP8, "fp8_e4m3": _FP8, "fp8_e5m2": _FP8, "fp4": _MXFP4, "fp4_e2m1": _MXFP4, "mxfp4": _MXFP4,
    "nvfp4": _NVFP4, "mx": _MXFP4, "mxfp8": _MXFP8,
}  # fmt: skip
_TORCHAO_INT4 = frozenset({"int4weightonly", "gemliteuintxweightonly", "int4dynamicactivationint4weight"})

Rules = list[tuple[list[str] | None, StoredFormat]]


class _Scheme(NamedTuple):
    """What a reader finds: formats with the patterns that they are for, patterns of what is kept, whether the head is
    a linear layer like others."""

    rules: Rules
    kept: list[str]
    head: bool = False


def _gptq(q: Config) -> _Scheme:
    bits, column = _whole(q.get("bits"), 4), 32 if q.get("quant_method") == "gptq" else 0
    form = StoredFormat(f"int{bits}", bits, ((16 + bits, _group(q.get("group_size"), 128)), (column, COLUMN)))
    excluded = [name for name in _names(q.get("dynamic")) if name.startswith("-:")]
    extra = [name for name, one in _map(q.get("extra_config")).items() if _map(one).get("bits") == 16]
    kept = _names(q.get("modules_to_not_convert"), excluded, extra)
    return _Scheme([(None, form)], kept, q.get("lm_head") is True)


def _awq(q: Config) -> _Scheme:
    bits = _whole(q.get("bits", q.get("w_bit")), 4)
    group = _group(q.get("group_size", q.get("q_group_size")), 128)
    return _Scheme(
        [(None, StoredFormat(f"int{bits}", bits, ((16 + bits, group),)))], _names(q.get("modules_to_not_convert"))
    )


def _bitsandbytes(q: Config) -> _Scheme:
    form = StoredFormat("int8", 8, ((32, ROW),))
    if q.get("load_in_4bit"):
        name = "fp4" if q.get("bnb_4bit_quant_type") == "fp4" else "nf4"
        double = q.get("bnb_4bit_use_double_quant")
        form = StoredFormat(name, 4, ((8, 64), (32, BLOCK)) if double else ((32, 64),))
    return _Scheme([(None, form)], _names(q.get("llm_int8_skip_modules")))


def _fp8(q: Config) -> _Scheme:
    block = q.get("weight_block_size")
    sizes = [_whole(one, 0) for one in block] if isinstance(block, list) else []
    side = ((32, sizes[0] * sizes[1]),) if len(sizes) == 2 and min(sizes) > 0 else ()
    return _Scheme(
        [(None, StoredFormat("fp8", 8, side))], _names(q.get("modules_to_not_convert"), q.get("ignored_layers"))
    )


def _always(form: StoredFormat, targets: list[str] | None = None) -> Callable[[Config], _Scheme]:
    return lambda q: _Scheme([(targets, form)], _names(q.get("modules_to_not_convert")))


def _compressed(q: Config) -> _Scheme:
    rules: Rules = []
    for group in _map(q.get("config_groups")).values():
        weights = _map(_map(group).get("weights"))
        if weights:
            targets = _names(_map(group).get("targets"))
            rules.append((None if "Linear" in targets or not targets else targets, _of_arguments(weights)))
    if not rules:
        by_format = {"float-quantized": _FP8, "int-quantized": _INT8_ROWS, "pack-quantized": _INT4,
                     "nvfp4-pack-quantized": _NVFP4, "mxfp4-pack-quantized": _MXFP4}  # fmt: skip
        form = by_format.get(str(q.get("format")))
        rules = [(None, form)] if form else []
    return _Scheme(rules, _names(q.get("ignore")), head=True)


def _of_arguments(weights: Config) -> StoredFormat:
    """The format of `QuantizationArgs`."""
    bits, group = _whole(weights.get("num_bits"), 8), _group(weights.get("group_size"), 0)
    strategy = str(weights.get("strategy") or ("group" if group > 0 else "tensor"))
    is_float = weights.get("type") == "float"
    if is_float and bits == 4:
        return _MXFP4 if group == 32 else _NVFP4
    if is_float and bits == 8 and group == 32:
        return _MXFP8
    scale = 16 if is_float or weights.get("symmetric", True) else 16 + bits
    block = weights.get("block_structure")
    sizes = [_whole(one, 128) for one in block] if isinstance(block, list) and len(block) == 2 else [128, 128]
    beside = {"group": (scale, group or 128), "channel": (scale, ROW), "block": (scale, max(1, sizes[0] * sizes[1]))}
    return StoredFormat(
        f"fp{bits}" if is_float else f"int{bits}", bits, (beside[strategy],) if strategy in beside else ()
    )


def _modelopt(q: Config) -> _Scheme:
    q = _map(q.get("quantization")) or q
    kept = _names(q.get("ignore"), q.get("exclude_modules"))
    layers = _map(q.get("quantized_layers"))
    if layers:
        by_format: dict[StoredFormat, list[str]] = {}
        for name, one in layers.items():
            form = _MODELOPT.get(str(_map(one).get("quant_algo")).upper())
            if form and isinstance(name, str):
                by_format.setdefault(form, []).append(name)
        return _Scheme([(names, form) for form, names in by_format.items()], kept, head=True)
    form = _MODELOPT.get(str(q.get("quant_algo")).upper())
    if form == _INT4:
        form = StoredFormat("int4", 4, ((16, _group(q.get("group_size"), 128)),))
    return _Scheme([(None, form)] if form else [], kept, head=True)


def _quark(q: Config) -> _Scheme:
    rules: Rules = []
    for name, one in _map(q.get("layer_quant_config")).items():
        if isinstance(name, str) and (form := _of_specification(_map(one).get("weight"))):
            rules.append(([name], form))
    if whole := _of_specification(_map(q.get("global_quant_config")).get("weight")):
        rules.append((None, whole))
    return _Scheme(rules, _names(q.get("exclude")), head=True)


def _of_specification(weight: object) -> StoredFormat | None:
    """The format of `QuantizationSpec`. Of two stages, the last is stored."""
    weight = _map(weight[-1] if isinstance(weight, list) and weight else weight)
    dtype, group = str(weight.get("dtype")), _group(weight.get("group_size"), 0)
    scheme = weight.get("qscheme")
    if found := re.fullmatch(r"u?int([1-9])", dtype):
        bits = int(found[1])
        scale = 16 if weight.get("symmetric") and not dtype.startswith("u") else 16 + bits
        size = {"per_group": group, "per_channel": ROW}.get(str(scheme), 0)
        return StoredFormat(f"int{bits}", bits, ((scale, size),) if size else ())
    if dtype.startswith("fp8") and scheme == "per_channel":
        return _FP8_ROWS
    if dtype.startswith("fp4") and group == 16:
        return _NVFP4
    return _FLOATS.get(dtype)


def _torchao(q: Config) -> _Scheme:
    """`quant_type` is a name, or a serialised configuration under `default`."""
    kind, data = q.get("quant_type"), _map(q.get("quant_type_kwargs"))
    if isinstance(kind, Mapping):
        inner = _map(kind.get("default"))
        kind, data = inner.get("_type"), _map(inner.get("_data"))
    modules = _map(data.get("module_fqn_to_config") or data.get("fqn_to_config"))
    rules: Rules = []
    kept = _names(q.get("modules_to_not_convert"))
    for name, one in modules.items():
        form = _of_torchao(str(_map(one).get("_type")), _map(_map(one).get("_data")))
        if form is None:
            kept.append(name)
        elif name != "_default":
            rules.append(([name], form))
    default = _map(modules.get("_default"))
    form = _of_torchao(str(default.get("_type") or kind), _map(default.get("_data")) or data)
    if form:
        rules.append((None, form))
    return _Scheme(rules, [name for name in kept if name != "_default"], "lm_head" in modules)


def _of_torchao(kind: str, data: Config) -> StoredFormat | None:
    name = kind.lower().replace("_", "").removesuffix("config")
    group = _group(data.get("group_size"), 128)
    for prefix, form in (("nvfp4", _NVFP4), ("mxfp4", _MXFP4), ("mx", _MXFP8), ("float8", _FP8_ROWS)):
        if name.startswith(prefix):
            return form
    if name in _TORCHAO_INT4:
        return StoredFormat("int4", 4, ((32, group),))
    if name in ("int8dynamicactivationint4weight", "int8dynamicactivationintxweight", "intxweightonly"):
        return StoredFormat("int8", 8, ((16, _group(data.get("group_size"), 32)),))
    return _INT8_ROWS if name.startswith("int8") else None


def _hqq(q: Config) -> _Scheme:
    weights = _map(_map(q.get("quant_config")).get("weight_quant_params"))
    bits = _whole(weights.get("nbits"), 4)
    form = StoredFormat(f"int{bits}", bits, ((32, _group(weights.get("group_size"), 64)),))
    return _Scheme([(None, form)], _names(q.get("skip_modules")))


_READERS: Mapping[str, Callable[[Config], _Scheme]] = {
    "auto-round": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "eetq": _always(_INT8_ROWS),
    "fbgemm_fp8": _always(_FP8_ROWS),
    "fp8": _fp8,
    "gptq": _gptq,
    "hqq": _hqq,
    "intel/auto-round": _gptq,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mixed": _modelopt,
    "mxfp4": _always(_MXFP4, ["mlp.experts"]),
    "quark": _quark,
    "torchao": _torchao,
}
"""Readers by `quant_method`. Where the head is not quantised unless a field sets it, they return `head` False."""


def read(config: Config) -> Quantization | None:
    """The formats in a `quantization_config`; None if its method is unknown, or states no format."""
    method = config.get("quant_method") or ("bitsandbytes" if config.get("load_in_4bit") else "")
    reader = _READERS.get(str(method).lower())
    found = reader(config) if reader else None
    if found is None or not found.rules:
        return None
    rules = tuple((None if names is None else ModulePatterns(names), form) for names, form in found.rules)
    return Quantization(rules, ModulePatterns(found.kept), found.head)
