# SPDX-License-Identifier: Apache-2.0
"""What bounds the work on a GPU: one class for each GPU, from its activity over a window.

Rules
- The first class of `CLASSES` whose condition holds is the class. Thresholds are those of KempnerPulse
  (docs/classification.md, April 2026); they follow NVIDIA's guidance on profiling metrics. What the rules of
  Prometheus decide too, real use, idle and stragglers, is in the table of both: `monitoring.real_use`.
- Three classes compare a GPU with itself over time or with the other GPUs of its job, so they come first: a GPU that
  hangs, a straggler, and one that waits for communication.
- GPUs of one job that send over PCIe as much as they receive exchange with one another, over PCIe or a network: data
  that is loaded is only received. That shows at any rate, as it is low where the link is slow.
- Over a long window there are no samples in order, but the spread of real use. A spread shows that use stays as it is,
  or that it rises and falls, but not whether the GPUs of a job do that together.
- Activities are means over the window, in percent of the peak; None where the GPU does not report one. A condition on a
  value that is not reported does not hold. Without profiling values (before Hopper, without DCGM) the only classes are
  `idle`, `low` and `busy`, from the utilization that NVML reports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median, pstdev

from msgspec import Struct

from dovetail.monitoring.real_use import PARTS, SIGMA_BY_MAD, default, weighted

_GB = 1_000_000_000
_IO_BYTES_PER_S = 1 * _GB
_LINK_BYTES_PER_S = 5 * _GB
_HUNG_UTILIZATION, _HUNG_POWER = 95.0, 0.30
_EXCHANGE_BYTES_PER_S, _EXCHANGE_BALANCE = 3 * _GB // 10, 0.6
_FLAT_POINTS, _SWING_POINTS = 1.0, 10.0
_FLAT_SPREAD, _SWING_SPREAD = 2.5, 5.0
"""Half of a bin and a bin of the histograms of which spreads are; real use swings half as much as the SMs, or more."""
_FEWEST_SAMPLES = 4
IDLE = 100 * default("idle_util")
"""Percent of real use below which a GPU is idle."""
_STRAGGLER_POINTS, _STRAGGLER_SIGMA = 100 * default("straggler_gap"), default("straggler_sigma")
_FEWEST_MEMBERS = default("straggler_gpus")


class Activity(Struct, frozen=True, gc=False):
    """The activity of one GPU or MIG instance: means over a window, in percent.

    utilization: the share of time in which a kernel ran (NVML). memory_copy: that in which memory was read or written.
    engine: graphics engine active. sm: SMs with a warp. tensor, fp64: the pipes. dram: memory interface.
    pcie_bytes_s, nvlink_bytes_s: sent and received, bytes per second. pcie_balance: the smaller of both over PCIe as a
    part of the larger, 0 to 1. power: the share of the power limit.
    sm_samples: the samples of `sm` over the window, the oldest first. spread: the standard deviation of real use over
    the window, in points, where there are no samples."""

    utilization: float | None = None
    memory_copy: float | None = None
    engine: float | None = None
    sm: float | None = None
    tensor: float | None = None
    fp64: float | None = None
    dram: float | None = None
    pcie_bytes_s: float | None = None
    pcie_balance: float | None = None
    nvlink_bytes_s: float | None = None
    power: float | None = None
    sm_samples: tuple[float, ...] = ()
    spread: float | None = None

    @property
    def profiled(self) -> bool:
        """Whether the GPU reports profiling values."""
        return self.sm is not None and self.engine is not None and self.dram is not None


class Bottleneck(Struct, frozen=True):
    """A class: its name, what it means, and what to try."""

    name: str
    meaning: str
    advice: str = ""


def real_utilization(activity: Activity) -> float | None:
    """How much of the GPU is used, in percent: the sum of `monitoring.real_use.PARTS`, as `gpu:real_util` has it.
    None if a part is not reported and there is no utilization to take for it."""
    other = activity.utilization if activity.utilization is not None else activity.engine
    return weighted({part.activity: getattr(activity, part.activity) for part in PARTS}, other)


def _of(value: float | None) -> float:
    return 0.0 if value is None else value


def _moves_data(at: Activity) -> bool:
    return _of(at.memory_copy) >= 40 or _of(at.pcie_bytes_s) >= _IO_BYTES_PER_S


def _idle(at: Activity) -> bool:
    quiet = _of(real_utilization(at)) < IDLE and _of(at.engine) < 5 and _of(at.dram) < 5
    return quiet and not _moves_data(at)


def _below_all(at: Activity) -> bool:
    return _of(at.sm) < 15 and _of(at.engine) < 15 and _of(at.dram) < 15


_Condition = Callable[[Activity], bool]

HUNG = Bottleneck(
    "hung", "kernels are resident and do not advance: full utilization near idle power", "see where its ranks wait"
)
STRAGGLER = Bottleneck(
    "straggler",
    "it is used less than the other GPUs of its job",
    "compare its clocks, throttling, NVLinks and data loading",
)
COMMUNICATION = Bottleneck(
    "communication-bound", "the GPUs of the job wait for one another", "use fewer or closer GPUs, or overlap transfers"
)
UNKNOWN = Bottleneck("unknown", "the GPU reports no utilization")
CLASSES: tuple[tuple[Bottleneck, _Condition], ...] = (
    (Bottleneck("idle", "nothing computes", "end the job, or release the GPU between uses"), _idle),
    (
        Bottleneck("tensor-heavy", "the tensor cores are busy"),
        lambda at: _of(at.tensor) >= 50 and _of(at.sm) >= 60,
    ),
    (
        Bottleneck("tensor", "the tensor cores do part of the work"),
        lambda at: _of(at.tensor) >= 15 and _of(at.sm) >= 40,
    ),
    (
        Bottleneck("fp64", "double precision bounds it", "use a lower precision where the result allows it"),
        lambda at: _of(at.fp64) >= 20 and _of(at.sm) >= 50,
    ),
    (
        Bottleneck("io-bound", "it waits for data", "more loader workers and CPUs, local NVMe, pinned memory"),
        lambda at: _moves_data(at) and _of(at.sm) < 30,
    ),
    (
        Bottleneck(
            "memory-bound", "memory bandwidth bounds it", "larger tiles, fused kernels, a GPU with more bandwidth"
        ),
        lambda at: _of(at.dram) >= 50 and _of(at.sm) < 50,
    ),
    (Bottleneck("compute-heavy", "the SMs are busy"), lambda at: _of(at.sm) >= 80),
    (Bottleneck("compute-active", "the SMs are mostly busy"), lambda at: _of(at.sm) >= 50),
    (Bottleneck("memory-active", "memory is in use more than the SMs"), lambda at: _of(at.dram) >= 40),
    (
        Bottleneck("small-kernels", "kernels run, and few SMs have work", "larger batches, CUDA graphs, a faster CPU"),
        lambda at: _of(at.engine) >= 40 and _of(at.sm) < 25,
    ),
    (Bottleneck("low", "little of the GPU is used", "share the GPU, or use a MIG instance"), _below_all),
    (Bottleneck("mixed", "nothing dominates"), lambda at: True),
)
"""The classes of one GPU by its own means: the first whose condition holds."""

_UNPROFILED: tuple[tuple[Bottleneck, _Condition], ...] = (
    (CLASSES[0][0], lambda at: _of(at.utilization) < IDLE and not _moves_data(at)),
    (Bottleneck("low", "a kernel runs little of the time", CLASSES[-2][0].advice), lambda at: _of(at.utilization) < 15),
    (Bottleneck("busy", "kernels run; the GPU does not report what bounds them"), lambda at: True),
)


def classify(members: Sequence[Activity]) -> tuple[Bottleneck, ...]:
    """The class of each GPU of one job; a GPU without a job is a job of one."""
    waits = _communicates(members)
    apart = _stragglers(members)
    return tuple(_class(at, straggles=i in apart, waits=waits) for i, at in enumerate(members))


def _class(at: Activity, *, straggles: bool, waits: bool) -> Bottleneck:
    if at.utilization is None and not at.profiled:
        return UNKNOWN
    if hangs(at):
        return HUNG
    if straggles:
        return STRAGGLER
    if waits:
        return COMMUNICATION
    classes = CLASSES if at.profiled else _UNPROFILED
    return next(found for found, holds in classes if holds(at))


def hangs(at: Activity) -> bool:
    """Whether the GPU is hung: full utilization, near idle power, and SMs that stay as they are."""
    if at.utilization is None or at.power is None or at.power > _HUNG_POWER or at.utilization < _HUNG_UTILIZATION:
        return False
    flat = len(at.sm_samples) < _FEWEST_SAMPLES or pstdev(at.sm_samples) <= _FLAT_POINTS
    flat = flat and (at.spread is None or at.spread <= _FLAT_SPREAD)
    return at.profiled and flat and _of(at.dram) < 5 and _of(at.tensor) < 5


def _stragglers(members: Sequence[Activity]) -> frozenset[int]:
    """The members that are used less than the median of the job: by as much as `monitoring.real_use` has it."""
    uses = [real_utilization(at) for at in members]
    known = [use for use in uses if use is not None]
    if len(known) < _FEWEST_MEMBERS:
        return frozenset()
    middle = median(known)
    sigma = SIGMA_BY_MAD * median(abs(use - middle) for use in known)
    gaps = ((i, middle - use) for i, use in enumerate(uses) if use is not None)
    return frozenset(i for i, gap in gaps if gap >= _STRAGGLER_POINTS and gap > _STRAGGLER_SIGMA * sigma)


def balance(sent: float | None, received: float | None) -> float | None:
    """`Activity.pcie_balance`; None where one of both is not known, or nothing was moved."""
    if sent is None or received is None or not max(sent, received):
        return None
    return min(sent, received) / max(sent, received)


def _exchanges(at: Activity) -> bool:
    """Whether the GPU sends over PCIe about as much as it receives, and more than over NVLink."""
    moved = _of(at.pcie_bytes_s)
    most = moved >= _EXCHANGE_BYTES_PER_S and moved > _of(at.nvlink_bytes_s)
    return most and _of(at.pcie_balance) >= _EXCHANGE_BALANCE


def _link_bytes_s(at: Activity) -> float:
    """What it may move to other GPUs: over NVLink, and over PCIe unless that goes one way."""
    one_way = at.pcie_balance is not None and at.pcie_balance < _EXCHANGE_BALANCE
    return _of(at.nvlink_bytes_s) + (0.0 if one_way else _of(at.pcie_bytes_s))


def _communicates(members: Sequence[Activity]) -> bool:
    """Whether the GPUs of the job exchange over PCIe or a network while few of their SMs work, or move much between
    them while their SM activity rises and falls together."""
    if len(members) < 2 or fmean(_of(at.sm) for at in members) >= 50:
        return False
    if all(map(_exchanges, members)):
        return True
    if fmean(map(_link_bytes_s, members)) < _LINK_BYTES_PER_S:
        return False
    spreads = [at.spread for at in members if at.spread is not None]
    if len(spreads) == len(members):
        return min(spreads) >= _SWING_SPREAD
    count = min(len(at.sm_samples) for at in members)
    if count < _FEWEST_SAMPLES:
        return False
    swings = [at.sm_samples[-count:] for at in members]
    if min(pstdev(swing) for swing in swings) < _SWING_POINTS:
        return False
    mean = [fmean(column) for column in zip(*swings, strict=True)]
    return all(_correlation(swing, mean) >= 0.5 for swing in swings)


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    deviations = pstdev(one) * pstdev(other)
    if not deviations:
        return 0.0
    ours, theirs = fmean(one), fmean(other)
    return fmean((a - ours) * (b - theirs) for a, b in zip(one, other, strict=True)) / deviations
