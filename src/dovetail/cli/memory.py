# SPDX-License-Identifier: Apache-2.0
"""`dovetail memory`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dovetail.advice import catalog, gpus
from dovetail.advice.architecture import Architecture
from dovetail.advice.config import ConfigError, read
from dovetail.advice.formats import CACHE_BYTES, FORMATS, OPTIMIZERS, PRECISIONS
from dovetail.advice.gpus import Gpu
from dovetail.advice.layout import Layout, PlanError
from dovetail.advice.memory import Asked, Memory, Plan, Room, Slice, memory
from dovetail.advice.serving import Serving
from dovetail.advice.training import CHECKPOINTING, METHODS, TARGETS, Training
from dovetail.cli.output import count, output_option, write_json

_WIDTH = 120
_WIDE = 140
_ALIKE_PERCENT = 3
_MOST_BYTES = 1 << 20
_GIB, _GB = 1 << 30, 10**9
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
@click.option(
    "--gpus-per-node", type=_RANKS, default=8, show_default=True, help="The most tensor-parallel ranks that are tried."
)
@click.option(
    "--gpu", metavar="MODEL", help="Only GPUs with this in their model, and the layout is chosen for the first of them."
)
@click.option(
    "--headroom",
    type=click.IntRange(0, 90),
    default=10,
    show_default=True,
    metavar="PERCENT",
    help="What is to stay free.",
)
@click.option(
    "--runtime-mib",
    type=click.IntRange(0, 1 << 20),
    default=1024,
    show_default=True,
    help="What CUDA and the framework take.",
)
@click.option("--concurrency", type=_RANKS, default=1, show_default=True, help="Serving: sequences at the same time.")
@click.option(
    "--weights", type=click.Choice([*FORMATS]), help="Serving: format of the weights. Default: that of the checkpoint."
)
@click.option(
    "--kv-cache",
    type=click.Choice([*CACHE_BYTES]),
    default="bf16",
    show_default=True,
    help="Serving: format of the KV cache.",
)
@click.option(
    "--prefill-tokens",
    "prefill",
    type=_NUMBER,
    default=8192,
    show_default=True,
    help="Serving: tokens of prompts computed at once.",
)
@click.option(
    "--batch", type=_RANKS, default=1, show_default=True, help="Training: sequences of a micro-batch of each replica."
)
@click.option(
    "--precision",
    type=click.Choice([*PRECISIONS]),
    default="mixed",
    show_default=True,
    help="Training: formats of weights and states.",
)
@click.option(
    "--optimizer", type=click.Choice([*OPTIMIZERS]), default="adamw", show_default=True, help="Training: the optimizer."
)
@click.option("--zero", type=click.IntRange(0, 3), default=0, show_default=True, help="Training: the stage of ZeRO.")
@click.option("--fsdp", is_flag=True, help="Training: fully sharded, instead of --zero.")
@click.option(
    "--checkpointing",
    type=click.Choice(CHECKPOINTING),
    default="none",
    show_default=True,
    help="Training: activations that are computed again.",
)
@click.option(
    "--attention",
    type=click.Choice(["flash", "eager"]),
    default="flash",
    show_default=True,
    help="Training: eager keeps the scores.",
)
@click.option("--sequence-parallel", is_flag=True, help="Training: ranks of --tp divide what they would all keep.")
@click.option("--lora-rank", type=_RANKS, default=16, show_default=True, help="LoRA and QLoRA: the rank of adapters.")
@click.option(
    "--lora-targets",
    type=click.Choice([*TARGETS]),
    default="all",
    show_default=True,
    help="LoRA and QLoRA: matrices with an adapter.",
)
@output_option
@click.pass_context
def command(ctx: click.Context, /, model: str | None, listed: bool, output: str, **options: Any) -> None:
    """Say what a model takes of the memory of GPUs to serve or to train it, and which GPUs and MIG profiles hold it.

    MODEL is a Hugging Face config.json, a folder with one, or a model that is built in (--list). Without --train it is
    served. Everything is computed from the sizes of the model; no cluster, GPU or network is needed.
    """
    if listed:
        show_models(output)
        return
    if model is None:
        raise click.UsageError("Missing argument 'MODEL': a config.json, or a built-in model; --list shows these")
    _refuse(ctx, options["train"])
    found, name = architecture_of(model)
    shown = _gpus(options["gpu"])
    asked = Asked(
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
        show(answer, Console(width=min(Console().width, _WIDTH)))


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


def _gpus(name: str | None) -> tuple[Gpu, ...]:
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
    except ConfigError as error:
        raise click.ClickException(f"{path}: {error}") from error


def _decoded(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}") from error
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"more than {_MOST_BYTES >> 20} MiB: a config.json has a few KiB; was it the weights?")
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not JSON: {str(error) or 'not text'}") from error
    if not isinstance(found, dict):
        raise ConfigError("not a JSON object, as a config.json is")
    return found


def show_models(output: str) -> None:
    """The models that are built in."""
    models = [(entry, read(entry.config)) for entry in catalog.entries()]
    if output == "json":
        kept = ("name", "source", "licence", "date")
        told = [
            {key: getattr(entry, key) for key in kept} | {"parameters": m.parameters, "active": m.active}
            for entry, m in models
        ]
        write_json(told)
        return
    table = _table("model", "parameters >", "active >", "context >", "published", "licence", "source")
    for entry, model in models:
        sizes = (f"{model.parameters / _GB:.2f} B", f"{model.active / _GB:.2f} B", str(model.max_context or "-"))
        table.add_row(entry.name, *sizes, entry.date, entry.licence, entry.source)
    Console(width=max(Console().width, _WIDE)).print(table, highlight=False)


def show(answer: Memory, console: Console) -> None:
    """For people."""

    def say(what: str | Table) -> None:
        console.print(escape(what) if isinstance(what, str) else what, highlight=False)

    for line in _head(answer):
        say(line)
    say("")
    say(_parts(answer))
    say(f"GiB are 2^30 bytes, GB 10^9. A GPU holds it that has {answer.need.memory_per_gpu_mib} MiB usable.")
    say("")
    say(_rooms(answer))
    say(f"holds it, left: {_on(answer)}, as above.")
    say("fewest, as: how many hold it, and how they divide it; what is largest there, with all else as asked.")
    slices = _slices(answer)
    if slices.row_count:
        say("")
        say(slices)
    for note in answer.notes:
        say(f"note: {note}")


def _head(answer: Memory) -> Iterator[str]:
    model, plan = answer.model, answer.plan
    active = f", {model.active / _GB:.2f} B active" if model.active < model.parameters else ""
    yield f"{model.name}: {model.parameters / _GB:.2f} B parameters{active} ({model.family}, {model.layers} layers)"
    on = _on(answer)
    if isinstance(plan, Serving):
        what = f"serving {count(plan.batch, 'sequence')} of up to {plan.context} tokens"
        yield f"{what} {on}: weights in {plan.weights}, KV cache in {plan.cache}"
        return
    divided = "FSDP" if plan.fsdp else f"ZeRO-{plan.zero}" if plan.zero else "nothing divided among replicas"
    trained = (
        "" if plan.method == "full" else f" ({model.trained / 1e6:.1f} M parameters trained, rank {plan.lora_rank})"
    )
    what = f"{plan.method} training{trained}, {count(plan.batch, 'sequence')} of {plan.context} tokens {on}"
    yield f"{what}: {plan.optimizer}, {plan.precision}, {divided}, checkpointing {plan.checkpointing}"


def _on(answer: Memory) -> str:
    """The layout of the parts."""
    return f"on {count(answer.layout.gpus, 'GPU')}{_layout(answer.layout)}"


def _layout(layout: Layout) -> str:
    """` (TP 8 x PP 2)`; nothing for one GPU."""
    ways = (("TP", layout.tp), ("PP", layout.pp), ("DP", layout.dp))
    told = " x ".join(f"{name} {number}" for name, number in ways if number > 1)
    return f" ({told})" if told else ""


def _table(*columns: str) -> Table:
    """A column that ends in > is aligned to the right."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        right, names = column.endswith(" >"), column in ("GPU", "of")
        table.add_column(column.removesuffix(" >"), justify="right" if right else "left", no_wrap=not names)
    return table


def _parts(answer: Memory) -> Table:
    where = "fullest GPU" if answer.layout.pp > 1 else "each GPU" if answer.layout.gpus > 1 else "the GPU"
    table = _table(where, "GiB >", "GB >", "% >")
    for field in fields(answer.parts):
        size = getattr(answer.parts, field.name)
        if size:
            table.add_row(
                field.name.replace("_", " ").replace("kv", "KV"),
                *_sizes(size),
                f"{size * 100 / answer.total_bytes:.1f}",
            )
    table.add_row("total", *_sizes(answer.total_bytes), "")
    table.add_row(f"with {answer.headroom_percent} % left free", *_sizes(answer.need.memory_per_gpu_mib << 20), "")
    return table


def _sizes(size: int) -> tuple[str, str]:
    return f"{size / _GIB:.2f}", f"{size / _GB:.2f}"


def _rooms(answer: Memory) -> Table:
    """GPUs for which the answer is the same, in one row, the least memory first; the numbers are those of the least."""
    batch = "sequences" if isinstance(answer.plan, Serving) else "batch"
    table = _table(
        "GPU",
        "usable GiB >",
        "holds it",
        "left GiB >",
        "fewest >",
        "as",
        "NVLink",
        "context up to >",
        f"{batch} up to >",
    )
    groups: list[list[Room]] = []
    for room in sorted(answer.gpus, key=lambda room: room.usable_mib):
        group = next((one for one in groups if _alike(one[0], room)), None)
        if group is None:
            groups.append([room])
        else:
            group.append(room)
    for group in groups:
        room = group[0]
        left = f"{room.headroom_mib / 1024:.1f}"
        names = ", ".join(one.gpu for one in group)
        table.add_row(names, f"{room.usable_mib / 1024:.1f}", "yes" if room.fits else "no", left, *_fewest(room))
    return table


def _alike(one: Room, other: Room) -> bool:
    same = (one.fits, one.fewest, one.nvlink) == (other.fits, other.fewest, other.nvlink)
    return same and other.usable_mib - one.usable_mib <= one.usable_mib * _ALIKE_PERCENT // 100


def _fewest(room: Room) -> tuple[str, ...]:
    if room.fewest is None:
        return ("-", "does not fit", "", "", "")
    link = "" if room.fewest.tp == 1 else "yes" if room.nvlink else "no"
    layout = _layout(room.fewest).strip(" ()") or "1 GPU"
    return (str(room.fewest.gpus), layout, link, str(room.largest_context), str(room.largest_batch))


def _slices(answer: Memory) -> Table:
    """The smallest profile of each card that holds it, where one GPU does."""
    table = _table("MIG profile", "of", "GiB >", "left GiB >", "on a card >")
    cards: dict[Slice, list[str]] = {}
    for room in answer.gpus:
        smallest = next((one for one in room.mig if one.fits and one.most > 1), None)
        if smallest is not None:
            cards.setdefault(smallest, []).append(room.gpu)
    for one, names in cards.items():
        sizes = (f"{one.memory_mib / 1024:.1f}", f"{one.headroom_mib / 1024:.1f}", str(one.most))
        table.add_row(one.profile, ", ".join(names), *sizes)
    return table
