# SPDX-License-Identifier: Apache-2.0
"""Cloud instances that meet a request, ranked by dollars per useful GPU-hour, and the reason against each other one.

A useful GPU-hour is an hour of one requested GPU in which the job makes progress. Its price includes the cost of GPUs
that are bought but not needed and, on spot, of the time to save, restart and repeat work.

    dollars per useful GPU-hour = instances x price x slowdown / GPUs needed

The slowdown is 1 on demand. On spot it is that of `interruptions` at Daly's interval; instances are interrupted
independently, and one interruption stops the whole job. All GPU models count the same: their speed is not modelled.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isinf

from msgspec import Struct

from dovetail.advice.interruptions import Interrupted
from dovetail.advice.prices import CloudInstance
from dovetail.core.devices.products import BRIDGE


class InstanceRequest(Struct, frozen=True):
    """The request: `gpus` in all, on at most `nodes` instances; usable memory per GPU; whether NVLink must connect the
    GPUs of one instance; RDMA between instances; CPU and host memory per GPU; a cloud or region, "" for any.
    `interrupted` describes the interruptions of one spot instance; None: on demand only."""

    gpus: int
    memory_per_gpu_mib: int = 0
    nvlink: bool = False
    nodes: int = 1
    rdma: bool = False
    cpu_milli_per_gpu: int = 0
    memory_mib_per_gpu: int = 0
    cloud: str = ""
    region: str = ""
    interrupted: Interrupted | None = None


class InstanceOption(Struct, frozen=True):
    """`count` instances meet the request. Prices are in millionths of a dollar: `micro_usd_per_hour` for all instances,
    `micro_usd_per_useful` per useful GPU-hour. `idle_gpus` are bought but not needed."""

    cloud: str
    instance_type: str
    region: str
    gpu_model: str
    count: int
    spot: bool
    idle_gpus: int
    slowdown: float
    micro_usd_per_hour: int
    micro_usd_per_useful: int
    price_date: str
    source: str


class PassedOver(Struct, frozen=True):
    """An instance type that does not meet the request, or only not on `spot`; `reason` is the first rule that fails."""

    cloud: str
    instance_type: str
    region: str
    spot: bool
    reason: str


class Ranking(Struct, frozen=True):
    """`options` are sorted by dollars per useful GPU-hour; `passed_over` is in the order of the price file."""

    wanted: InstanceRequest
    options: tuple[InstanceOption, ...]
    passed_over: tuple[PassedOver, ...]


def rank(instances: Iterable[CloudInstance], wanted: InstanceRequest) -> Ranking:
    """Each instance is an option or passed over, once on demand and, if `wanted.interrupted` is set, once on spot."""
    options: list[InstanceOption] = []
    passed: list[PassedOver] = []
    for one in instances:
        reason = _unfit(one, wanted)
        for spot in (False, True) if wanted.interrupted and not reason else (False,):
            found = reason or _option(one, wanted, spot)
            if isinstance(found, InstanceOption):
                options.append(found)
            else:
                passed.append(PassedOver(one.cloud, one.instance_type, one.region, spot, found))
    options.sort(key=lambda o: (o.micro_usd_per_useful, o.idle_gpus, o.count, o.cloud, o.instance_type, o.spot))
    return Ranking(wanted, tuple(options), tuple(passed))


def _count(one: CloudInstance, wanted: InstanceRequest) -> int:
    return -(-wanted.gpus * 1000 // one.gpu_milli)


def _unfit(one: CloudInstance, wanted: InstanceRequest) -> str:
    """The first rule that the instance fails; "" if it meets the request."""
    if wanted.cloud and one.cloud != wanted.cloud:
        return f"is of {one.cloud}, not {wanted.cloud}"
    if wanted.region and one.region != wanted.region:
        return f"has its price in {one.region or 'no region'}, not {wanted.region}"
    if one.gpu_milli % 1000:
        return f"has {one.gpu_milli / 1000:g} of a GPU, and whole ones are needed"
    if one.usable_mib < wanted.memory_per_gpu_mib:
        return f"{one.usable_mib} MiB usable per {one.gpu_model}, {wanted.memory_per_gpu_mib} are needed"
    gpus, count = one.gpu_milli // 1000, _count(one, wanted)
    if count > wanted.nodes:
        least = -(-wanted.gpus // wanted.nodes)
        return f"has {gpus} of the {least} GPUs that each instance needs"
    together = -(-wanted.gpus // count)
    if wanted.nvlink and together > 1:
        if one.gpu is None:
            return f"whether {one.gpu_model} has NVLink is not known; name the model in full, such as H100-SXM5"
        if one.gpu.product.reach == BRIDGE:
            return f"{one.gpu_model} has NVLink only with a bridge between two cards, which price lists do not show"
        if not one.gpu.linked(together):
            return f"NVLink does not join {together} {one.gpu_model}"
    if wanted.rdma and not one.rdma:
        return "has no RDMA"
    if one.cpu_milli < wanted.cpu_milli_per_gpu * together:
        return f"has {one.cpu_milli / 1000:g} CPUs for {together} GPUs, {wanted.cpu_milli_per_gpu / 1000:g} each needed"
    if one.memory_mib < wanted.memory_mib_per_gpu * together:
        return f"has {one.memory_mib} MiB of host memory for {together} GPUs, {wanted.memory_mib_per_gpu} each needed"
    return ""


def _option(one: CloudInstance, wanted: InstanceRequest, spot: bool) -> InstanceOption | str:
    price = one.spot_micro_usd if spot else one.price_micro_usd
    if price is None:
        return f"no {'spot ' if spot else ''}price is known (table of {one.price_date})"
    count, slowdown = _count(one, wanted), 1.0
    if spot and wanted.interrupted:
        each = wanted.interrupted
        slowdown = Interrupted(each.save_s, each.restart_s, each.mtbi_s / count).best()
    useful = price * count * slowdown / wanted.gpus
    if isinf(useful):
        return f"is interrupted so often, {count} at a time, that nothing is ever finished"
    return InstanceOption(
        one.cloud, one.instance_type, one.region, one.gpu_model, count, spot,
        count * one.gpu_milli // 1000 - wanted.gpus, round(slowdown, 4), price * count, round(useful),
        one.price_date, one.source,
    )  # fmt: skip
