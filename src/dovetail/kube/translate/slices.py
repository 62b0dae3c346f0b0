# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices: from wire structs to core records, with the taints of DeviceTaintRules.

Rules
- A name of an attribute or capacity without a domain gets the domain of the driver. If a name occurs in both forms, the
  qualified one counts.
- Quantities are in thousandths, rounded up, as in Quantity.MilliValue.
- Unknown effects of taints are ignored, like None. A rule adds its taint to the devices that it selects, after their
  own taints; rules apply in the order of their names.
- A field that cannot be honoured as written becomes a Problem, which makes the pool of the slice invalid.
Not supported, as their feature gates are off: compatibility groups, skipped node operations, node-allocatable
resources of devices.
Sources: k8s.io/api resource/v1 (1.37), dynamic-resource-allocation resourceslice/tracker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import TypeVar

from msgspec.structs import replace

from dovetail.core.dra.types import (
    Capacity,
    CounterSet,
    CounterUse,
    Device,
    DeviceEffect,
    DeviceTaint,
    RequestPolicy,
    Slice,
    Value,
    Version,
)
from dovetail.core.model import NodeTerm, Problem
from dovetail.core.quantities import QuantityError, parse
from dovetail.kube.objects import claims as wire
from dovetail.kube.objects.base import Quantity, epoch_ms
from dovetail.kube.translate.problems import first_of
from dovetail.kube.translate.selectors import node_terms

NOT_IN_USE = "is not in use here: its feature gate is off in Kubernetes 1.37"
_TAINT_EFFECTS: dict[str, DeviceEffect] = {"NoSchedule": "NoSchedule", "NoExecute": "NoExecute"}

T = TypeVar("T")
Problems = list[Problem]


def resource_slice(obj: wire.ResourceSlice, rules: Iterable[wire.DeviceTaintRule] = ()) -> Slice:
    """The record of a slice, with the taints that the rules add to its devices."""
    spec, driver = obj.spec, obj.spec.driver
    problems: Problems = []
    rules = sorted((rule for rule in rules if concerns(rule, obj)), key=lambda rule: rule.metadata.name)
    devices = tuple(
        _device(device, driver, rules, f"spec.devices[{i}]", problems) for i, device in enumerate(spec.devices)
    )
    counter_sets = tuple(
        CounterSet(s.name, _counters(s.counters, f"spec.sharedCounters[{i}].counters", problems))
        for i, s in enumerate(spec.shared_counters)
    )
    return Slice(
        obj.metadata.name,
        driver,
        spec.pool.name,
        spec.pool.generation,
        spec.pool.resource_slice_count,
        spec.node_name,
        _one_term(spec, "spec", problems),
        spec.all_nodes,
        spec.per_device_node_selection,
        devices,
        counter_sets,
        first_of(problems),
    )


def concerns(rule: wire.DeviceTaintRule, obj: wire.ResourceSlice) -> bool:
    """Whether a rule selects devices of this pool."""
    selector = rule.spec.device_selector
    return (
        selector is not None
        and selector.driver in (None, obj.spec.driver)
        and selector.pool in (None, obj.spec.pool.name)
    )


def _device(
    obj: wire.SliceDevice, driver: str, rules: Sequence[wire.DeviceTaintRule], path: str, problems: Problems
) -> Device:
    attributes = [
        (name, _value(attribute, f"{path}.attributes[{name}]", problems))
        for name, attribute in qualified(obj.attributes, driver)
    ]
    capacity = [
        (name, replace(_capacity(found, f"{path}.capacity[{raw}]", problems), written=raw))
        for name, (raw, found) in qualified({raw: (raw, one) for raw, one in obj.capacity.items()}, driver)
    ]
    added = [
        rule.spec.taint
        for rule in rules
        if rule.spec.device_selector is not None and rule.spec.device_selector.device in (None, obj.name)
    ]
    consumes = []
    for i, use in enumerate(obj.consumes_counters):
        at = f"{path}.consumesCounters[{i}]"
        if use.compatibility_groups:
            problems.append(Problem(f"{at}.compatibilityGroups", use.compatibility_groups[0], NOT_IN_USE))
        consumes.append(CounterUse(use.counter_set, _counters(use.counters, f"{at}.counters", problems)))
    return Device(
        obj.name,
        tuple((name, value) for name, value in attributes if value is not None),
        tuple(capacity),
        tuple(_taint(taint) for taint in (*obj.taints, *added)),
        tuple(consumes),
        obj.allow_multiple_allocations,
        obj.node_name,
        _one_term(obj, path, problems),
        obj.all_nodes,
        obj.binds_to_node,
        obj.binding_conditions,
        obj.binding_failure_conditions,
    )


def qualified(found: Mapping[str, T], domain: str) -> list[tuple[str, T]]:
    """The values by qualified name, sorted."""
    return sorted(
        {
            **{f"{domain}/{name}": value for name, value in found.items() if "/" not in name},
            **{name: value for name, value in found.items() if "/" in name},
        }.items()
    )


def _value(obj: wire.DeviceAttribute, path: str, problems: Problems) -> Value | None:
    for scalar in (obj.number, obj.flag, obj.text):
        if scalar is not None:
            return scalar
    if obj.version is not None:
        return Version(obj.version)
    several = obj.numbers or obj.flags or obj.texts or tuple(Version(text) for text in obj.versions)
    if several:
        return several
    problems.append(Problem(path, "", "has no value of a known type: int, bool, string, version or a list of them"))
    return None


def _capacity(obj: wire.DeviceCapacity, path: str, problems: Problems) -> Capacity:
    value = milli(obj.value, f"{path}.value", problems)
    requested = obj.request_policy
    if requested is None:
        return Capacity(value)
    at = f"{path}.requestPolicy"
    limits = requested.valid_range or wire.CapacityRange()

    def maybe(quantity: Quantity | None, name: str) -> int | None:
        return None if quantity is None else milli(quantity, f"{at}.validRange.{name}", problems)

    policy = RequestPolicy(
        value if requested.default is None else milli(requested.default, f"{at}.default", problems),
        tuple(milli(value, f"{at}.validValues[{i}]", problems) for i, value in enumerate(requested.valid_values)),
        maybe(limits.least, "min"),
        maybe(limits.most, "max"),
        maybe(limits.step, "step"),
    )
    return Capacity(value, policy)


def _counters(found: Mapping[str, wire.Counter], path: str, problems: Problems) -> tuple[tuple[str, int], ...]:
    return tuple(
        (name, milli(counter.value, f"{path}[{name}].value", problems)) for name, counter in sorted(found.items())
    )


def milli(quantity: Quantity, path: str, problems: Problems) -> int:
    """The quantity in thousandths; 0, with a Problem, if it is invalid."""
    text = str(quantity)
    found = _thousandths(text)
    if isinstance(found, int) and found >= 0:
        return found
    rule = found if isinstance(found, str) else "must not be negative; nearest valid value: 0"
    problems.append(Problem(path, text, rule))
    return 0


@lru_cache(maxsize=8192)
def _thousandths(text: str) -> int | str:
    """The amount, or the rule that the text breaks."""
    try:
        return ceil(parse(text) * 1000)
    except QuantityError as error:
        return str(error)


def _taint(obj: wire.DeviceTaint) -> DeviceTaint:
    return DeviceTaint(obj.key, obj.value, _TAINT_EFFECTS.get(obj.effect, "None"), epoch_ms(obj.time_added))


def _one_term(
    obj: wire.ResourceSliceSpec | wire.SliceDevice, path: str, problems: Problems
) -> tuple[NodeTerm, ...] | None:
    """The nodes of a slice or device. A selector must have one term, as an allocation could not combine several."""
    if obj.node_selector is None:
        return None
    found = node_terms(obj.node_selector, f"{path}.nodeSelector", problems)
    if found is not None and len(found) != 1:
        problems.append(Problem(f"{path}.nodeSelector.nodeSelectorTerms", str(len(found)), "must be exactly one term"))
    return found
