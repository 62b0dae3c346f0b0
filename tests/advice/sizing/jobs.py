# SPDX-License-Identifier: Apache-2.0
"""Jobs as they are seen over a window, for tests of the rules."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.advice.sizing.market import NO_MARKET, Market
from dovetail.advice.sizing.seen import JobSeen
from dovetail.history.job_use import DeviceUse, JobUse
from dovetail.history.records import HOUR_MS, USE_BINS, GpuSpan, HoldKind, Period, PodRecord

H100, A100, T4, L4 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "Tesla-T4", "NVIDIA-L4"
HOURS = 8 * 24
BUSY = {"sm": 800, "tensor": 600, "dram": 400, "engine": 950, "utilization": 1000}
QUIET = {"sm": 100, "tensor": 50, "dram": 100, "engine": 300, "utilization": 300}
"""Activities, in thousandths."""


def bins(*parts: tuple[int, int]) -> tuple[int, ...]:
    """A histogram of hours: (real use in thousandths, hours)."""
    found = [0] * USE_BINS
    for use, hours in parts:
        found[min(use // 50, USE_BINS - 1)] += hours * HOUR_MS
    return tuple(found)


def device(
    use: Sequence[tuple[int, int]] = ((120, HOURS),), activity: dict[str, int] | None = None, *, run: int = 0,
    pod: str = "p0", gpu: str = "g0", model: str = H100, peak_mib: int = 8 * 1024, place: GpuSpan | None = None,
    kind: HoldKind = "whole", **more: int,
) -> DeviceUse:  # fmt: skip
    """A GPU that was held and measured for HOURS: (real use in thousandths, hours)."""
    measured_ms = sum(hours for _, hours in use) * HOUR_MS
    idle_ms = sum(hours for value, hours in use if value < 50) * HOUR_MS
    integrals = {name: value * measured_ms for name, value in (activity or QUIET).items()}
    return DeviceUse(
        run, pod, gpu, model, kind, 1000 if kind == "whole" else 250, more.get("held_ms", HOURS * HOUR_MS), measured_ms,
        sum(value * hours for value, hours in use) * HOUR_MS, more.get("idle_ms", idle_ms), more.get("gap_ms", 0),
        more.get("hung_ms", 0), peak_mib, bins(*use), integrals, frozenset(range(-(-measured_ms // (24 * HOUR_MS)))),
        place,
    )  # fmt: skip


def job(
    *devices: DeviceUse,
    kind: str = "Job",
    name: str = "train",
    models: Sequence[str] = (),
    market: Market = NO_MARKET,
    pod: dict[str, int] | None = None,
    **more: object,
) -> JobSeen:
    """A job of these devices, all held at the same time unless they are of several runs."""
    pods = {one.pod_uid for one in devices}
    runs = len({one.run for one in devices})
    latest = PodRecord("p0", "ml", f"{name}-0", name, kind, user="ada", queue="research", **(pod or {}))  # type: ignore[arg-type]
    known: dict[str, object] = {
        "spot": False, "interrupted": 0, "messages": (), "spot_models": frozenset(), **more,
    }  # fmt: skip
    spot_models = frozenset(known.pop("spot_models"))  # type: ignore[call-overload]
    use = JobUse(
        "ml", name, latest, Period(0, HOURS * HOUR_MS * runs), runs, len(pods), devices,
        sum(one.milli * one.held_ms for one in devices), HOURS * HOUR_MS * runs,
        max(sum(other.pod_uid == one.pod_uid for other in devices) for one in devices), **known,  # type: ignore[arg-type]
    )  # fmt: skip
    return JobSeen(use, frozenset((*models, *(one.model for one in devices))), spot_models, market)


def gpus(number: int, *args: object, per_pod: bool = True, **more: object) -> list[DeviceUse]:
    """So many equal GPUs, of one pod or each of its own."""
    return [
        device(*args, gpu=f"g{i}", pod="p0" if per_pod else f"p{i}", **more)  # type: ignore[arg-type]
        for i in range(number)
    ]
