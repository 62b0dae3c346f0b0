# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices become records, with the taints that DeviceTaintRules add to their devices."""

from typing import Any

import pytest
import yaml

from dovetail.core import events as ev
from dovetail.core.dra.types import Capacity, CounterSet, CounterUse, Device, DeviceTaint, RequestPolicy, Slice, Version
from dovetail.core.model import NodeTerm, Requirement
from dovetail.kube.objects.claims import DeviceTaintRule, ResourceSlice
from dovetail.kube.translate import slices
from dovetail.kube.translate.translator import Translator
from tests.kube.yaml_objects import Change, added, deleted, wire

GIB_MILLI = 2**30 * 1000


def slice_of(text: str = "", name: str = "s", **spec: Any) -> ResourceSlice:
    """`text` are members of the spec."""
    pool = {"name": "p", "generation": 3, "resourceSliceCount": 2}
    document = {
        "metadata": {"name": name},
        "spec": {"driver": "d.io", "pool": pool, "nodeName": "n"} | (yaml.safe_load(text) or {}) | spec,
    }
    return wire(ResourceSlice, yaml.safe_dump(document))


def device(text: str) -> Device:
    record = slices.resource_slice(slice_of(f"devices: [{{name: g, {text}}}]"))
    assert record.problem is None
    return record.devices[0]


def rule(name: str = "r", key: str = "broken", **selector: str) -> DeviceTaintRule:
    document = {"taint": {"key": key, "effect": "NoSchedule"}, "deviceSelector": selector}
    return wire(DeviceTaintRule, yaml.safe_dump({"metadata": {"name": name}, "spec": document}))


def test_a_slice_states_of_which_pool_it_is_and_where_it_can_be_used() -> None:
    assert slices.resource_slice(slice_of()) == Slice("s", "d.io", "p", 3, 2, "n")
    everywhere = slices.resource_slice(slice_of(nodeName="", allNodes=True))
    assert (everywhere.node, everywhere.all_nodes) == ("", True)
    selector = "nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: rack, operator: Exists}]}]}"
    terms = (NodeTerm((Requirement("rack", "Exists"),)),)
    assert slices.resource_slice(slice_of(selector, nodeName="")).node_terms == terms
    devices = f"devices: [{{name: a, nodeName: x}}, {{name: b, allNodes: true}}, {{name: c, {selector}}}]"
    found = slices.resource_slice(slice_of(devices, nodeName="", perDeviceNodeSelection=True))
    assert found.per_device
    assert [(d.node, d.all_nodes, d.node_terms) for d in found.devices] == [
        ("x", False, None), ("", True, None), ("", False, terms)
    ]  # fmt: skip


def test_names_without_a_domain_are_the_driver_s() -> None:
    found = device(
        "attributes: {b: {bool: false}, x.io/a: {int: 0}, b.io/s: {string: ''}, v: {version: 1.2.3}, n: {ints: [1, 2]}}"
        ", capacity: {memory: {value: 80Gi}, x.io/c: {value: 500m}}"
    )
    assert found.attributes == (
        ("b.io/s", ""), ("d.io/b", False), ("d.io/n", (1, 2)), ("d.io/v", Version("1.2.3")), ("x.io/a", 0)
    )  # fmt: skip
    assert found.capacity == (
        ("d.io/memory", Capacity(80 * GIB_MILLI, written="memory")),
        ("x.io/c", Capacity(500, written="x.io/c")),
    )


def test_of_a_name_in_both_forms_the_qualified_one_counts() -> None:
    found = device("attributes: {a: {int: 1}, d.io/a: {int: 2}}")
    assert found.attributes == (("d.io/a", 2),)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("default: 1Gi, validValues: [1Gi, 2Gi]", RequestPolicy(GIB_MILLI, (GIB_MILLI, 2 * GIB_MILLI))),
        ("default: 1, validRange: {min: 1, max: 4, step: 500m}",
         RequestPolicy(1000, (), least_milli=1000, most_milli=4000, step_milli=500)),
        ("validRange: {min: 1}", RequestPolicy(8000, (), least_milli=1000)),
    ],
)  # fmt: skip
def test_a_shared_device_states_what_may_be_asked_of_it(policy: str, expected: RequestPolicy) -> None:
    found = device(f"allowMultipleAllocations: true, capacity: {{c: {{value: 8, requestPolicy: {{{policy}}}}}}}")
    assert found.shareable
    assert found.capacity == (("d.io/c", Capacity(8000, expected, "c")),)


def test_counters_of_a_pool_and_what_devices_take_of_them() -> None:
    found = slices.resource_slice(slice_of("sharedCounters: [{name: gpu-0, counters: {m: {value: 8}}}]"))
    assert found.counter_sets == (CounterSet("gpu-0", (("m", 8000),)),)
    use = device("consumesCounters: [{counterSet: gpu-0, counters: {b: {value: 1}, a: {value: 2}}}]")
    assert use.consumes == (CounterUse("gpu-0", (("a", 2000), ("b", 1000))),)


def test_taints_of_unknown_effects_do_nothing() -> None:
    found = device(
        "taints: [{key: a, value: b, effect: NoExecute, timeAdded: '1970-01-01T00:00:01Z'}, {key: c, effect: Later}]"
    )
    assert found.taints == (DeviceTaint("a", "b", "NoExecute", 1000), DeviceTaint("c", "", "None"))


def test_what_ties_a_device_to_its_node() -> None:
    found = device("bindsToNode: true, bindingConditions: [Ready], bindingFailureConditions: [Broken]")
    assert (found.binds_to_node, found.conditions, found.failure_conditions) == (True, ("Ready",), ("Broken",))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("devices: [{name: g, attributes: {a: {}}}]", "spec.devices[0].attributes[d.io/a]"),
        ("devices: [{name: g, capacity: {a: {value: much}}}]", "spec.devices[0].capacity[a].value"),
        ("devices: [{name: g, capacity: {a: {value: -1}}}]", "spec.devices[0].capacity[a].value"),
        ("devices: [{name: g, consumesCounters: [{counterSet: s, compatibilityGroups: [x]}]}]",
         "spec.devices[0].consumesCounters[0].compatibilityGroups"),
        ("sharedCounters: [{name: s, counters: {c: {value: x}}}]", "spec.sharedCounters[0].counters[c].value"),
        ("nodeSelector: {nodeSelectorTerms: [{}, {}]}", "spec.nodeSelector.nodeSelectorTerms"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_makes_the_pool_unusable_and_is_reported(text: str, field: str) -> None:
    feed = Translator()
    (event,) = feed.node_records.resource_slices(added(slice_of(text)))
    assert isinstance(event, ev.SliceChanged)
    assert event.slice.problem is not None
    assert event.slice.problem.field == field
    ((finding,),) = feed.findings.values()
    assert (finding.kind, finding.name, finding.problem) == ("ResourceSlice", "s", event.slice.problem)
    feed.node_records.resource_slices([Change("modified", slice_of())])
    assert feed.findings == {}


class TestTaintRules:
    """Rules add taints to devices that match, after the devices' own."""

    DEVICES = "devices: [{name: a, taints: [{key: own, effect: NoSchedule}]}, {name: b}]"

    def taints(self, *events: ev.Event) -> list[list[str]]:
        (event,) = events
        assert isinstance(event, ev.SliceChanged)
        return [[taint.key for taint in device.taints] for device in event.slice.devices]

    def test_by_driver_pool_and_device(self) -> None:
        for selector, expected in (
            ({"driver": "d.io"}, [["own", "broken"], ["broken"]]),
            ({"driver": "d.io", "pool": "p", "device": "b"}, [["own"], ["broken"]]),
            ({"pool": "other"}, [["own"], []]),
            ({"driver": "other"}, [["own"], []]),
        ):
            records = Translator().node_records
            records.taint_rules(added(rule(**selector)))
            assert self.taints(*records.resource_slices(added(slice_of(self.DEVICES)))) == expected

    def test_none_without_a_selector(self) -> None:
        records = Translator().node_records
        document = {"metadata": {"name": "r"}, "spec": {"taint": {"key": "a", "effect": "NoSchedule"}}}
        records.taint_rules(added(wire(DeviceTaintRule, yaml.safe_dump(document))))
        assert self.taints(*records.resource_slices(added(slice_of(self.DEVICES)))) == [["own"], []]

    def test_slices_are_reported_again_when_rules_come_move_and_go(self) -> None:
        records = Translator().node_records
        records.resource_slices(added(slice_of(self.DEVICES), slice_of("devices: [{name: x}]", "t", driver="e.io")))
        assert self.taints(*records.taint_rules(added(rule(driver="d.io", device="a")))) == [["own", "broken"], []]
        assert records.taint_rules([Change("modified", rule(driver="d.io", device="a"))]) == []
        moved = records.taint_rules([Change("modified", rule(driver="e.io"))])
        reported = {event.slice.name: event.slice for event in moved if isinstance(event, ev.SliceChanged)}
        assert [len(device.taints) for name in "st" for device in reported[name].devices] == [1, 0, 1]
        (event,) = records.taint_rules(deleted(rule(driver="e.io")))
        assert isinstance(event, ev.SliceChanged)
        assert event.slice.name == "t" and not event.slice.devices[0].taints

    def test_several_count_in_the_order_of_their_names(self) -> None:
        records = Translator().node_records
        records.taint_rules(added(rule("z", "z", driver="d.io"), rule("b", "b", driver="d.io")))
        assert self.taints(*records.resource_slices(added(slice_of("devices: [{name: a}]")))) == [["b", "z"]]


def test_a_slice_that_goes_is_reported() -> None:
    records = Translator().node_records
    records.resource_slices(added(slice_of("devices: [{name: a, bindsToNode: true}]")))
    assert records.resource_slices(deleted(slice_of())) == [ev.SliceRemoved("s")]
