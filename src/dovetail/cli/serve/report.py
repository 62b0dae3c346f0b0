# SPDX-License-Identifier: Apache-2.0
"""The text answer of `dovetail serve plan`."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.serve.types import ALL, RejectedOption, RolePlan, ServePlan, ServingOption
from dovetail.cli.console import Console, Table, right
from dovetail.cli.output import count
from dovetail.cli.serve.trace_report import show_simulation

_MICRO = 10**6
_MOST_PLANS, _MOST_REJECTED = 10, 15


def show(answer: ServePlan) -> None:
    """Print the plans, and what was rejected."""
    console = Console(markup=False)
    for line in _head(answer):
        console.print(line)
    shown = answer.options[:_MOST_PLANS]
    if shown:
        console.print("")
        console.print(_plans(shown))
        console.print("")
        console.print(_roles(shown))
        if len(answer.options) > len(shown):
            console.print(f"and {count(len(answer.options) - len(shown), 'plan')} more: -o json has them all")
        console.print("")
        console.print(f"choice: {answer.choice}.")
        console.print(
            "error: the median error of tokens/s against published measurements of the engine; times are of the same "
            "roofline. TTFT and TPOT: times to the first and per further token."
        )
    else:
        console.print("No plan holds the wanted times on these GPUs.")
        if answer.nearest:
            console.print(f"The model does not fit. Nearest that holds it: {answer.nearest}.")
    if answer.simulation is not None:
        show_simulation(answer.simulation, console)
    for note in answer.notes:
        console.print(f"note: {note}")
    if answer.rejected:
        console.print("\nRejected:")
        lines = list(_rejected(answer.rejected))
        for line in lines[:_MOST_REJECTED]:
            console.print(f"- {line}")
        if len(lines) > _MOST_REJECTED:
            console.print(f"- and {len(lines) - _MOST_REJECTED} more reasons: -o json has them all")


def _head(answer: ServePlan) -> Iterator[str]:
    wanted = answer.wanted
    lengths = wanted.lengths
    of = f" (means of {count(lengths.requests, 'request')})" if lengths.requests else ""
    reuse = f", {wanted.reuse_percent} % of each prompt cached" if wanted.reuse_percent else ""
    yield (
        f"{answer.model}: {wanted.rate:g} requests/s of {lengths.input:.0f} + {lengths.output:.0f} tokens{of}, up to "
        f"{lengths.longest} tokens{reuse}"
    )
    lora = f", {count(wanted.adapters, 'LoRA adapter')} of rank {wanted.adapter_rank}" if wanted.adapters else ""
    yield (
        f"weights in {wanted.weights}, KV cache in {wanted.cache}{lora}; wanted: TTFT {wanted.ttft_ms} ms, "
        f"TPOT {wanted.tpot_us / 1000:g} ms"
    )


def _plans(options: tuple[ServingOption, ...]) -> Table:
    numbers = ("GPUs", "TTFT ms", "TPOT ms", "tokens/s", "error %", "start s", "$/h", "$/million tokens")
    table = Table(right("plan"), "engine", "mode", "GPU", *map(right, numbers))
    for number, one in enumerate(options, 1):
        table.add_row(
            str(number), one.engine, one.mode, one.gpu, str(one.gpus), str(one.ttft_ms), f"{one.tpot_us / 1000:.1f}",
            str(one.tokens_per_s), str(one.error_percent), str(one.start_s), _dollars(one.micro_usd_per_hour),
            _dollars(one.micro_usd_per_million_tokens),
        )  # fmt: skip
    return table


def _roles(options: tuple[ServingOption, ...]) -> Table:
    numbers = ("replicas", "GPUs each", "KV tokens", "sequences up to", "running")
    table = Table(right("plan"), "role", "layout", *map(right, numbers))
    for number, one in enumerate(options, 1):
        for role in one.roles:
            table.add_row(str(number), *_role(role))
    return table


def _role(role: RolePlan) -> tuple[str, ...]:
    name = "prefill and decode" if role.role == ALL else role.role
    sequences = str(role.concurrency) if role.concurrency else "-"
    return (
        name, str(role.layout), str(role.replicas), str(role.gpus_each), str(role.kv_tokens), sequences,
        str(role.running),
    )  # fmt: skip


def _rejected(rejected: tuple[RejectedOption, ...]) -> Iterator[str]:
    """By reason, the GPU models, layouts, engines and modes that share it."""
    sharing: dict[tuple[str, str, str], list[str]] = {}
    for one in rejected:
        sharing.setdefault((one.reason, one.gpu, one.layout), []).append(f"{one.engine} {one.mode}")
    layouts: dict[tuple[str, str, str], list[str]] = {}
    for (reason, gpu, layout), engines in sharing.items():
        layouts.setdefault((reason, gpu, ", ".join(engines)), []).append(layout)
    gpus: dict[tuple[str, str, str], list[str]] = {}
    for (reason, gpu, shared_by), found in layouts.items():
        gpus.setdefault((reason, ", ".join(filter(None, found)), shared_by), []).append(gpu)
    for (reason, which, shared_by), models in gpus.items():
        yield f"{' '.join(filter(None, (', '.join(models), which)))}: {reason} ({shared_by})"


def _dollars(micro_usd: int | None) -> str:
    return "?" if micro_usd is None else f"{micro_usd / _MICRO:.2f}"
