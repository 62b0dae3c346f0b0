# SPDX-License-Identifier: Apache-2.0
"""The text answer of `dovetail memory`: the parts of one GPU, the GPUs and MIG profiles that hold them, and the list of
built-in models."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import fields

from dovetail.advice import catalog
from dovetail.advice.config import read
from dovetail.advice.layout import ParallelLayout
from dovetail.advice.memory import MemoryEstimate, MemoryRoom, MigSliceFit
from dovetail.advice.serving import Serving
from dovetail.cli.answer_form import AnswerForm, write_answer
from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.markup import escape
from dovetail.cli.output import count

_SAME_ROW_PERCENT = 3
_NAMES = ("GPU", "of")
_GIB, _GB = 1 << 30, 10**9
_OF_HOST = {
    "loading": "while weights are loaded",
    "optimizer": "optimizer, offloaded",
    "pinned": "its pinned buffers",
    "shared_memory": "/dev/shm",
    "processes": "processes",
}


class KnownModel(Struct, frozen=True):
    """A built-in model, with the numbers of its parameters and of those that compute each token. `date` is its month of
    publication."""

    name: str
    source: str
    licence: str
    date: str
    parameters: int
    active: int


def show_models(form: AnswerForm) -> None:
    """Print the built-in models."""
    models = [(entry, read(entry.config)) for entry in catalog.entries()]
    if form.whole:
        known = [KnownModel(one.name, one.source, one.licence, one.date, m.parameters, m.active) for one, m in models]
        write_answer(form, "KnownModel", known)
        return
    table = _table("model", "parameters >", "active >", "context >", "published", "licence", "source")
    for entry, model in models:
        sizes = (f"{model.parameters / _GB:.2f} B", f"{model.active / _GB:.2f} B", str(model.max_context or "-"))
        table.add_row(entry.name, *sizes, entry.date, entry.licence, entry.source)
    Console().print(table)


def show(answer: MemoryEstimate) -> None:
    """Print the estimate."""
    console = Console()

    def put(what: str | Table) -> None:
        console.print(escape(what) if isinstance(what, str) else what)

    for line in _head(answer):
        put(line)
    put("")
    put(_parts(answer))
    put(f"GiB are 2^30 bytes, GB 10^9. A GPU must have {answer.need.memory_per_gpu_mib} MiB usable to hold it.")
    put("")
    put(_host(answer))
    if answer.host.shared_memory:
        put("/dev/shm: an emptyDir of medium Memory, which the memory limit counts; without it a container has 64 MiB.")
    put("")
    put(_rooms(answer))
    put(f"holds it, left: {_on(answer)}, as above.")
    put(
        "fewest, as: the fewest GPUs that hold it, and their layout. up to: the largest there, with all else unchanged."
    )
    slices = _slices(answer)
    if slices.row_count:
        put("")
        put(slices)
    for note in answer.notes:
        put(f"note: {note}")


def _head(answer: MemoryEstimate) -> Iterator[str]:
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
    where = " in host memory" * plan.offload
    yield f"{what}: {plan.optimizer}{where}, {plan.precision}, {divided}, checkpointing {plan.checkpointing}"


def _on(answer: MemoryEstimate) -> str:
    """`on 8 GPUs (TP 8)`: the layout of the parts."""
    return f"on {count(answer.layout.gpus, 'GPU')}{_layout(answer.layout)}"


def _layout(layout: ParallelLayout) -> str:
    """` (TP 8 x PP 2)`; empty for one GPU."""
    dimensions = (("TP", layout.tp), ("PP", layout.pp), ("DP", layout.dp))
    text = " x ".join(f"{name} {number}" for name, number in dimensions if number > 1)
    return f" ({text})" if text else ""


def _table(*columns: str) -> Table:
    """A table. A heading that ends in > is that of a column aligned to the right; columns of several GPU names wrap."""
    return Table(
        *(
            right(each.removesuffix(" >")) if each.endswith(" >") else prose(each) if each in _NAMES else each
            for each in columns
        )
    )


def _parts(answer: MemoryEstimate) -> Table:
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


def _host(answer: MemoryEstimate) -> Table:
    """The memory of the host, of one node."""
    table = _table("host of each node" if answer.need.nodes > 1 else "host", "GiB >", "GB >")
    for field in fields(answer.host):
        size = getattr(answer.host, field.name)
        if size:
            table.add_row(_OF_HOST[field.name], *_sizes(size))
    table.add_row("total at the peak", *_sizes(answer.host.total))
    return table


def _sizes(size: int) -> tuple[str, str]:
    return f"{size / _GIB:.2f}", f"{size / _GB:.2f}"


def _rooms(answer: MemoryEstimate) -> Table:
    """The GPUs, the least memory first. GPUs with the same answer share a row, with the numbers of the smallest."""
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
    groups: list[list[MemoryRoom]] = []
    for room in sorted(answer.gpus, key=lambda room: room.usable_mib):
        group = next((one for one in groups if _same_row(one[0], room)), None)
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


def _same_row(one: MemoryRoom, other: MemoryRoom) -> bool:
    same = (one.fits, one.fewest, one.nvlink) == (other.fits, other.fewest, other.nvlink)
    return same and other.usable_mib - one.usable_mib <= one.usable_mib * _SAME_ROW_PERCENT // 100


def _fewest(room: MemoryRoom) -> tuple[str, ...]:
    if room.fewest is None:
        return ("-", "does not fit", "", "", "")
    link = "" if room.fewest.tp == 1 else "yes" if room.nvlink else "no"
    layout = _layout(room.fewest).strip(" ()") or "1 GPU"
    return (str(room.fewest.gpus), layout, link, str(room.largest_context), str(room.largest_batch))


def _slices(answer: MemoryEstimate) -> Table:
    """The smallest MIG profile of each GPU that holds it, if it fits on one GPU."""
    table = _table("MIG profile", "of", "GiB >", "left GiB >", "per GPU >")
    cards: dict[MigSliceFit, list[str]] = {}
    for room in answer.gpus:
        smallest = next((one for one in room.mig if one.fits and one.most > 1), None)
        if smallest is not None:
            cards.setdefault(smallest, []).append(room.gpu)
    for one, names in cards.items():
        sizes = (f"{one.memory_mib / 1024:.1f}", f"{one.headroom_mib / 1024:.1f}", str(one.most))
        table.add_row(one.profile, ", ".join(names), *sizes)
    return table
