# SPDX-License-Identifier: Apache-2.0
"""What `dovetail free` prints."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import to_builtins

from dovetail.cli.columns import lacking
from dovetail.cli.console import Console, Table, prose, right
from dovetail.cli.markup import escape
from dovetail.cli.money import money, price_of, unpriced
from dovetail.cli.output import count, foreign, gpus
from dovetail.cli.stranded_prices import PricedFree, PricedShape, StrandedPrice
from dovetail.views.free_types import (
    FRAGMENTED,
    MIG,
    RULE,
    TOPOLOGY,
    Blocked,
    ClassDevices,
    FreeGpus,
    MigCards,
    SharedCards,
    StrandedGpus,
)
from dovetail.views.held_types import DEVICES, SHARE
from dovetail.views.shape_types import ANYWHERE, Largest

_LEVELS_SHOWN = 3
_NAMES_SHOWN = 4
_UNLABELLED = "GPUs without the label nvidia.com/gpu.product"
_ISOLATION = {
    "none": "time-slicing: pods are not isolated",
    "memory": "MPS: the memory of each pod is limited",
    "strong": "strongly isolated",
}


def show_shape(answer: PricedShape, console: Console) -> None:
    """Print the largest gangs of a shape."""
    shape = answer.shape
    each = f"{count(shape.gpus, 'GPU')} each"
    if shape.pods > 1:
        console.print(f"A gang of {shape.pods} pods of {each} {'starts' if answer.starts else 'does not start'} now.")
    for one in answer.models:
        console.print(f"{one.model or 'Any GPUs'}: the largest gang of pods of {each} that starts now")
        table = Table("inside", "pods", "GPUs", "where")
        for level in one.levels:
            inside = "the cluster" if level.level == ANYWHERE else f"one {level.level.rpartition('/')[2]}"
            named = f"{level.name}: " if level.name and level.nodes else level.name
            nodes = ", ".join(level.nodes[:_NAMES_SHOWN]) + (" ..." if len(level.nodes) > _NAMES_SHOWN else "")
            table.add_row(inside, str(level.pods), str(level.pods * shape.gpus), foreign(named + nodes))
        console.print(table)
        for line in _next_sizes(one):
            console.print(foreign(line))
    _show_stranded(answer.stranded, answer.price, f"pods of {each}", console)


def _show_stranded(found: StrandedGpus | None, price: StrandedPrice | None, pods: str, console: Console) -> None:
    """Print the free GPUs that no such pods can use, and what they cost."""
    if found is None or price is None or not found.free_milli:
        return
    part = f"{gpus(found.stranded_milli)} of {gpus(found.free_milli)} free GPUs"
    if not found.stranded_milli:
        console.print(f"\nNo free GPU is stranded: {pods} fit on all {gpus(found.free_milli)}.")
        return
    cost = ""
    if price.per_hour_micro is not None and price.per_30d_micro is not None:
        hour, month = money(price.per_hour_micro, price.currency), money(price.per_30d_micro, price.currency)
        cost = f", which cost {hour} an hour, {month} in 30 days"
    console.print(f"\n{foreign(f'Stranded: {pods} cannot use {part}{cost}.')}")
    table = Table("model", prose("why they cannot be used"), right("GPUs"), right("nodes"), right("an hour"))
    for one in price.rows:
        hour = money(one.per_hour_micro, price.currency) if one.per_hour_micro is not None else "-"
        cause = _CAUSES.get(one.cause, "the node has no more {cause}").format(**to_builtins(one))
        table.add_row(foreign(one.model) or "-", foreign(cause), gpus(one.gpus_milli), str(one.nodes), hour)
    console.print(table)
    priced = {(one.price_source, one.price_date): one for one in price.rows if one.per_hour_micro is not None}
    lines = [f"{price_of(one).capitalize()}." for one in priced.values()]
    without = {(one.model, one.why): one for one in price.rows if one.per_hour_micro is None}
    lines += [f"No price of {one.model or 'GPUs of an unknown model'}: {unpriced(one)}" for one in without.values()]
    if found.left_out:
        lines.append(f"{count(found.left_out, 'shape')} of waiting pods are left out.")
    for line in lines:
        console.print(foreign(line))


_CAUSES = {
    FRAGMENTED: "fragmented: fewer than the {gpus} of a pod",
    "cpu": "the node is short of CPU beside them",
    "memory": "the node is short of memory beside them",
    TOPOLOGY: "not in one NVLink or NUMA domain",
    RULE: "{detail}",
    MIG: "slices of MIG that no waiting profile can get",
}


def _next_sizes(found: Largest) -> Iterator[str]:
    """What blocks one more pod at each level; the same cause only once."""
    printed = set()
    for level in found.levels:
        if level.blocked is not None and level.blocked not in printed:
            printed.add(level.blocked)
            where = "" if level.level == ANYWHERE else f" in {level.name}"
            yield from _blocked(f"{count(level.pods + 1, 'pod')}{where}", level.blocked)


def show(answer: PricedFree, console: Console) -> None:
    """Print what still fits."""
    blocks = [_gpus(one) for one in answer.gpus]
    blocks += [_mig(one) for one in answer.mig]
    blocks += [_shared(one) for one in answer.shared]
    if answer.classes:
        blocks.append(_classes(answer.classes))
    if not blocks:
        console.print("No node offers GPUs, and there are no device classes.")
    for i, block in enumerate(blocks):
        if i:
            console.print()
        for part in block:
            console.print(foreign(part) if isinstance(part, str) else part)
    _show_stranded(answer.stranded, answer.price, "the waiting pods", console)


_Block = Iterator[str | Table]


def _gpus(found: FreeGpus) -> _Block:
    yield (
        f"{found.model or _UNLABELLED}: {found.free} of {found.gpus} GPUs on {count(found.nodes, 'node')} are free"
        f"{_closed(found.closed)}{_spare(found.spare)}; "
        f"largest pod: {found.largest}, or {found.largest_when_empty} on an empty cluster"
    )
    levels = [domain.level for domain in found.sizes[0].domains][-_LEVELS_SHOWN:] if found.sizes else []
    table = Table("GPUs per pod", "pods now", *(f"in one {level.rpartition('/')[2]}" for level in levels))
    for size in found.sizes:
        best = {domain.level: domain for domain in size.domains}
        cells = [f"{best[level].pods} ({best[level].name})" if best[level].pods else "0" for level in levels]
        table.add_row(str(size.gpus), str(size.pods), *map(escape, cells))
    if found.sizes:
        yield table
    for size in found.sizes:
        if size.blocked is not None:
            yield from _blocked(count(size.gpus, "GPU"), size.blocked)
            break


def _mig(found: MigCards) -> _Block:
    if found.cards:
        yield (
            f"MIG {found.model}: {count(found.cards, 'GPU')} on {count(found.nodes, 'node')}{_closed(found.closed)}"
            f"; pods hold {found.compute_held} of {found.compute} compute slices and {found.memory_held} of "
            f"{found.memory} memory slices"
        )
    else:
        yield f"MIG {found.model or _UNLABELLED}: {count(found.nodes, 'node')}, only the number of instances is known"
    table = Table("profile", "compute, memory slices", "instances", "free", "most on one node")
    for row in found.profiles:
        slices = f"{row.compute}, {row.memory}" if row.compute is not None else "not known"
        table.add_row(row.profile, slices, str(row.instances), str(row.free), str(row.most_on_one_node))
    yield table
    for row in found.profiles:
        if row.blocked is not None:
            yield from _blocked(row.profile, row.blocked)


def _shared(found: SharedCards) -> _Block:
    what = f"{count(found.cards, 'GPU')} on" if found.cards else "replicas of an unknown number of GPUs on"
    yield (
        f"Shared {found.model or _UNLABELLED} as {found.resource}: {what} {count(found.nodes, 'node')}"
        f"{_closed(found.closed)}; {_ISOLATION[found.isolation]}"
    )
    memory = f" ({found.largest_mib} MiB)" if found.largest_mib else ""
    largest = f"; largest free share: {found.largest_milli}/1000{memory}" if found.cards else ""
    yield f"{found.replicas_free} of {found.replicas} replicas are free{largest}"
    if found.shares:
        table = Table("share of a GPU", "pods now")
        for share in found.shares:
            table.add_row(f"{share.milli}/1000", str(share.pods))
        yield table
    for share in found.shares:
        if share.blocked is not None:
            yield from _blocked(f"{share.milli}/1000", share.blocked)
            break


def _classes(found: tuple[ClassDevices, ...]) -> _Block:
    table = Table("device class", "nodes", "devices", "free", "most on one node")
    for one in found:
        table.add_row(one.name, *map(str, (one.nodes, one.devices, one.free, one.most_on_one_node)))
    yield table
    for one in found:
        if one.problem:
            yield f"{one.name}: {one.problem}"
        if one.blocked is not None:
            yield from _blocked(f"{one.most_on_one_node + 1} of {one.name}", one.blocked)


def _blocked(size: str, blocked: Blocked) -> Iterator[str]:
    """What blocks a size, in one or a few lines."""
    if blocked.node and blocked.missing:
        # The holders of devices by claim are printed with each device.
        shown = blocked.holders[:_NAMES_SHOWN] if blocked.lacking != DEVICES else ()
        held = "; ".join(f"{one.pod} holds {_amount(one.amount, one.devices)}" for one in shown)
        yield f"next size, {size}: {blocked.node} lacks {lacking(blocked)}{f': {held}' if held else ''}"
    else:
        yield f"next size, {size}: {blocked.rule}"
    if blocked.repartition is not None:
        yield f"  a repartition of idle GPUs would make room: {blocked.repartition}"
    elif blocked.lacking != SHARE:
        for one in blocked.devices[:_NAMES_SHOWN]:
            held = f" (held by {', '.join(one.holders[:_NAMES_SHOWN])})" if one.holders else ""
            yield f"  {one.node} {', '.join(one.devices[:_NAMES_SHOWN])}: {one.rule}{held}"


def _amount(amount: str, devices: tuple[str, ...]) -> str:
    some = ", ".join(devices[:_NAMES_SHOWN]) + (" ..." if len(devices) > _NAMES_SHOWN else "")
    return f"{amount} ({some})" if devices else amount


def _spare(number: int) -> str:
    return f", {number} on spare nodes" if number else ""


def _closed(number: int) -> str:
    return f", {number} of them on closed nodes" if number else ""
