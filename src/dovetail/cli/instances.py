# SPDX-License-Identifier: Apache-2.0
"""`dovetail instances`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from dovetail.advice.instances import InstanceRequest, Ranking, rank
from dovetail.advice.interruptions import Interrupted
from dovetail.advice.memory import Need
from dovetail.advice.price_refresh import refreshed
from dovetail.advice.price_table import PriceError
from dovetail.advice.prices import BUILT_IN, CloudInstance, built_in_text, read
from dovetail.cli.answer_form import AnswerForm, answer_option, write_answer
from dovetail.cli.console import Console, Table, right
from dovetail.cli.files import text_of
from dovetail.cli.output import count
from dovetail.cli.quantities import DurationParam
from dovetail.cli.shape import beside_options
from dovetail.core.json_text import JsonError, decode_json

_NUMBER = click.IntRange(1, 1 << 16)
_OF_NEED = {"gpus": "--gpus", "gpu_memory": "--gpu-memory-mib", "nvlink": "--nvlink", "nodes": "--nodes"}
_OF_SPOT = {"save": "--save", "restart": "--restart", "mtbi": "--mtbi"}
_TEXT = "utf-8-sig"
_OPTION = {"form": "output", "gpu_memory": "gpu-memory-mib", "cpu_milli": "cpu", "memory_bytes": "memory"}
"""Options of another name than their parameter."""


class _Sizes(msgspec.Struct, forbid_unknown_fields=True):
    gpus: int
    memory_per_gpu_mib: int
    nvlink: bool
    nodes: int
    host_memory_mib: int = 0


class _Answer(msgspec.Struct):
    need: _Sizes


@click.command(name="instances")
@click.option("--need", metavar="FILE", help="What `dovetail memory -o json` printed; - for standard input.")
@click.option("--gpus", type=_NUMBER, default=1, show_default=True, help="Number of GPUs in all.")
@click.option(
    "--gpu-memory-mib",
    "gpu_memory",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Usable memory that each GPU must have, in MiB.",
)
@click.option("--nvlink", is_flag=True, help="Require NVLink between the GPUs of an instance.")
@click.option("--nodes", type=_NUMBER, help="The most instances. Default: 1 with --nvlink, else any number.")
@click.option("--rdma", is_flag=True, help="Require RDMA (EFA, InfiniBand, RoCE, GPUDirect-TCPX).")
@beside_options
@click.option("--cloud", default="", help="Only instances of this cloud.")
@click.option("--region", default="", help="Only instances with a price in this region.")
@click.option("--interruptible", is_flag=True, help="Rank spot instances too. Needs --save, --restart and --mtbi.")
@click.option("--save", type=DurationParam(), help="Time that the job takes to save a checkpoint.")
@click.option("--restart", type=DurationParam(0), help="Time from an interruption until the job resumes.")
@click.option("--mtbi", type=DurationParam(), help="Mean time between interruptions of one instance.")
@click.option("--prices", metavar="FILE", help="A CSV file with your own prices. Default: the built-in table.")
@click.option(
    "--refresh",
    metavar="FILE",
    help="Rank nothing: print the table with the newer prices of this file: CSV, or an answer of AWS or Azure.",
)
@answer_option
@click.pass_context
def command(ctx: click.Context, /, form: AnswerForm, **options: Any) -> None:
    """Rank cloud instances by dollars per useful GPU-hour, and show why each other one is passed over.

    Prices are list prices of the date that is printed with each; they can be out of date. Needs no cluster and no
    network.
    """  # fmt: skip
    used = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    try:
        if options["refresh"]:
            _refresh(options["refresh"], options["prices"], used)
            return
        wanted = _wanted(used, options)
        offered = read(*_table(options["prices"]))
    except PriceError as error:
        raise click.ClickException(str(error)) from error
    _check_names(offered, wanted)
    found = rank(offered, wanted)
    if form.whole:
        write_answer(form, "InstanceRanking", found)
    else:
        _show(found)


def _table(prices: str | None) -> tuple[str, str]:
    """The table as CSV, and the name of its file."""
    return (text_of(prices, _TEXT), prices) if prices else (built_in_text(), BUILT_IN)


def _refresh(newer: str, prices: str | None, used: set[str]) -> None:
    """Prints the table on standard output, and what has changed on standard error."""
    if others := sorted(used - {"refresh", "prices"}):
        raise click.UsageError(f"--refresh ranks nothing: remove --{_OPTION.get(others[0], others[0])}")
    if newer == prices == "-":
        raise click.UsageError("--refresh and --prices cannot both be standard input")
    found = refreshed(*_table(prices), text_of(newer, _TEXT), newer, _day_of(newer))
    click.echo(found.text, nl=False)
    kept = f"{count(found.kept, 'line')} kept, the oldest of {found.oldest}" if found.kept else "none kept"
    left_out = f" Left out: {count(found.left_out, 'type')} that the table lacks." if found.left_out else ""
    click.echo(f"{count(found.replaced, 'line')} replaced, {found.added} added, {kept}.{left_out}", err=True)


def _day_of(file: str) -> str:
    """The date of the last change of a file, in UTC; of standard input today."""
    from datetime import UTC, datetime

    changed = datetime.now(UTC) if file == "-" else datetime.fromtimestamp(Path(file).stat().st_mtime, UTC)
    return changed.date().isoformat()


def _wanted(used: set[str], options: dict[str, Any]) -> InstanceRequest:
    both = [option for name, option in _OF_NEED.items() if name in used]
    if options["need"] and both:
        raise click.UsageError(f"--need and {both[0]} set the same value: use one of them")
    if options["need"] == options["prices"] == "-":
        raise click.UsageError("--need and --prices cannot both be standard input")
    spot = [option for name, option in _OF_SPOT.items() if options[name] is not None]
    if spot and not options["interruptible"]:
        raise click.UsageError(f"{spot[0]} is for spot instances: add --interruptible")
    if options["interruptible"] and len(spot) < len(_OF_SPOT):
        lacks = next(option for option in _OF_SPOT.values() if option not in spot)
        raise click.UsageError(f"--interruptible needs {lacks}: the cost of an interruption depends on it")
    need = _need(options["need"]) if options["need"] else None
    if need is None:
        nodes = options["nodes"] or (1 if options["nvlink"] else options["gpus"])
        need = Need(options["gpus"], options["gpu_memory"], options["nvlink"], nodes)
    if need.nodes > need.gpus:
        raise click.UsageError(f"{count(need.gpus, 'GPU')} cannot be divided among {need.nodes} instances")
    interrupted = Interrupted(options["save"], options["restart"], options["mtbi"]) if spot else None
    # --memory is for each GPU, the need of a plan for each node.
    of_host = -(-need.host_memory_mib * need.nodes // need.gpus)
    host_mib = max(-(-options["memory_bytes"] // (1 << 20)), of_host)
    return InstanceRequest(
        need.gpus, need.memory_per_gpu_mib, need.nvlink, need.nodes, options["rdma"], options["cpu_milli"], host_mib,
        options["cloud"], options["region"], interrupted,
    )  # fmt: skip


def _need(file: str) -> Need:
    try:
        need = decode_json(text_of(file, _TEXT), _Answer).need
    except JsonError as error:
        raise click.ClickException(f"{file}: not an answer of `dovetail memory -o json`: {error}") from error
    for field, least in (("gpus", 1), ("memory_per_gpu_mib", 0), ("nodes", 1), ("host_memory_mib", 0)):
        if getattr(need, field) < least:
            raise click.ClickException(f"{file}: need.{field} is {getattr(need, field)}; it must be at least {least}")
    return Need(need.gpus, need.memory_per_gpu_mib, need.nvlink, need.nodes, need.host_memory_mib)


def _check_names(offered: tuple[CloudInstance, ...], wanted: InstanceRequest) -> None:
    """Raises UsageError for a cloud or a region without a price."""
    for option, name, of in (("cloud", wanted.cloud, "cloud"), ("region", wanted.region, "region")):
        known = sorted({getattr(one, of) for one in offered} - {""})
        if name and name not in known:
            raise click.UsageError(f"--{option}: there is no price of {name!r}; known are {', '.join(known)}")


def _show(found: Ranking) -> None:
    console = Console(markup=False)
    wanted = found.wanted
    most = f", on at most {count(wanted.nodes, 'instance')}" if wanted.nodes < wanted.gpus else ""
    links = ", NVLink" * wanted.nvlink + ", RDMA" * wanted.rdma
    memory = f" with {wanted.memory_per_gpu_mib} MiB usable each" if wanted.memory_per_gpu_mib else ""
    host = f", {wanted.memory_mib_per_gpu} MiB of host memory per GPU" if wanted.memory_mib_per_gpu else ""
    console.print(
        f"Needed: {count(wanted.gpus, 'GPU')}{memory}{most}{links}{host}. {count(len(found.options), 'option')}."
    )
    if found.options:
        numbers = map(right, ("$/useful GPU-h", "$/h", "idle GPUs", "slower"))
        table = Table(*numbers, "instances", "GPU", "market", "region", "price of")
        for one in found.options:
            table.add_row(
                _dollars(one.micro_usd_per_useful), _dollars(one.micro_usd_per_hour), str(one.idle_gpus),
                f"x{one.slowdown:.2f}", f"{one.count} x {one.instance_type}", one.gpu_model,
                "spot" if one.spot else "on demand", f"{one.cloud} {one.region}", one.price_date,
            )  # fmt: skip
        console.print(table)
    if found.passed_over:
        console.print("\nPassed over:")
        by_reason: dict[tuple[str, str], list[str]] = {}
        for over in found.passed_over:
            name = f"{over.instance_type} (spot)" if over.spot else over.instance_type
            by_reason.setdefault((over.cloud, over.reason), []).append(name)
        for (cloud, reason), names in by_reason.items():
            console.print(f"- {reason}: {cloud} {', '.join(names)}")


def _dollars(micro_usd: int) -> str:
    return f"{micro_usd / 10**6:.3f}"
