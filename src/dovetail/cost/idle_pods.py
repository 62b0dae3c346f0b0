# SPDX-License-Identifier: Apache-2.0
"""Pods that hold GPUs and do not use them, with what that has cost and what to do about it.

Rules
- The cost is the price of each unused GPU at the time when its idleness began, for as long as it lasts, in the part
  that the pod holds. It is None if one of them has no price.
- What to do follows from what was seen, by the first line of `_ACTIONS` that fits.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from dovetail.cost.price_rules import PriceBook, Priced
from dovetail.history.idle import IdlePod, IdleRules, exempted, idleness
from dovetail.history.records import GpuSpan, Period, PodRecord
from dovetail.history.store import HistoryReader

_SERVICES = ("Deployment", "StatefulSet", "Notebook")
_MS_MILLI = 1_000_000
_HOUR_S = 3600


class IdleRow(Struct, frozen=True):
    """A pod that does not use `unused` of the `held` GPUs that it holds, whole or in part; `idle`: these are all.

    `policy` is the last step that the policy of the cluster will take about it: none, notice, suspend or scale-to-zero;
    "" if that is not known. `policy_at` is when at the earliest, `policy_note` why. A command that asks the cluster
    fills them.

    `since` is when the last of them became idle, `at_least`: or earlier. `gpu_s` is what it held unused since then, in
    GPU-seconds, and `cost_micro` what that cost, in millionths. `coverage_milli` is the part of that time that was
    measured."""

    pod: str
    uid: str
    job: str
    kind: str
    user: str
    queue: str
    node: str
    held: int
    unused: int
    idle: bool
    since: datetime
    at_least: bool
    ever_used: bool
    gpu_s: int
    cost_micro: int | None
    coverage_milli: int
    action: str
    policy: str = ""
    policy_at: datetime | None = None
    policy_note: str = ""


class IdleList(Struct, frozen=True):
    """Idle pods at the end of the history, those that waste most first. `cost_micro` is the sum of the costs that are
    known, in millionths of `currency`; `price_date` is the oldest date of these prices. `not_measured` are pods that
    hold GPUs of which the use is not known. `elsewhere` is the number of other idle pods, of namespaces whose names are
    not shown, and `elsewhere_gpu_s` what they held unused. `policy`: whether
    a policy about idle workloads is `on` or `off` in the cluster; "" if that is not known."""

    now: datetime
    pods: tuple[IdleRow, ...]
    gpu_s: int
    cost_micro: int
    currency: str
    price_date: str
    not_measured: tuple[str, ...]
    elsewhere: int = 0
    elsewhere_gpu_s: int = 0
    policy: str = ""


def idle_list(
    reader: HistoryReader, rules: IdleRules, book: PriceBook, wanted: Callable[[PodRecord], bool], own: str = ""
) -> IdleList:
    """The idle pods that are `wanted`; with `own` those of this namespace alone, and the number of others, which no
    filter of the asker changes. Raises StoreError and CurrencyError."""
    found = idleness(reader, replace(rules, exempt=frozenset()) if own else rules)
    others = [one for one in found.idle if own and one.pod.namespace != own]

    def shown(pod: PodRecord) -> bool:
        return wanted(pod) and (not own or (pod.namespace == own and not exempted(pod, rules.exempt)))

    now = Period(max(0, found.now_ms - 1), found.now_ms)
    spans = {span.gpu: span for span in reader.spans(now)}
    dates: set[str] = set()
    rows = tuple(_row(one, spans, book, found.now_ms, dates) for one in found.idle if shown(one.pod))
    unmeasured = tuple(f"{pod.namespace}/{pod.name}" for pod in found.not_measured if shown(pod))
    return IdleList(
        _time(found.now_ms), rows, sum(row.gpu_s for row in rows), sum(row.cost_micro or 0 for row in rows),
        book.currency, min(dates, default=""), unmeasured, len(others), sum(one.amount // _MS_MILLI for one in others),
    )  # fmt: skip


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC)


def _row(one: IdlePod, spans: dict[str, GpuSpan], book: PriceBook, now_ms: int, dates: set[str]) -> IdleRow:
    cost: int | None = 0
    for gpu in one.unused:
        span = spans.get(gpu.hold.gpu)
        price = book.price(span, one.since_ms) if span is not None else None
        if not isinstance(price, Priced) or cost is None:
            cost = None
            continue
        dates.add(price.rule.date)
        cost += price.micro * gpu.hold.milli * (now_ms - one.since_ms)
    pod = one.pod
    return IdleRow(
        f"{pod.namespace}/{pod.name}", pod.uid, f"{pod.namespace}/{pod.job}", pod.kind, pod.user, pod.queue, pod.node,
        one.held, len(one.unused), one.idle, _time(one.since_ms), one.at_least, any(gpu.ever for gpu in one.unused),
        one.amount // _MS_MILLI, cost // (_MS_MILLI * _HOUR_S) if cost is not None else None, one.coverage,
        next(action(one) for fits, action in _ACTIONS if fits(one)),
    )  # fmt: skip


_ACTIONS: tuple[tuple[Callable[[IdlePod], bool], Callable[[IdlePod], str]], ...] = (
    (
        lambda one: not one.idle,
        lambda one: f"it uses {one.held - len(one.unused)} of {one.held} GPUs: request that many",
    ),
    (
        lambda one: not one.at_least and not any(gpu.ever for gpu in one.unused),
        lambda one: f"it has never used a GPU: see dovetail logs {one.pod.job}, and request none if it needs none",
    ),
    (
        lambda one: one.pod.kind in _SERVICES,
        lambda one: f"scale the {one.pod.kind} to zero while nobody uses it",
    ),
    (
        lambda one: True,
        lambda one: f"it may hang, or wait for data: see dovetail logs {one.pod.job}; end it with dovetail cancel",
    ),
)
