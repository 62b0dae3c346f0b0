# SPDX-License-Identifier: Apache-2.0
"""Queue objects as records: every field, and every value that cannot be honoured."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.core import events as ev
from dovetail.core.model import LabelSelector, Requirement
from dovetail.core.queues.types import (
    DAY_MS,
    DEFAULT_HALF_LIFE_MS,
    GpuBudget,
    GuaranteeCalendar,
    GuaranteeWindow,
    MoneyBudget,
    Queue,
    Usage,
)
from dovetail.kube.objects.queues import Queue as QueueObject
from dovetail.kube.translate import queues
from dovetail.kube.translate.translator import Translator
from tests.kube.yaml_objects import Change, added, deleted, wire

HOUR_MS = 3_600_000


def obj(spec: str = "{}", status: str = "null", name: str = "research") -> QueueObject:
    return wire(
        QueueObject,
        f"{{metadata: {{name: {name}, creationTimestamp: 2026-01-01T00:00:00Z}}, spec: {spec}, status: {status}}}",
    )


def record(spec: str) -> Queue:
    return queues.queue(obj(spec))


@pytest.mark.parametrize(("spec", "stop"), [("{}", ""), ("{stop: None}", ""), ("{stop: Hold}", "Hold")])
def test_a_queue_is_stopped_by_its_spec(spec: str, stop: str) -> None:
    assert (record(spec).stop, record(spec).problem) == (stop, None)


def test_a_queue_that_is_stopped_in_no_known_way_cannot_be_used() -> None:
    problem = record("{stop: hold}").problem
    assert problem is not None and (problem.field, problem.value) == ("spec.stop", "hold")
    assert problem.rule == "must be one of None, Hold, HoldAndDrain; nearest valid value: Hold"


def test_a_queue_declares_everything_that_it_can() -> None:
    spec = """
      parent: labs
      guarantee: {cpu: 1500m, memory: 1Gi, gpu: "0.5", gpuSlices: 7, gpuMemory: 80Gi, models: {NVIDIA-H100: 4}}
      limit: {gpu: 64, memory: 1.5Gi}
      weight: 3
      priority: -2
      halfLife: 1d12h
      minRuntime: {reclaim: 30m, preempt: 0s}
      preemptible: false
      namespaces:
        names: [ml, ds]
        selector: {matchLabels: {team: a}, matchExpressions: [{key: env, operator: In, values: [prod]}]}
      byUser: true
      leastServedFirst: true
      idleFirst: false
      calendar: {timeZone: Asia/Kolkata, windows: [{days: [Sat], start: "22:00", end: "06:30", guarantee: {gpu: 2}}]}
      budget: {gpuHours: "2.5", money: {amount: 1500.50, currency: EUR}, period: Week, whenUsed: Hold}
      stop: HoldAndDrain
    """
    found = queues.queue(wire(QueueObject, f"metadata: {{name: research}}\nspec: {spec}"))
    guarantee = (
        ("cpu", 1500), ("gpu", 500), ("gpu-memory", 81920), ("gpu-slices", 7), ("gpu/NVIDIA-H100", 4000),
        ("memory", 2**30),
    )  # fmt: skip
    by_night = tuple(sorted((dict(guarantee) | {"gpu": 2000}).items()))
    window = GuaranteeWindow(32, 22 * 60, 6 * 60 + 30, by_night)
    assert found == Queue(
        name="research",
        parent="labs",
        guarantee=guarantee,
        calendar=GuaranteeCalendar(guarantee, (window,), ((1_735_689_600_000, 19_800_000),)),
        limit=(("gpu", 64_000), ("memory", 3 * 2**29)),
        weight=3,
        priority=-2,
        half_life_ms=36 * HOUR_MS,
        reclaim_min_runtime_ms=HOUR_MS // 2,
        preempt_min_runtime_ms=0,
        preemptible=False,
        namespaces=("ds", "ml"),
        namespace_selector=LabelSelector((Requirement("team", "In", ("a",)), Requirement("env", "In", ("prod",)))),
        by_user=True,
        least_served_first=True,
        stop="HoldAndDrain",
        idle_first=False,
        budget=GpuBudget(2500 * HOUR_MS, "Week", hold=True),
        money=MoneyBudget(1_500_500_000, hold=True),
    )  # fmt: skip


def test_a_queue_without_a_spec_has_the_defaults_and_a_birthday() -> None:
    assert record("{}") == Queue("research", half_life_ms=DEFAULT_HALF_LIFE_MS, created_ms=1_767_225_600_000)
    assert queues.queue(wire(QueueObject, "{metadata: {name: a}}")) == Queue("a")


def test_nothing_of_a_class_is_something_else_than_not_a_word_about_it() -> None:
    assert record("{limit: {gpu: 0}}").limit == (("gpu", 0),)
    assert record("{namespaces: {names: []}}").namespaces == ()
    assert record("{namespaces: {selector: {}}}").namespace_selector == LabelSelector()


@pytest.mark.parametrize(
    ("spec", "field", "value", "nearest"),
    [
        ("{weight: 0}", "spec.weight", "0", "1"),
        ("{budget: {gpuHours: -1}}", "spec.budget.gpuHours", "-1", "0"),
        ("{budget: {gpuHours: many}}", "spec.budget.gpuHours", "many", "250"),
        ("{budget: {gpuHours: 1, period: Moth}}", "spec.budget.period", "Moth", "Month"),
        ("{budget: {gpuHours: 1, whenUsed: hold}}", "spec.budget.whenUsed", "hold", "Hold"),
        ("{budget: {money: {amount: -1, currency: USD}}}", "spec.budget.money.amount", "-1", "0"),
        ("{budget: {money: {amount: lots, currency: USD}}}", "spec.budget.money.amount", "lots", "0"),
        ("{budget: {money: {amount: 1e15, currency: USD}}}", "spec.budget.money.amount", "1e15", "0"),
        ("{budget: {money: {currency: USD}}}", "spec.budget.money.amount", "", "0"),
        ("{budget: {money: {amount: 5, currency: usd}}}", "spec.budget.money.currency", "usd", "USD"),
        ("{budget: {money: {amount: 5, currency: USD}, period: Moth}}", "spec.budget.period", "Moth", "Month"),
        ("{weight: -5}", "spec.weight", "-5", "1"),
        ("{weight: 1000001}", "spec.weight", "1000001", "1000000"),
        ("{priority: 1000000001}", "spec.priority", "1000000001", "1000000000"),
        ("{halfLife: 0s}", "spec.halfLife", "0s", "30m"),
        ("{halfLife: ''}", "spec.halfLife", "", "7d"),
        ("{halfLife: 1 d}", "spec.halfLife", "1 d", "7d"),
        ("{halfLife: -7d}", "spec.halfLife", "-7d", "7d"),
        ("{minRuntime: {reclaim: 12 h}}", "spec.minRuntime.reclaim", "12 h", "12h"),
        ("{minRuntime: {preempt: 1h1d}}", "spec.minRuntime.preempt", "1h1d", "12h"),
        ("{guarantee: {gpu: -1}}", "spec.guarantee.gpu", "-1", "0"),
        ("{guarantee: {gpu: '-0.5'}}", "spec.guarantee.gpu", "-0.5", "0"),
        ("{guarantee: {gpu: many}}", "spec.guarantee.gpu", "many", "8"),
        ("{guarantee: {gpu: 8 GPUs}}", "spec.guarantee.gpu", "8 GPUs", "8"),
        ("{guarantee: {memory: 64GB}}", "spec.guarantee.memory", "64GB", "64Gi"),
        ("{limit: {gpu: 6.4.}}", "spec.limit.gpu", "6.4.", "64"),
        ("{limit: {gpuSlices: 1.5}}", "spec.limit.gpuSlices", "1.5", "2"),
        ("{limit: {gpuMemory: 80}}", "spec.limit.gpuMemory", "80", "80Mi"),
        ("{guarantee: {models: {A100: -1}}}", "spec.guarantee.models[A100]", "-1", "0"),
        ("{guarantee: {gpu: 9}, limit: {gpu: 8}}", "spec.guarantee.gpu", "9", "8"),
        ("{guarantee: {memory: 2Gi}, limit: {memory: 1Gi}}", "spec.guarantee.memory", "2Gi", "1Gi"),
        ("{guarantee: {models: {A: 2}}, limit: {models: {A: 1}}}", "spec.guarantee.models[A]", "2", "1"),
        ("{guarantee: {gpus: 8}}", "spec.guarantee.gpus", "8", "gpu"),
        ("{limit: {nvidia.com/gpu: 8}}", "spec.limit.nvidia.com/gpu", "8", "gpu"),
        (
            "{namespaces: {selector: {matchExpressions: [{key: a, operator: Equals, values: [b]}]}}}",
            "spec.namespaces.selector.matchExpressions[0].operator", "Equals", "Exists",
        ),
    ],
)  # fmt: skip
def test_a_bad_value_names_the_field_and_the_nearest_valid_value(
    spec: str, field: str, value: str, nearest: str
) -> None:
    problem = record(spec).problem
    assert problem is not None
    assert (problem.field, problem.value) == (field, value)
    assert problem.rule.endswith(f": {nearest}")


@pytest.mark.parametrize(
    ("spec", "field", "rule"),
    [
        ("{guarantee: {models: 8}}", "spec.guarantee.models", "must be quantities by GPU model"),
        ("{guarantee: {gpu: {A100: 8}}}", "spec.guarantee.gpu", "must be a quantity"),
        ("{guarantee: {models: {a b: 8}}}", "spec.guarantee.models[a b]", "must be a value that the node label"),
        ("{guarantee: {models: {A: 5, B: 4}}, limit: {gpu: 8}}", "spec.guarantee.models", "are together above"),
        ("{budget: {period: Day}}", "spec.budget.gpuHours", "must be there: how many GPU-hours"),
        ("{namespaces: {}}", "spec.namespaces", "must have names or selector"),
        (
            "{namespaces: {selector: {matchExpressions: [{key: a, operator: In}]}}}",
            "spec.namespaces.selector.matchExpressions[0].values", "must have values with In and NotIn",
        ),
        (
            "{namespaces: {selector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}}",
            "spec.namespaces.selector.matchExpressions[0].values", "must have values with In and NotIn",
        ),
    ],
)  # fmt: skip
def test_a_bad_shape_names_the_field_and_the_rule(spec: str, field: str, rule: str) -> None:
    problem = record(spec).problem
    assert problem is not None
    assert problem.field == field
    assert problem.rule.startswith(rule)


def test_what_is_valid_beside_a_bad_value_is_kept_and_all_bad_values_are_named() -> None:
    found = record("{weight: 0, halfLife: 0s, guarantee: {gpu: 4, cpu: x}}")
    assert found.guarantee == (("gpu", 4000),)
    assert (found.weight, found.half_life_ms) == (1, DEFAULT_HALF_LIFE_MS)
    assert found.problem is not None
    assert "more problems: spec.weight, spec.halfLife" in found.problem.rule


USAGE = "{asOf: 2026-01-02T00:00:00.250Z, used: '86400000000000', rate: '8000', share: '0.1', credit: '-3.5'%s}"
DAYS = ", days: [{day: 2026-01-01, used: '7'}], users: [{name: ada, used: '5'}]"


def test_the_usage_of_the_status_is_read_exactly() -> None:
    found = queues.queue(obj(status=f"{{usage: {USAGE % DAYS}}}")).usage
    day = 1_767_225_600_000 // DAY_MS
    assert found == Usage(1_767_312_000_250, 86_400_000_000_000, 8000, ((day, 7),), (("ada", 5),))


@pytest.mark.parametrize(
    ("status", "field", "value"),
    [
        ("gone", "status", ""),
        ("{usage: {asOf: yesterday, used: '1', rate: '0'}}", "status.usage.asOf", ""),
        ("{usage: {asOf: '2026-01-02T00:00:00', used: '1', rate: '0'}}", "status.usage.asOf", "2026-01-02 00:00:00"),
        ("{usage: {used: '1', rate: '0'}}", "status.usage.asOf", ""),
        ("{usage: {asOf: 2026-01-02T00:00:00Z, used: '-1', rate: '0'}}", "status.usage.used", "-1"),
        ("{usage: {asOf: 2026-01-02T00:00:00Z, used: 5, rate: '0'}}", "status.usage.used", ""),
        ("{usage: {asOf: 2026-01-02T00:00:00Z, used: '1e9', rate: '0'}}", "status.usage.used", "1e9"),
        ("{usage: {asOf: 2026-01-02T00:00:00Z, used: '1'}}", "status.usage.rate", ""),
        (
            "{usage: {asOf: 2026-01-02T00:00:00Z, used: '1', rate: '0', days: [{day: '2026-13-01', used: '1'}]}}",
            "status.usage.days[0].day", "2026-13-01",
        ),
        (
            "{usage: {asOf: 2026-01-02T00:00:00Z, used: '1', rate: '0', users: [{name: a, used: 'x'}]}}",
            "status.usage.users[0].used", "x",
        ),
        (
            "{usage: {asOf: 2026-01-02T00:00:00Z, used: '1', rate: '0', users: [{name: a, used: '1'}, "
            "{name: a, used: '2'}]}}",
            "status.usage.users", "",
        ),
        ("{usage: {asOf: 2026-01-02T00:00:00Z, used: '1', rate: '0', days: many}}", "status.usage.days", ""),
    ],
)  # fmt: skip
def test_a_status_that_was_edited_by_hand_is_a_finding_and_counts_as_no_usage(
    status: str, field: str, value: str
) -> None:
    feed = Translator()
    (event,) = feed.records.queues(added(obj("{weight: 2}", status)))
    assert isinstance(event, ev.QueueChanged)
    assert (event.queue.usage, event.queue.problem, event.queue.weight) == (None, None, 2)
    (finding,) = feed.findings["Queue research"]
    assert (finding.problem.field, finding.problem.value) == (field, value)
    assert "what was used before is not known" in str(finding)
    feed.records.queues([Change("modified", obj("{weight: 2}", f"{{usage: {USAGE % DAYS}}}"))])
    assert feed.findings == {}


@pytest.mark.parametrize("status", ["null", "{}", "{usage: null}", "{conditions: nonsense, pendingJobs: x}"])
def test_without_usage_nothing_is_reported_to_be_wrong(status: str) -> None:
    assert queues.read_usage(obj(status=status)) == (None, ())


def test_usage_counts_when_the_queue_is_first_reported_and_a_change_of_the_status_is_no_event() -> None:
    feed = Translator()
    one, later = f"{{usage: {USAGE % DAYS}}}", f"{{usage: {USAGE % ''}, pendingJobs: 3}}"
    (event,) = feed.records.queues(added(obj(status=one)))
    assert isinstance(event, ev.QueueChanged)
    assert event.queue.usage is not None
    changed = obj(status=later)
    assert feed.records.queues([Change("modified", changed)]) == []
    (event,) = feed.records.queues([Change("modified", obj("{weight: 2}", later))])
    assert isinstance(event, ev.QueueChanged)
    assert (event.queue.weight, event.queue.usage) == (2, queues.read_usage(obj(status=one))[0])
    assert feed.records.queues(deleted(changed)) == [ev.QueueRemoved("research")]
    assert feed.records.queues(deleted(changed)) == []


def test_a_queue_that_was_made_again_has_the_usage_of_the_new_one() -> None:
    feed = Translator()
    feed.records.queues(added(obj(status=f"{{usage: {USAGE % DAYS}}}")))
    events = feed.records.queues([*deleted(obj()), *added(obj())])
    assert events == [ev.QueueRemoved("research"), ev.QueueChanged(queues.queue(obj()))]


def test_values_of_another_type_do_not_pass_for_numbers() -> None:
    for spec in ("{weight: heavy}", "{guarantee: {gpu: true}}", "{guarantee: [gpu]}", "{preemptible: 'yes'}"):
        with pytest.raises(Exception, match="Expected"):
            obj(spec)


def names(events: list[ev.Event]) -> list[Any]:
    return [event.queue.name for event in events if isinstance(event, ev.QueueChanged)]


def test_queues_are_reported_each_by_itself() -> None:
    feed = Translator()
    assert names(feed.records.queues(added(obj(name="a"), obj(name="b")))) == ["a", "b"]
    assert feed.records.queues([Change("modified", obj(name="a"))]) == []
