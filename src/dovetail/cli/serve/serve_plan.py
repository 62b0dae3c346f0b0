# SPDX-License-Identifier: Apache-2.0
"""`dovetail serve plan`."""

from __future__ import annotations

import re
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

import click
import msgspec

from dovetail.advice import catalog, gpus
from dovetail.advice.formats import FORMATS
from dovetail.advice.layout import PlanError
from dovetail.advice.price_table import PriceError
from dovetail.advice.prices import BUILT_IN, built_in_text, read
from dovetail.advice.serve.engines import ENGINES
from dovetail.advice.serve.offers import of_list, priced
from dovetail.advice.serve.request_lengths import (
    MOST_TOKENS,
    LengthsError,
    RequestLengths,
    fixed,
    lengths_of,
    read_lengths,
)
from dovetail.advice.serve.request_trace import RequestTrace, read_trace
from dovetail.advice.serve.types import CACHES, MODES, GpuOffer, ServeQuestion
from dovetail.advice.speeds import SPEEDS
from dovetail.cli.answer_form import YAML, AnswerForm, answer_option, write_answer
from dovetail.cli.files import text_of
from dovetail.cli.memory.memory import architecture_of
from dovetail.cli.output import progressing
from dovetail.core.json_text import decode_json

if TYPE_CHECKING:
    from dovetail.advice.architecture import Architecture
    from dovetail.advice.serve.types import ServePlan

_MOST_TRACE_BYTES = 64 << 20
_OFFER = re.compile(r"(\S+?)=([1-9][0-9]{0,4})x([1-9][0-9]{0,2})")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_TOKENS = click.IntRange(1, MOST_TOKENS)
_MICRO = 10**6


class _Rate(click.ParamType[Any]):
    """Requests per second, above 0."""

    name = "RATE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            found = float(value)
        except ValueError:
            found = 0.0
        if not 0 < found <= 1e6:
            self.fail(f"{value!r} is no rate: requests per second, above 0 and at most 1000000", param, ctx)
        return found


class _Positive(click.FloatRange):
    """A finite number above 0; inf and nan are in a FloatRange."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if not isfinite(found):
            self.fail(f"{value!r} is no number", param, ctx)
        return found


class _Offer(click.ParamType[Any]):
    """GPUs at hand: MODEL=NODESxGPUS."""

    name = "MODEL=NODESxGPUS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> GpuOffer:
        if isinstance(value, GpuOffer):
            return value
        match = _OFFER.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is not MODEL=NODESxGPUS, such as H100-SXM5=2x8: 2 nodes of 8 GPUs", param, ctx)
        found = gpus.find(match[1])
        known = ", ".join(gpu.model for gpu in gpus.GPUS if gpu.model in SPEEDS)
        if len(found) != 1 or found[0].model not in SPEEDS:
            what = "is several" if len(found) > 1 else "is not a GPU model with known speed"
            self.fail(f"{match[1]!r} {what}; known are {known}", param, ctx)
        return GpuOffer(found[0], int(match[2]), int(match[3]))


def _label(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """A name that Kubernetes takes as the value of a label and as a name. Raises BadParameter."""
    if not _LABEL.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no name: a-z, 0-9 and - inside, at most 63 characters")
    return value


_with_default = partial(click.option, show_default=True)


@click.command(name="plan")
@click.argument("model")
@click.option("--rate", type=_Rate(), help="Requests per second. Default with --trace: its busiest five minutes.")
@click.option("--input-tokens", "prompt", type=_TOKENS, help="Prompt tokens of a request.")
@click.option("--output-tokens", type=_TOKENS, help="Output tokens of a request.")
@click.option("--lengths", metavar="FILE", help="A trace with the lengths of requests instead; - for standard input.")
@click.option(
    "--trace", "traced", metavar="FILE",
    help="A trace with times and lengths of requests; the first plan is simulated with its first hour. - for stdin.",
)  # fmt: skip
@_with_default("--ttft-ms", type=click.IntRange(1, 10**7), default=1000, help="Wanted time to the first token.")
@_with_default("--tpot-ms", type=_Positive(0, 10**6, min_open=True), default=50, help="Wanted time per further token.")
@click.option("--gpus", "offers", type=_Offer(), multiple=True, help="GPUs at hand. Default: those of the price list.")
@click.option("--price-limit", type=_Positive(0, min_open=True), help="Dollars per hour at most.")
@click.option("--prices", metavar="FILE", help="A CSV file with your own prices. Default: the built-in table.")
@click.option(
    "--engine", "engines", type=click.Choice([one.name for one in ENGINES]), multiple=True,
    help="Only this engine. Default: all.",
)  # fmt: skip
@click.option("--mode", "modes", type=click.Choice(MODES), multiple=True, help="Only this mode. Default: both.")
@click.option("--weights", type=click.Choice([*FORMATS]), help="Format of the weights. Default: the checkpoint's.")
@_with_default("--kv-cache", type=click.Choice(CACHES), default="bf16", help="Format of the KV cache.")
@_with_default(
    "--reuse", type=click.IntRange(0, 99), default=0, metavar="PERCENT",
    help="Part of each prompt that is in the cache of prefixes.",
)  # fmt: skip
@_with_default(
    "--lora-adapters", "adapters", type=click.IntRange(0, 1 << 10), default=0, help="LoRA adapters held at a time."
)
@_with_default("--lora-rank", "adapter_rank", type=click.IntRange(1, 512), default=16, help="Rank of the adapters.")
@click.option("--context", type=_TOKENS, help="Longest request in tokens. Default: that of the lengths.")
@click.option("--tp", type=click.IntRange(1, 1 << 10), help="Tensor-parallel ranks. Default: chosen.")
@click.option("--pp", type=click.IntRange(1, 16), help="Pipeline stages. Default: chosen.")
@_with_default(
    "--load-rate", type=click.IntRange(1, 1 << 20), default=2000, metavar="MB/S",
    help="Rate at which a node reads weights.",
)  # fmt: skip
@_with_default(
    "--transfer-rate", type=click.IntRange(1, 1 << 20), default=50_000, metavar="MB/S",
    help="Rate at which a GPU sends its KV cache to another node.",
)  # fmt: skip
@click.option("--checkpoint", help="With -o yaml: the checkpoint to serve. Default: that of MODEL.")
@_with_default("--team", callback=_label, default="serving", help="With -o yaml: the team that owns the objects.")
@_with_default("--priority-class", callback=_label, default="serving", help="With -o yaml: the priority class of pods.")
@answer_option
def command(model: str, form: AnswerForm, **options: Any) -> None:
    """Plan how MODEL is served: engine, parallelism, replicas, prefill and decode, latencies, start-up and cost.

    MODEL is a Hugging Face config.json, a folder with one, or a built-in model (`dovetail memory --list`). Times and
    throughput are computed by a roofline, whose error is printed. -o yaml writes the objects of the first plan. Needs
    no cluster, no GPU and no network.

    Exit code 0, also if nothing holds the wanted times. 1: a file cannot be read, or -o yaml has no plan. 2: wrong
    usage.
    """
    from dovetail.advice.serve.plan import plan
    from dovetail.cli.serve.report import show

    architecture, name = architecture_of(model)
    trace = _trace(options)
    asked = _question(architecture, name, options, trace)
    try:
        answer = plan(asked)
    except PlanError as error:
        raise click.UsageError(str(error)) from error
    if trace is not None and form.output != YAML:
        from dovetail.advice.serve.traced import simulated

        with progressing("simulating") as watch:
            answer = simulated(asked, answer, trace, watch)
    if form.output == YAML:
        _write_objects(answer, asked, model, options)
    elif form.whole:
        write_answer(form, "ServePlan", answer)
    else:
        show(answer)


def _trace(options: dict[str, Any]) -> RequestTrace | None:
    """The requests of `--trace`. Raises UsageError, ClickException."""
    file = options["traced"]
    if file is None:
        if options["rate"] is None:
            raise click.UsageError("name the rate of requests: --rate, or a trace: --trace FILE")
        return None
    for option, name in (("prompt", "--input-tokens"), ("output_tokens", "--output-tokens"), ("lengths", "--lengths")):
        if options[option] is not None:
            raise click.UsageError(f"--trace has the lengths of requests: remove {name}")
    try:
        return read_trace(text_of(file, "utf-8-sig", _MOST_TRACE_BYTES), file)
    except LengthsError as error:
        raise click.ClickException(str(error)) from error


def _question(model: Architecture, name: str, options: dict[str, Any], trace: RequestTrace | None) -> ServeQuestion:
    if trace is None:
        lengths, rate = _lengths(options), options["rate"]
    else:
        lengths = lengths_of([(one.input, one.output) for one in trace.requests], options["traced"])
        rate = options["rate"] or trace.peak_rate
    if options["context"]:
        if options["context"] < lengths.longest:
            raise click.UsageError(
                f"--context {options['context']} is shorter than the longest request of {lengths.longest} tokens"
            )
        lengths = RequestLengths(lengths.input, lengths.output, lengths.input_p95, options["context"], lengths.requests)
    limit = options["price_limit"]
    return ServeQuestion(
        model, name, rate, lengths, options["ttft_ms"], round(options["tpot_ms"] * 1000), _offers(options),
        options["engines"] or tuple(one.name for one in ENGINES), options["modes"] or MODES,
        options["weights"] or model.weights, options["kv_cache"], options["reuse"],
        options["adapters"], options["adapter_rank"], options["tp"], options["pp"],
        None if limit is None else round(limit * _MICRO), options["load_rate"], options["transfer_rate"],
    )  # fmt: skip


def _lengths(options: dict[str, Any]) -> RequestLengths:
    prompt, output, file = options["prompt"], options["output_tokens"], options["lengths"]
    if file is None:
        if prompt is None or output is None:
            raise click.UsageError(
                "name the lengths of requests: --input-tokens and --output-tokens, or --lengths FILE"
            )
        return fixed(prompt, output)
    if prompt is not None or output is not None:
        raise click.UsageError("--lengths has the lengths of requests: remove --input-tokens and --output-tokens")
    try:
        return read_lengths(text_of(file, "utf-8-sig", _MOST_TRACE_BYTES), file)
    except LengthsError as error:
        raise click.ClickException(str(error)) from error


def _offers(options: dict[str, Any]) -> tuple[GpuOffer, ...]:
    file = options["prices"]
    try:
        known = read(text_of(file, "utf-8-sig"), file) if file else read(built_in_text(), BUILT_IN)
    except PriceError as error:
        raise click.ClickException(str(error)) from error
    offers: tuple[GpuOffer, ...] = options["offers"]
    return priced(offers, known) if offers else of_list(known)


def _write_objects(answer: ServePlan, asked: ServeQuestion, model: str, options: dict[str, Any]) -> None:
    import yaml

    from dovetail.advice.serve.manifests import ModelToServe, objects
    from dovetail.advice.serve.work import work_of

    if not answer.options:
        raise click.ClickException("no plan holds the wanted times: see what was rejected without -o yaml")
    entry = catalog.find(model)
    work = work_of(asked.model, asked.weights, asked.cache, asked.adapters, asked.adapter_rank)
    checkpoint = options["checkpoint"]
    served = ModelToServe(
        answer.model, checkpoint or (entry.source if entry else model),
        asked.weights if checkpoint else asked.model.weights, int(work.loaded_bytes), options["team"],
        options["priority_class"],
    )  # fmt: skip
    try:
        found = objects(answer.options[0], answer.wanted, served)
    except PlanError as error:
        raise click.ClickException(str(error)) from error
    # Decoded, so that no two objects share a part, which YAML would write as an alias.
    plain = decode_json(msgspec.json.encode(found), list[dict[str, Any]])
    click.echo(yaml.safe_dump_all(plain, sort_keys=False, width=120), nl=False)
