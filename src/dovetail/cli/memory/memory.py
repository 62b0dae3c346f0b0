# SPDX-License-Identifier: Apache-2.0
"""`dovetail memory`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dovetail.advice import catalog, gpus
from dovetail.advice.architecture import Architecture
from dovetail.advice.config import ModelConfigError, read
from dovetail.advice.formats import CACHE_BYTES, FORMATS, OPTIMIZERS, PRECISIONS
from dovetail.advice.gpus import GpuProduct
from dovetail.advice.layout import PlanError
from dovetail.advice.memory import MemoryQuestion, Plan, memory
from dovetail.advice.serving import Serving
from dovetail.advice.training import CHECKPOINTING, METHODS, TARGETS, Training
from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.memory.report import show, show_models
from dovetail.core.json_text import JsonError, decode_json

_MOST_BYTES = 1 << 20
_MODELOPT = "hf_quant_config.json"
_SERVING_CONTEXT, _TRAINING_CONTEXT = 8192, 4096
_SIZED_FOR = "H100-SXM5"
_NUMBER = click.IntRange(1, 1 << 24)
_RANKS = click.IntRange(1, 1 << 16)
_SERVING = {
    "weights": "--weights",
    "kv_cache": "--kv-cache",
    "concurrency": "--concurrency",
    "prefill": "--prefill-tokens",
}
_LORA = {"lora_rank": "--lora-rank", "lora_targets": "--lora-targets"}
_TRAINING = {
    "batch": "--batch", "precision": "--precision", "optimizer": "--optimizer", "zero": "--zero", "fsdp": "--fsdp",
    "checkpointing": "--checkpointing", "attention": "--attention", "sequence_parallel": "--sequence-parallel",
    "offload": "--offload", **_LORA,
}  # fmt: skip


_with_default = partial(click.option, show_default=True)


@click.command(name="memory")
@click.argument("model", required=False)
@click.option("--list", "listed", is_flag=True, help="List the built-in models and exit.")
@click.option("--train", type=click.Choice(METHODS), help="Train: all weights, adapters, or adapters on 4-bit weights.")
@click.option(
    "--context",
    type=_NUMBER,
    help="Tokens per sequence. Default: 8192 to serve, 4096 to train, or the model's limit if that is less.",
)
@click.option("--gpus", "number", type=_RANKS, help="Number of GPUs. Default: the fewest of --gpu that hold it.")
@click.option("--tp", type=_RANKS, help="Tensor-parallel ranks.")
@click.option("--pp", type=_RANKS, help="Pipeline stages.")
@_with_default("--gpus-per-node", type=_RANKS, default=8, help="GPUs of a node: the most tensor-parallel ranks.")
@click.option("--gpu", metavar="MODEL", help="Only GPU models with this prefix; the layout is chosen for the first.")
@_with_default(
    "--headroom", type=click.IntRange(0, 90), default=10, metavar="PERCENT", help="Memory of each GPU to leave free."
)
@_with_default(
    "--runtime-mib", type=click.IntRange(0, 1 << 20), default=1024, help="Memory of CUDA and the framework, in MiB."
)
@_with_default("--concurrency", type=_RANKS, default=1, help="Serving: concurrent sequences.")
@click.option(
    "--weights", type=click.Choice([*FORMATS]), help="Serving: format of the weights. Default: that of the checkpoint."
)
@_with_default("--kv-cache", type=click.Choice([*CACHE_BYTES]), default="bf16", help="Serving: format of the KV cache.")
@_with_default(
    "--prefill-tokens", "prefill", type=_NUMBER, default=8192, help="Serving: prompt tokens computed in one step."
)
@_with_default("--batch", type=_RANKS, default=1, help="Training: sequences in the micro-batch of a replica.")
@_with_default(
    "--precision", type=click.Choice([*PRECISIONS]), default="mixed", help="Training: formats of weights and states."
)
@_with_default("--optimizer", type=click.Choice([*OPTIMIZERS]), default="adamw", help="Training: the optimizer.")
@_with_default("--zero", type=click.IntRange(0, 3), default=0, help="Training: the ZeRO stage.")
@click.option("--fsdp", is_flag=True, help="Training: fully sharded data parallel, instead of --zero.")
@click.option("--offload", is_flag=True, help="Training: the optimizer in host memory (ZeRO-Offload). With --zero.")
@_with_default(
    "--checkpointing",
    type=click.Choice(CHECKPOINTING),
    default="none",
    help="Training: activations that are recomputed.",
)
@_with_default(
    "--attention", type=click.Choice(["flash", "eager"]), default="flash", help="Training: eager stores the scores."
)
@click.option("--sequence-parallel", is_flag=True, help="Training: divide also along the sequence among --tp ranks.")
@_with_default("--lora-rank", type=_RANKS, default=16, help="LoRA and QLoRA: the rank of adapters.")
@_with_default(
    "--lora-targets", type=click.Choice([*TARGETS]), default="all", help="LoRA and QLoRA: matrices with an adapter."
)
@answer_option
@click.pass_context
def command(ctx: click.Context, /, model: str | None, listed: bool, form: AnswerForm, **options: Any) -> None:
    """Compute the GPU memory that a model needs to be served or trained, and which GPUs and MIG profiles hold it.

    MODEL is a Hugging Face config.json, a folder with one, or a built-in model (--list). Without --train it is served.
    The answer is computed from the sizes of the model. Needs no cluster, no GPU and no network.
    """
    if listed and model is None:
        show_models(form)
        return
    if model is None or listed:
        raise click.UsageError("name a MODEL, a config.json or a built-in model, or use --list")
    _refuse(ctx, options["train"])
    found, name = architecture_of(model)
    shown = _gpus(options["gpu"])
    asked = MemoryQuestion(
        found, _plan(found, options), name, options["number"], options["tp"], options["pp"], options["gpus_per_node"],
        options["runtime_mib"], options["headroom"],
    )  # fmt: skip
    sized_for = shown[0] if options["gpu"] else next(gpu for gpu in shown if gpu.model == _SIZED_FOR)
    try:
        answer = memory(asked, sized_for, shown)
    except PlanError as error:
        raise click.UsageError(str(error)) from error
    if form.whole:
        write_answer(form, "MemoryEstimate", answer)
    else:
        show(answer)


def _refuse(ctx: click.Context, train: str | None) -> None:
    """Raises UsageError for an option of serving with --train, or of training without it."""
    used = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    wrong, what = (
        (_SERVING, "is an option of serving: omit --train") if train else (_TRAINING, "is an option of --train")
    )
    if train == "full":
        wrong = {**wrong, **_LORA}
    for name, option in wrong.items():
        if name in used:
            lora = "is an option of --train lora and --train qlora"
            raise click.UsageError(f"{option} {lora if name in _LORA else what}")


def _plan(model: Architecture, options: dict[str, Any]) -> Plan:
    default = _TRAINING_CONTEXT if options["train"] else _SERVING_CONTEXT
    context = options["context"] or min(default, model.max_context or default)
    if not options["train"]:
        weights = options["weights"] or model.weights
        return Serving(context, options["concurrency"], weights, options["kv_cache"], options["prefill"])
    return Training(
        context, options["batch"], options["train"], options["precision"], options["optimizer"], options["zero"],
        options["fsdp"], options["checkpointing"], options["attention"] == "flash", options["sequence_parallel"],
        options["lora_rank"], options["lora_targets"], options["offload"],
    )  # fmt: skip


def _gpus(name: str | None) -> tuple[GpuProduct, ...]:
    if name is None:
        return gpus.GPUS
    found = gpus.find(name)
    if not found:
        raise click.BadParameter(
            f"{name!r} is not a known GPU; known are {', '.join(g.model for g in gpus.GPUS)}", param_hint="--gpu"
        )
    return found


def architecture_of(model: str) -> tuple[Architecture, str]:
    """The architecture and the name of a config.json, of a folder with one, or of a built-in model. Raises
    ClickException."""
    path = Path(model)
    if path.is_dir():
        path /= "config.json"
        if not path.exists():
            raise click.ClickException(f"no config.json in {model!r}")
    if not path.exists():
        entry = catalog.find(model)
        if entry is None:
            near = ", ".join(catalog.near(model))
            hint = f" Similar: {near}." if near else ""
            raise click.ClickException(f"{model!r} is neither a file nor a built-in model.{hint} --list shows all.")
        return read(entry.config), entry.name
    config, beside = _decoded(path), path.with_name(_MODELOPT)
    if "quantization_config" not in config and beside.exists():
        # Older exports of NVIDIA's Model Optimizer state the format only there.
        config = {**config, "quantization_config": {**_decoded(beside), "quant_method": "modelopt"}}
    try:
        return read(config), str(path)
    except ModelConfigError as error:
        raise click.ClickException(f"{path}: {error}") from error


def _decoded(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ClickException."""
    try:
        return _object(path)
    except ModelConfigError as error:
        raise click.ClickException(f"{path}: {error}") from error


def _object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ModelConfigError(f"cannot be read: {error.strerror}") from error
    if len(text) > _MOST_BYTES:
        raise ModelConfigError(f"more than {_MOST_BYTES >> 20} MiB: a config.json has a few KiB; are these weights?")
    try:
        found = decode_json(text, object)
    except JsonError as error:
        raise ModelConfigError(f"not JSON: {str(error) or 'not text'}") from error
    if not isinstance(found, dict):
        raise ModelConfigError("not a JSON object")
    return found
