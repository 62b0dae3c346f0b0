# SPDX-License-Identifier: Apache-2.0
"""`dovetail memory`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
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
from dovetail.cli.memory.report import show, show_models
from dovetail.cli.output import output_option, write_json

_MOST_BYTES = 1 << 20
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
    "checkpointing": "--checkpointing", "attention": "--attention", "sequence_parallel": "--sequence-parallel", **_LORA,
}  # fmt: skip


_with_default = partial(click.option, show_default=True)


@click.command(name="memory")
@click.argument("model", required=False)
@click.option("--list", "listed", is_flag=True, help="List the models that are built in, and end.")
@click.option(
    "--train", type=click.Choice(METHODS), help="Train it: all of it, adapters, or adapters on 4-bit weights."
)
@click.option(
    "--context",
    type=_NUMBER,
    help="Tokens of a sequence. Default: 8192 to serve, 4096 to train, or what the model has.",
)
@click.option("--gpus", "number", type=_RANKS, help="How many GPUs. Default: the fewest of --gpu that hold it.")
@click.option("--tp", type=_RANKS, help="Tensor-parallel ranks.")
@click.option("--pp", type=_RANKS, help="Pipeline stages.")
@_with_default("--gpus-per-node", type=_RANKS, default=8, help="The most tensor-parallel ranks that are tried.")
@click.option("--gpu", metavar="MODEL", help="Only GPUs whose model begins so; the layout is chosen for the first.")
@_with_default("--headroom", type=click.IntRange(0, 90), default=10, metavar="PERCENT", help="What is to stay free.")
@_with_default("--runtime-mib", type=click.IntRange(0, 1 << 20), default=1024, help="What CUDA and the framework take.")
@_with_default("--concurrency", type=_RANKS, default=1, help="Serving: sequences at the same time.")
@click.option(
    "--weights", type=click.Choice([*FORMATS]), help="Serving: format of the weights. Default: that of the checkpoint."
)
@_with_default("--kv-cache", type=click.Choice([*CACHE_BYTES]), default="bf16", help="Serving: format of the KV cache.")
@_with_default(
    "--prefill-tokens", "prefill", type=_NUMBER, default=8192, help="Serving: tokens of prompts computed at once."
)
@_with_default("--batch", type=_RANKS, default=1, help="Training: sequences of a micro-batch of each replica.")
@_with_default(
    "--precision", type=click.Choice([*PRECISIONS]), default="mixed", help="Training: formats of weights and states."
)
@_with_default("--optimizer", type=click.Choice([*OPTIMIZERS]), default="adamw", help="Training: the optimizer.")
@_with_default("--zero", type=click.IntRange(0, 3), default=0, help="Training: the stage of ZeRO.")
@click.option("--fsdp", is_flag=True, help="Training: fully sharded, instead of --zero.")
@_with_default(
    "--checkpointing",
    type=click.Choice(CHECKPOINTING),
    default="none",
    help="Training: activations that are computed again.",
)
@_with_default(
    "--attention", type=click.Choice(["flash", "eager"]), default="flash", help="Training: eager keeps the scores."
)
@click.option("--sequence-parallel", is_flag=True, help="Training: ranks of --tp divide what they would all keep.")
@_with_default("--lora-rank", type=_RANKS, default=16, help="LoRA and QLoRA: the rank of adapters.")
@_with_default(
    "--lora-targets", type=click.Choice([*TARGETS]), default="all", help="LoRA and QLoRA: matrices with an adapter."
)
@output_option
@click.pass_context
def command(ctx: click.Context, /, model: str | None, listed: bool, output: str, **options: Any) -> None:
    """Say what a model takes of the memory of GPUs to serve or to train it, and which GPUs and MIG profiles hold it.

    MODEL is a Hugging Face config.json, a folder with one, or a model that is built in (--list). Without --train it is
    served. Everything is computed from the sizes of the model; no cluster, GPU or network is needed.
    """
    if listed and model is None:
        show_models(output)
        return
    if model is None or listed:
        raise click.UsageError("Say a MODEL, a config.json or one that is built in, or --list, which shows these")
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
    if output == "json":
        write_json(answer)
    else:
        show(answer)


def _refuse(ctx: click.Context, train: str | None) -> None:
    """Options of a job that was not asked for."""
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    wrong, what = (
        (_SERVING, "is about serving: leave out --train") if train else (_TRAINING, "is about training: say --train")
    )
    if train == "full":
        wrong = {**wrong, **_LORA}
    for name, option in wrong.items():
        if name in given:
            lora = "is about adapters: say --train lora or --train qlora"
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
        options["lora_rank"], options["lora_targets"],
    )  # fmt: skip


def _gpus(name: str | None) -> tuple[GpuProduct, ...]:
    if name is None:
        return gpus.GPUS
    found = gpus.find(name)
    if not found:
        raise click.BadParameter(
            f"{name!r} is not known; known are {', '.join(g.model for g in gpus.GPUS)}", param_hint="--gpu"
        )
    return found


def architecture_of(model: str) -> tuple[Architecture, str]:
    """Of a file, a folder with one, or a built-in model; and what it is called. Raises ClickException."""
    path = Path(model)
    if path.is_dir():
        path /= "config.json"
        if not path.exists():
            raise click.ClickException(f"no config.json in {model!r}")
    if not path.exists():
        entry = catalog.find(model)
        if entry is None:
            near = ", ".join(catalog.near(model))
            hint = f" Near: {near}." if near else ""
            raise click.ClickException(f"{model!r} is neither a file nor a built-in model.{hint} --list shows all.")
        return read(entry.config), entry.name
    try:
        return read(_decoded(path)), str(path)
    except ModelConfigError as error:
        raise click.ClickException(f"{path}: {error}") from error


def _decoded(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ModelConfigError(f"cannot be read: {error.strerror}") from error
    if len(text) > _MOST_BYTES:
        raise ModelConfigError(f"more than {_MOST_BYTES >> 20} MiB: a config.json has a few KiB; was it the weights?")
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelConfigError(f"not JSON: {str(error) or 'not text'}") from error
    if not isinstance(found, dict):
        raise ModelConfigError("not a JSON object, as a config.json is")
    return found
