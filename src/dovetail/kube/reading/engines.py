# SPDX-License-Identifier: Apache-2.0
"""The replicas of inference engines from a Prometheus that scrapes them, in three queries.

Rules
- A replica is a pod: the labels `namespace` and `pod` that a scrape of pods sets; without them it is the `instance`.
  Values of its series (one for each group of ranks) are added; of the cache the fullest counts, and it is awake if one
  of them is.
- A value that is missing, negative, no number or above MOST is not known. A cache is full at most.
- The growth of a queue is the slope of its gauge over GROWTH_S (`deriv`, least squares).
- A replica that had metrics in the last LOST_S and has none now is listed without values.
- Labels are data: they select rows and are shown, and are never part of a query.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.json import Decoder

from dovetail.kube.reading.engine_metrics import (
    AWAKE,
    CACHE,
    ENGINE_METRICS,
    MEAN_WAITING,
    READY,
    RUNNING,
    WAITING,
    EngineGauge,
    EngineMetrics,
)
from dovetail.kube.reading.prometheus_api import TIMEOUT_S, PrometheusAccess, PrometheusAnswer, PrometheusApi

GROWTH_S, LOST_S = 300, 900
MOST = 1e9
"""No engine has so many requests."""
_BY = "by (namespace, pod, instance)"
_GAUGES = {
    (gauge.metric, gauge.equals): (number, engine, gauge)
    for engine in ENGINE_METRICS
    for number, gauge in enumerate(engine.gauges)
}
_LABELS = {gauge.metric: gauge.label for _, _, gauge in _GAUGES.values()}
_NAMES = f'__name__=~"{"|".join(sorted(_LABELS))}"'
_QUEUES = tuple(gauge for engine in ENGINE_METRICS for gauge in engine.gauges if gauge.value in (WAITING, MEAN_WAITING))


class _Engine(Struct, frozen=True):
    """A series: its labels, and time and text of its value."""

    metric: dict[str, str]
    value: tuple[float, str] = (0.0, "NaN")


_DECODER = Decoder(PrometheusAnswer[_Engine])


class EngineSample(Struct, frozen=True):
    """A replica, or a `pool` of `ready` replicas, by the namespace and name of its pod or pool. `running` and `waiting`
    are requests, of a pool `waiting` is the mean of a replica; `growth` is that of `waiting` in requests per second.
    `cache` is the used part of the KV cache. None: not reported. `lost`: it has no metrics any more."""

    namespace: str
    name: str
    engine: str = ""
    model: str = ""
    pool: bool = False
    running: float | None = None
    waiting: float | None = None
    growth: float | None = None
    cache: float | None = None
    awake: bool | None = None
    ready: float | None = None
    lost: bool = False


async def read_engines(
    access: PrometheusAccess, namespace: str = "", matchers: str = "", timeout_s: float = TIMEOUT_S
) -> tuple[EngineSample, ...]:
    """The replicas and pools, of one namespace if it is named. `matchers` are further matchers of labels. Raises
    PrometheusError."""
    async with PrometheusApi(access, timeout_s=timeout_s) as api:
        return await engines_of(api, namespace, matchers)


async def engines_of(api: PrometheusApi, namespace: str = "", matchers: str = "") -> tuple[EngineSample, ...]:
    """The same, with an open session."""
    inside = ",".join(filter(None, (f"namespace={json.dumps(namespace)}" if namespace else "", matchers)))
    every = f"{{{','.join(filter(None, (_NAMES, inside)))}}}"
    queries = (every, _growth(inside), f"group {_BY} (last_over_time({every}[{LOST_S}s])) unless group {_BY} ({every})")
    headers = api.headers()
    now, growth, lost = await asyncio.gather(*(api.query(one, headers, _DECODER) for one in queries))
    return _joined(now, growth, lost)


def _growth(inside: str) -> str:
    """The slopes of all queues; engines differ in labels or the same replica counts once."""

    def selector(gauge: EngineGauge) -> str:
        own = f'{gauge.label}="{gauge.equals}"' if gauge.label else ""
        return f"{gauge.metric}{{{','.join(filter(None, (own, inside)))}}}"

    return " or ".join(
        f'label_replace(deriv({selector(gauge)}[{GROWTH_S}s]), "metric", "{gauge.metric}", "", "")' for gauge in _QUEUES
    )


class _Row(Struct):
    """What is known of a replica so far: values with the position of their gauge in its engine."""

    engine: EngineMetrics
    model: str = ""
    values: dict[str, tuple[int, list[float]]] = {}
    growth: dict[int, float] = {}


def _joined(now: Sequence[_Engine], growth: Sequence[_Engine], lost: Sequence[_Engine]) -> tuple[EngineSample, ...]:
    rows: dict[tuple[str, str, bool], _Row] = {}
    for number, engine, gauge, key, one in _known(now, "__name__"):
        value = _number(one)
        row = rows.get(key)
        if row is None:
            row = rows[key] = _Row(engine)
        if ENGINE_METRICS.index(engine) < ENGINE_METRICS.index(row.engine):
            rows[key] = row = _Row(engine)
        if engine is not row.engine:
            continue
        row.model = row.model or one.metric.get(engine.model, "")
        if value is None or value < 0:
            continue
        first, values = row.values.setdefault(gauge.value, (number, []))
        if number < first:
            row.values[gauge.value] = number, [value]
        elif number == first:
            values.append(value)
    for number, engine, _, key, one in _known(growth, "metric"):
        value, row = _number(one), rows.get(key)
        if row is not None and engine is row.engine and value is not None:
            row.growth[number] = row.growth.get(number, 0.0) + value
    found = [_sample(key, row) for key, row in rows.items()]
    seen = {(namespace, name) for namespace, name, _ in rows}
    gone = dict.fromkeys(_name(one) for one in lost)
    found += [EngineSample(*name, lost=True) for name in gone if name not in seen and any(name)]
    return tuple(sorted(found, key=lambda one: (one.namespace, one.name, one.pool)))


def _known(
    series: Sequence[_Engine], name: str
) -> Iterator[tuple[int, EngineMetrics, EngineGauge, tuple[str, str, bool], _Engine]]:
    """The series of the table, with the key of their replica or pool."""
    for one in series:
        metric = one.metric.get(name, "")
        label = _LABELS.get(metric)
        found = _GAUGES.get((metric, one.metric.get(label, "") if label else "")) if label is not None else None
        if found is None:
            continue
        number, engine, gauge = found
        namespace, pod = _name(one)
        called = one.metric.get(engine.pool, "") if engine.pool else pod
        if called:
            yield number, engine, gauge, (namespace, called, bool(engine.pool)), one


def _name(one: _Engine) -> tuple[str, str]:
    return one.metric.get("namespace", ""), one.metric.get("pod") or one.metric.get("instance", "")


def _number(one: _Engine) -> float | None:
    try:
        value = float(one.value[1])
    except ValueError:
        return None
    return value if abs(value) <= MOST else None


def _sample(key: tuple[str, str, bool], row: _Row) -> EngineSample:
    namespace, name, pool = key

    def values(value: str) -> list[float]:
        return row.values.get(value, (0, []))[1]

    def total(value: str) -> float | None:
        return sum(values(value)) if values(value) else None

    waiting, cache = total(MEAN_WAITING if pool else WAITING), max(values(CACHE), default=None)
    queue = row.values.get(MEAN_WAITING if pool else WAITING)
    return EngineSample(
        namespace, name, row.engine.engine, row.model, pool, total(RUNNING), waiting,
        row.growth.get(queue[0]) if queue is not None else None, None if cache is None else min(1.0, cache),
        any(values(AWAKE)) if values(AWAKE) else None, max(values(READY), default=None),
    )  # fmt: skip
