# SPDX-License-Identifier: Apache-2.0
"""The pools of devices: ResourceSlices, and the DeviceTaintRules that taint their devices.

Rules: a slice is reported with the taints of all rules, and again when a rule changes its taints. The core decides
which slices of a pool count.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.core import events as ev
from dovetail.core.dra.types import Slice
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects.claims import DeviceTaintRule, ResourceSlice
from dovetail.kube.translate import slices


class Pools:
    """`find` receives the findings of each slice: the parts that cannot be used."""

    def __init__(self, find: Callable[[str, tuple[LayoutFinding, ...]], None]) -> None:
        self._find = find
        self._reported: dict[str, Slice] = {}
        self._slices: dict[str, ResourceSlice] = {}
        self._rules: dict[str, DeviceTaintRule] = {}

    def put_slice(self, obj: ResourceSlice, deleted: bool) -> list[ev.Event]:
        name = obj.metadata.name
        self._slices.pop(name, None)
        if not deleted:
            self._slices[name] = obj
            return self._report(obj)
        self._find(f"ResourceSlice {name}", ())
        return [ev.SliceRemoved(name)] if self._reported.pop(name, None) is not None else []

    def put_rule(self, obj: DeviceTaintRule, deleted: bool) -> list[ev.Event]:
        """Report the slices again that the rule selects, or selected before."""
        about = [rule for rule in (self._rules.pop(obj.metadata.name, None), obj) if rule is not None]
        if not deleted:
            self._rules[obj.metadata.name] = obj
        touched = [s for s in self._slices.values() if any(slices.concerns(rule, s) for rule in about)]
        return [event for one in touched for event in self._report(one)]

    def _report(self, obj: ResourceSlice) -> list[ev.Event]:
        record = slices.resource_slice(obj, self._rules.values())
        if self._reported.get(record.name) == record:
            return []
        self._reported[record.name] = record
        findings = (LayoutFinding("ResourceSlice", record.name, record.problem),) if record.problem is not None else ()
        self._find(f"ResourceSlice {record.name}", findings)
        return [ev.SliceChanged(record)]
