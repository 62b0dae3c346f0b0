# SPDX-License-Identifier: Apache-2.0
"""Amounts of any size, wherever an object can have one: nothing overflows, nothing is unusable, nothing takes long."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from dovetail.cli import cli
from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Evict
from dovetail.core.event_handlers import apply
from dovetail.core.model import CPU
from dovetail.core.policy import Policy
from dovetail.core.quantities import MAX_AMOUNT, MAX_QUANTITY
from dovetail.core.state import State
from dovetail.kube.manifests.cluster import read

Object = dict[str, Any]
NOW_MS = 1_800_000_000_000
AROUND = [2**31, 2**53, 2**62, 2**63]
SIZES = [1, 2, 2**20, *(size + more for size in AROUND for more in (-1, 0, 1)), 10**30]
DEVICES = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "rdma/hca", "example.com/x")


def reported(folder: Path, *objects: Object) -> State:
    file = folder / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    state = State(Policy())
    for event in read([str(file)]).events:
        apply(state, event)
    return state


def made(kind: str, name: str, api: str = "v1", **more: Any) -> Object:
    meta = {"name": name, **more.pop("metadata", {})}
    return {"apiVersion": api, "kind": kind, "metadata": meta, **more}


def node(name: str = "n", labels: Object | None = None, **allocatable: str) -> Object:
    amounts = {"cpu": "64", "memory": "1Ti", "pods": "110", **allocatable}
    return made("Node", name, metadata={"labels": labels or {}}, status={"allocatable": amounts, "capacity": amounts})


def pod(name: str, amounts: Object, annotations: Object | None = None, **spec: Any) -> Object:
    containers = [{"name": "main", "image": "x", "resources": {"requests": amounts, "limits": amounts}}]
    queue = spec.pop("queue", "default")
    meta = {
        "namespace": "default", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"dovetail.dev/queue": queue, "app": "x"}, "annotations": annotations or {},
    }  # fmt: skip
    return made("Pod", name, metadata=meta, spec={"schedulerName": "dovetail", "containers": containers, **spec})


def starts(state: State) -> set[str]:
    return {decision.uid for decision in step(state, [], NOW_MS) if isinstance(decision, Bind)}


@pytest.mark.slow
@pytest.mark.parametrize("resource", ["cpu", "memory", "ephemeral-storage", "example.com/x"])
def test_whatever_is_asked_for_fits_where_there_is_as_much(tmp_path: Path, resource: str) -> None:
    """In the core's unit, and up to the most that is counted."""
    for asked, there in product(SIZES, SIZES):
        state = reported(tmp_path, node(**{resource: str(there)}), pod("p", {resource: str(asked)}))
        of_cpu = 1000 if resource == CPU else 1
        fits = min(asked * of_cpu, MAX_AMOUNT) <= min(there * of_cpu, MAX_AMOUNT)
        assert starts(state) == ({"p"} if fits else set()), (asked, there)
        assert state.cluster.check() == []


def test_however_much_bound_pods_ask_for_a_node_is_full_and_not_empty(tmp_path: Path) -> None:
    asking = [pod("p", {"memory": "1"}), pod("q", {"cpu": "1"})]
    bound = [pod(f"b{i}", {"memory": str(10**30), "nvidia.com/gpu": str(10**30)}, nodeName="n") for i in range(300)]
    state = reported(tmp_path, node(**{"nvidia.com/gpu": "8", "pods": "1000"}), *bound, *asking)
    assert starts(state) == {"q"}
    for one in bound:
        apply(state, ev.PodRemoved(one["metadata"]["uid"]))
    assert starts(state) == {"p"}
    assert state.cluster.check() == []


def device_pool(value: str, counter: str, **device: Any) -> list[Object]:
    api, where = "resource.k8s.io/v1", {"driver": "gpu.test", "nodeName": "n"}
    own = {"name": "n", "generation": 1, "resourceSliceCount": 2}
    uses = [{"counterSet": "s", "counters": {"c": {"value": counter}}}]
    devices = [{"name": f"d{i}", "capacity": {"memory": {"value": value}}, **device} for i in range(2)]
    devices.append({"name": "part", "consumesCounters": uses, "attributes": {"part": {"bool": True}}})
    return [
        made("DeviceClass", "gpu", api, spec={"selectors": [{"cel": {"expression": "device.driver == 'gpu.test'"}}]}),
        made("ResourceSlice", "devices", api, spec={**where, "pool": own, "devices": devices}),
        made("ResourceSlice", "counters", api, spec={
            **where, "pool": own, "sharedCounters": [{"name": "s", "counters": {"c": {"value": "1000"}}}],
        }),
    ]  # fmt: skip


def claim_of(name: str, **request: Any) -> Object:
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu", **request}}]
    meta = {"namespace": "default", "uid": f"{name}-uid"}
    return made("ResourceClaim", name, "resource.k8s.io/v1", metadata=meta, spec={"devices": {"requests": requests}})


def claiming(name: str, **request: Any) -> list[Object]:
    return [claim_of(f"{name}-claim", **request), pod(name, {}, resourceClaims=[
        {"name": "c", "resourceClaimName": f"{name}-claim"}
    ])]  # fmt: skip


@pytest.mark.slow
def test_a_pool_stays_usable_whatever_its_devices_state_of_themselves(tmp_path: Path) -> None:
    for size in SIZES:
        state = reported(tmp_path, node(), *device_pool(str(size), str(size)), *claiming("p"))
        assert starts(state) == {"p"}, size
        assert state.shares.accounting.capacity()["gpu"] == 3000


@pytest.mark.slow
def test_a_share_of_a_device_can_be_had_up_to_what_there_is(tmp_path: Path) -> None:
    for asked, there in product(SIZES, SIZES):
        objects = device_pool(str(there), "1", allowMultipleAllocations=True)
        state = reported(tmp_path, node(), *objects, *claiming("p", capacity={"requests": {"memory": str(asked)}}))
        fits = min(asked, MAX_QUANTITY) <= min(there, MAX_QUANTITY)
        assert starts(state) == ({"p"} if fits else set()), (asked, there)


def test_a_partition_can_be_had_where_counters_suffice(tmp_path: Path) -> None:
    only = [{"cel": {"expression": "device.attributes['gpu.test'].?part.orValue(false)"}}]
    for size in SIZES:
        state = reported(tmp_path, node(), *device_pool("1", str(size)), *claiming("p", selectors=only))
        assert starts(state) == ({"p"} if size <= 1000 else set()), size


def test_limits_and_guarantees_of_any_size_are_kept(tmp_path: Path) -> None:
    for size in SIZES:
        spec = {"limit": {"memory": str(size)}, "guarantee": {"memory": str(size), "gpu": str(size)}}
        queue = made("Queue", "q", "dovetail.dev/v1alpha1", spec=spec)
        state = reported(tmp_path, node(), queue, pod("p", {"memory": "2Mi", "cpu": "1"}, queue="q"))
        assert state.shares.tree.problem("q") is None
        assert starts(state) == ({"p"} if size >= 2**21 else set()), size


class Dice:
    """Objects in which anything may be of any size."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _size(self, most: int = 10**30) -> int:
        return min(self._random.choice(SIZES), most)

    def _quantity(self) -> str:
        return f"{self._size()}{self._random.choice(['', '', '', 'm', 'Gi', 'E'])}"

    def _amounts(self, names: tuple[str, ...], often: float, usual: str) -> Object:
        return {name: self._quantity() if self._chance(0.3) else usual for name in names if self._chance(often)}

    def objects(self) -> list[Object]:
        found = [self._node(f"n{i}") for i in range(self._random.randint(1, 3))]
        found += [self._queue(name) for name in "ab"]
        more = {"allowMultipleAllocations": True} if self._chance(0.5) else {}
        found += device_pool(self._quantity(), self._quantity(), **more)
        for i in range(self._random.randint(2, 7)):
            found += self._pod(f"p{i}")
        return found

    def _node(self, name: str) -> Object:
        labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        for key in ("memory", "count", "replicas"):
            if self._chance(0.5):
                labels[f"nvidia.com/gpu.{key}"] = str(self._random.choice([8, self._size()]))
        if self._chance(0.4):
            labels["nvidia.com/gpu.sharing-strategy"] = self._random.choice(["time-slicing", "mps"])
        native = self._amounts(("cpu", "memory", "ephemeral-storage", "pods"), 0.9, "64Gi")
        devices = {name: str(self._size()) if self._chance(0.4) else "8" for name in DEVICES if self._chance(0.5)}
        return node(name, labels, **native, **devices)

    def _queue(self, name: str) -> Object:
        spec = {field: self._amounts(("cpu", "memory", "gpu"), 0.4, "8") for field in ("guarantee", "limit")}
        return made("Queue", name, "dovetail.dev/v1alpha1", spec=spec)

    def _pod(self, name: str) -> list[Object]:
        amounts = self._amounts(("cpu", "memory", "ephemeral-storage"), 0.7, "1")
        amounts |= {name: str(self._size()) if self._chance(0.3) else "1" for name in DEVICES if self._chance(0.2)}
        annotations = {"dovetail.dev/gpu-memory": f"{self._size()}Mi"} if "nvidia.com/gpu.shared" in amounts else {}
        for key in ("max-runtime", "checkpoint-interval", "startup-time"):
            if self._chance(0.2):
                annotations[f"dovetail.dev/{key}"] = f"{self._size(999_999_999)}d"
        if self._chance(0.2):
            annotations |= {"dovetail.dev/gang": "g", "dovetail.dev/gang-min": str(self._size(999_999_999))}
        spec: Object = {"queue": self._random.choice("ab"), "terminationGracePeriodSeconds": self._size(2**63 - 1)}
        spec["priority"] = self._random.choice([0, 0, 2**31 - 1, -(2**31)])
        if self._chance(0.3):
            spec["topologySpreadConstraints"] = [{
                "maxSkew": self._size(2**31 - 1), "minDomains": self._size(2**31 - 1),
                "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "x"}},
            }]  # fmt: skip
        if self._chance(0.3):
            spec["nodeName"] = "n0"
        claims = []
        if self._chance(0.3):
            asked = {"capacity": {"requests": {"memory": self._quantity()}}} if self._chance(0.5) else {}
            claims.append(claim_of(f"{name}-claim", count=self._size(2**63 - 1) if self._chance(0.3) else 1, **asked))
            spec["resourceClaims"] = [{"name": "c", "resourceClaimName": f"{name}-claim"}]
        return [*claims, pod(name, amounts, annotations, **spec)]


def exact(state: State) -> list[str]:
    """Where what is left of a node is not what is there less what pods hold, in numbers without end."""
    nodes, wrong = state.cluster.nodes, []
    for name, slot in nodes.slots.items():
        placed = [one for one in state.cluster.placements.values() if one.slot == slot and not one.has_gpus]
        if any(one.slot == slot and one.has_gpus for one in state.cluster.placements.values()):
            # Shares of GPUs are counted apart.
            continue
        for column in range(len(nodes.free)):
            held = sum(int(one.shape.need[column, 0]) for one in placed if column < one.shape.width)
            left = int(nodes.allocatable[column, slot]) - held
            if not -(2**62) < left < 2**62 or left != nodes.free[column, slot]:
                wrong.append(f"{name} {column}: {nodes.free[column, slot]}, but {left} is true")
    return wrong


@pytest.mark.slow
def test_nothing_overflows_whatever_objects_state(tmp_path: Path) -> None:
    bound = 0
    for seed in range(300):
        state = reported(tmp_path, *Dice(seed).objects())
        for hour in range(3):
            for decision in step(state, [], NOW_MS + hour * 3_600_000):
                if isinstance(decision, Bind):
                    bound += 1
                    known = state.workloads.pods[decision.uid]
                    apply(state, ev.PodChanged(replace(known, node=decision.node, bound_ms=NOW_MS)))
                elif isinstance(decision, Evict):
                    for uid in decision.uids:
                        apply(state, ev.PodRemoved(uid))
            assert state.cluster.check() == []
            assert exact(state) == []
        state.queue_snapshots(NOW_MS)
    assert bound > 100


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
def test_commands_show_whatever_objects_state(tmp_path: Path, seed: int) -> None:
    file = tmp_path / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": Dice(seed).objects()}))
    for command in (["queue"], ["share"], ["free"], ["why", "default/p0"], ["priority", "default/p1"]):
        found = CliRunner().invoke(cli, [*command, "-f", str(file)])
        assert found.exception is None or isinstance(found.exception, SystemExit), found.exc_info
