# SPDX-License-Identifier: Apache-2.0
"""What one operator does with a GPUStack: install, change, restore, refuse, uninstall."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from dovetail.kube.objects.stack import GPUStack, NodeCounts, StackStatus
from dovetail.operator import apply
from dovetail.operator.found import Found
from dovetail.operator.parts import StackPart
from dovetail.operator.rendering.stack_objects import MANAGED_BY, Desired
from dovetail.playground import Fault
from tests.operator.stack_world import STACKS, Document, World, small, stamped

pytestmark = pytest.mark.usefixtures("no_waits")

AGENTS = "dovetail-agent"
FORBIDDEN = 'clusterroles.rbac.authorization.k8s.io is forbidden: User "operator" cannot patch resource'


def _image(world: World, name: str = "dovetail-agent") -> str:
    found = world.get("daemonsets.apps", AGENTS, name) or {}
    return str(found["spec"]["template"]["spec"]["containers"][0]["image"]) if found else ""


def _edit(world: World, **template: Any) -> None:
    """Somebody changes the DaemonSet of the agents by hand, as the API would carry it out."""
    found = world.get("daemonsets.apps", AGENTS, "dovetail-agent")
    assert found is not None
    pod = found["spec"]["template"]["spec"]
    changed = found["spec"]["template"] | {"spec": pod | template}
    world.playground.put(
        found | {"apiVersion": "apps/v1", "kind": "DaemonSet"} | {"spec": found["spec"] | {"template": changed}}
    )


@pytest.mark.slow
async def test_a_stack_is_installed_and_reported(world: World) -> None:
    world.stack()
    async with world.operator():
        await world.applied()
        agent = world.get("daemonsets.apps", AGENTS, "dovetail-agent")
        assert agent is not None and agent["metadata"]["ownerReferences"][0]["kind"] == "GPUStack"
        assert world.condition("Accepted")[:2] == ("True", "Valid")
        stack = world.get(STACKS, "", "gpus")
        assert stack is not None
        assert stack["metadata"]["finalizers"] == ["dovetail.dev/operator"]
        assert [(one["name"], one["image"]) for one in stack["status"]["components"]] == [
            ("dovetail-agent", "dovetail:1"),
            ("dovetail-scheduler", "dovetail:1"),
        ]


async def test_a_stack_is_ready_once_its_pods_are(world: World) -> None:
    world.stack()
    async with world.operator():
        await world.until(lambda: world.condition("Ready")[1] == "ComponentsNotReady")
        assert "dovetail-scheduler: 2 of 2 pods are not ready" in world.condition("Ready")[2]
        world.playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}})
        await world.until(lambda: world.condition("Ready")[:2] == ("True", "Ready"))
        stack = world.get(STACKS, "", "gpus")
        assert stack is not None
        assert [(one["desired"], one["ready"]) for one in stack["status"]["components"]] == [(1, 1), (2, 2)]


async def test_what_is_as_wanted_is_not_written_again(world: World) -> None:
    world.stack()
    async with world.operator():
        await world.applied()
        await world.quiet()
        version = world.playground.store.version
        world.playground.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "of-others"}})
        await asyncio.sleep(0.1)
        assert world.playground.store.version == version + 1
    async with world.operator():
        await asyncio.sleep(0.3)
    assert world.playground.store.version == version + 1


async def test_a_change_of_the_spec_changes_objects_and_prunes_others(world: World) -> None:
    world.stack(scheduler={"fabric": ["zone"]})
    async with world.operator():
        await world.applied()
        config = world.get("configmaps", AGENTS, "config")
        assert config is not None and config["data"] == {"fabric": "zone"}
        world.stack(agent={"pools": [{"name": "a", "nodeSelector": {}}]}, image={"repository": "dovetail", "tag": "2"})
        await world.applied()
        assert _image(world, "dovetail-agent-a") == "dovetail:2"
        assert _image(world) == ""
        # A field that was applied before and is not wanted any more is gone.
        config = world.get("configmaps", AGENTS, "config")
        assert config is not None and config.get("data", {}) == {}


async def test_a_stack_that_contradicts_itself_changes_nothing(world: World) -> None:
    world.stack()
    async with world.operator():
        await world.applied()
        world.stack(driver={"mode": "Container"}, image={"repository": "dovetail", "tag": "2"})
        await world.until(lambda: world.condition("Accepted")[1] == "Contradiction")
        assert "spec.driver.image" in world.condition("Accepted")[2]
        assert world.condition("Ready")[:2] == ("False", "Contradiction")
        assert _image(world) == "dovetail:1"
        world.stack(image={"repository": "dovetail", "tag": "2"})
        await world.applied()
        assert _image(world) == "dovetail:2"


async def test_of_two_stacks_the_older_counts(world: World) -> None:
    world.stack("second")
    second = world.get(STACKS, "", "second")
    assert second is not None
    world.playground.store.put_raw(
        STACKS, second | {"metadata": second["metadata"] | {"creationTimestamp": "2999-01-01T00:00:00Z"}}
    )
    world.stack("first")
    async with world.operator():
        await world.applied("first")
        await world.until(lambda: world.condition("Ready", "second")[1] == "AnotherStack")
        assert world.condition("Accepted", "second")[:2] == ("False", "AnotherStack")
        assert "first is older" in world.condition("Accepted", "second")[2]
        agent = world.get("daemonsets.apps", AGENTS, "dovetail-agent")
        assert agent is not None and agent["metadata"]["ownerReferences"][0]["name"] == "first"
        assert "finalizers" not in world.get(STACKS, "", "second")["metadata"]  # type: ignore[index]
        world.playground.delete(STACKS, "", "first")
        await world.applied("second")
        agent = world.get("daemonsets.apps", AGENTS, "dovetail-agent")
        assert agent is not None and agent["metadata"]["ownerReferences"][0]["name"] == "second"


async def test_edits_of_others_are_undone_and_fields_of_others_stay(world: World) -> None:
    world.stack()
    async with world.operator():
        await world.applied()
        _edit(world, containers=[{"name": "main", "image": "evil"}, {"name": "sidecar", "image": "theirs"}])
        await world.until(lambda: _image(world) == "dovetail:1")
        agent = world.get("daemonsets.apps", AGENTS, "dovetail-agent")
        assert agent is not None
        names = [one["name"] for one in agent["spec"]["template"]["spec"]["containers"]]
        assert names == ["main", "sidecar"]


async def test_what_others_delete_or_disown_is_made_again(world: World) -> None:
    world.stack()
    async with world.operator():
        await world.applied()
        world.playground.delete("clusterroles.rbac.authorization.k8s.io", "", "dovetail-agent")
        await world.until(lambda: world.get("clusterroles.rbac.authorization.k8s.io", "", "dovetail-agent"))
        config = world.get("configmaps", AGENTS, "config")
        assert config is not None
        world.playground.put(
            config | {"apiVersion": "v1", "kind": "ConfigMap", "metadata": config["metadata"] | {"labels": {}}}
        )
        key, value = MANAGED_BY
        await world.until(
            lambda: world.get("configmaps", AGENTS, "config")["metadata"]["labels"].get(key) == value  # type: ignore[index]
        )


async def test_edits_again_and_again_are_undone_more_and_more_slowly(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "_PAUSE_S", 0.01)
    world.stack()
    async with world.operator():
        await world.applied()
        for _ in range(4):
            await world.until(lambda: _image(world) == "dovetail:1")
            _edit(world, containers=[{"name": "main", "image": "evil"}])
            await asyncio.sleep(0.02)
        await world.applied(reason="Contested")
        assert (
            "DaemonSet dovetail-agent/dovetail-agent: others change it again and again" in world.condition("Applied")[2]
        )
        assert world.condition("Ready")[1] == "NotApplied"


async def test_what_a_webhook_alters_is_not_written_again_and_again(world: World) -> None:
    """Its playground lowers each number that is applied, as a webhook may."""
    writes = world.playground._writes
    update, create = writes.update, writes.create

    def lowered(obj: Document) -> Document:
        if "Deployment" in str(obj.get("metadata", {}).get("managedFields")) or "replicas" not in obj.get("spec", {}):
            return obj
        return obj | {"spec": obj["spec"] | {"replicas": 1}}

    writes.update = lambda resource, key, new, *a, **k: update(resource, key, lowered(new), *a, **k)  # type: ignore[method-assign]
    writes.create = lambda resource, ns, new, *a, **k: create(resource, ns, lowered(new), *a, **k)  # type: ignore[method-assign]
    world.stack()
    async with world.operator():
        await world.applied()
        assert "Deployment dovetail-agent/dovetail-scheduler: spec.replicas" in world.condition("Applied")[2]
        await world.quiet()
        requests = world.playground.faults.add(Fault("delay", "PATCH", "deployments", times=1000))
        for number in range(5):
            world.playground.put(
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": f"x{number}", "labels": dict([MANAGED_BY])},
                }
            )
            await asyncio.sleep(0.05)
        assert requests.times == 1000


async def test_a_webhook_that_refuses_holds_up_only_its_objects(world: World) -> None:
    why = 'admission webhook "images.example.com" denied the request: the image has no signature'
    fault = world.playground.faults.add(Fault("answer", "PATCH", "daemonsets", times=10_000, status=400, message=why))
    world.stack()
    async with world.operator():
        await world.applied(reason="RefusedByAdmission")
        assert "the image has no signature" in world.condition("Applied")[2]
        assert world.get("deployments.apps", AGENTS, "dovetail-scheduler") is not None
        assert world.condition("Ready")[1] == "NotApplied"
        fault.times = 0
        await world.applied()
        assert _image(world) == "dovetail:1"


async def test_a_right_that_is_missing_is_named(world: World) -> None:
    faults = world.playground.faults
    fault = faults.add(Fault("answer", "PATCH", "clusterroles", times=10_000, status=403, message=FORBIDDEN))
    world.stack()
    async with world.operator():
        await world.applied(reason="Forbidden")
        assert "cannot patch resource" in world.condition("Applied")[2]
        assert _image(world) == "dovetail:1"
        fault.times = 0
        await world.applied()


async def test_a_kind_that_may_not_be_read_is_not_written(world: World) -> None:
    faults = world.playground.faults
    why = 'clusterroles.rbac.authorization.k8s.io is forbidden: User "operator" cannot list resource'
    fault = faults.add(Fault("answer", "WATCH", "clusterroles", times=10_000, status=403, message=why))
    world.stack()
    async with world.operator():
        await world.applied(reason="Forbidden")
        assert "cannot list resource" in world.condition("Applied")[2]
        assert world.get("clusterroles.rbac.authorization.k8s.io", "", "dovetail-agent") is None
        assert _image(world) == "dovetail:1"
        fault.times = 0
        await world.applied()
        assert world.get("clusterroles.rbac.authorization.k8s.io", "", "dovetail-agent") is not None


async def test_nothing_is_pruned_while_an_object_is_refused(world: World) -> None:
    world.stack(agent={"pools": [{"name": "a"}]})
    async with world.operator():
        await world.applied()
        why = "admission webhook denied the request"
        fault = world.playground.faults.add(Fault("answer", "PATCH", "daemonsets", times=9999, status=400, message=why))
        world.stack(agent={"pools": [{"name": "b"}]})
        await world.applied(reason="RefusedByAdmission")
        await world.quiet()
        assert _image(world, "dovetail-agent-a") == "dovetail:1"
        fault.times = 0
        await world.applied()
        await world.until(lambda: not _image(world, "dovetail-agent-a"))
        assert _image(world, "dovetail-agent-b") == "dovetail:1"


async def test_what_may_not_be_deleted_is_reported_and_all_else_goes_on(world: World) -> None:
    world.stack(agent={"pools": [{"name": "a"}]})
    async with world.operator():
        await world.applied()
        why = "daemonsets.apps is forbidden: cannot delete resource"
        fault = world.playground.faults.add(
            Fault("answer", "DELETE", "daemonsets", times=9999, status=403, message=why)
        )
        world.stack(agent={"pools": [{"name": "b"}]})
        await world.applied(reason="Forbidden")
        assert "DaemonSet dovetail-agent/dovetail-agent-a" in world.condition("Applied")[2]
        assert _image(world, "dovetail-agent-b") == "dovetail:1"
        world.playground.delete(STACKS, "", "gpus")
        await world.until(
            lambda: "cannot be deleted" in world.condition("Ready")[2] and why in world.condition("Ready")[2]
        )
        fault.times = 0
        await world.until(lambda: world.get(STACKS, "", "gpus") is None)


async def test_a_kind_that_is_not_served_is_reported(world: World) -> None:
    monitor = {
        "apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor",
        "metadata": {"name": "m", "namespace": "dovetail-system"}, "spec": {},
    }  # fmt: skip

    def render(stack: GPUStack, found: Found, image: str) -> Desired:
        return Desired((*small(stack, found, image).objects, *stamped(stack, monitor).objects))

    world.stack()
    async with world.operator(render):
        await world.applied(reason="KindMissing")
        assert "ServiceMonitor dovetail-system/m" in world.condition("Applied")[2]


@pytest.mark.slow
async def test_the_api_server_may_be_away(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    world.stack()
    async with world.operator() as running:
        await world.applied()
        await world.playground.faults.go_away()
        world.stack(image={"repository": "dovetail", "tag": "2"})
        await asyncio.sleep(1.0)
        assert not running.done()
        await world.playground.faults.come_back()
        await world.applied()
        assert _image(world) == "dovetail:2"


async def test_uninstallation_removes_what_is_ours_and_nothing_else(world: World) -> None:
    theirs = {"apiVersion": "v1", "kind": "ConfigMap"}
    for name, labels in (("labelled", dict([MANAGED_BY])), ("plain", {})):
        world.playground.put(theirs | {"metadata": {"name": name, "namespace": "default", "labels": labels}})
    before = world.contents()
    world.playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}})
    world.stack()
    async with world.operator():
        await world.until(lambda: world.condition("Ready")[1] == "Ready")
        world.playground.delete(STACKS, "", "gpus")
        await world.until(lambda: world.get(STACKS, "", "gpus") is None)
        await world.until(lambda: not world.playground.store.list("pods"))
        await world.quiet()
    assert world.contents().keys() - before.keys() == {"nodes /n0"}
    assert before.keys() - world.contents().keys() == set()


async def test_workloads_end_before_what_they_need(world: World) -> None:
    order: list[str] = []
    for name in ("daemonsets.apps", "deployments.apps", "configmaps", "clusterroles.rbac.authorization.k8s.io"):
        world.playground.store.collection(name).listeners.append(
            lambda change, name=name: order.append(name) if change.removed else None
        )
    world.stack()
    async with world.operator():
        await world.applied()
        world.playground.delete(STACKS, "", "gpus")
        await world.until(lambda: world.get(STACKS, "", "gpus") is None)
    assert set(order[:2]) == {"daemonsets.apps", "deployments.apps"}
    assert set(order[2:]) == {"configmaps", "clusterroles.rbac.authorization.k8s.io"}


class _Part(StackPart):
    """A part that has written to nodes, and needs a while to take it back."""

    def __init__(self) -> None:
        self.stacks: list[str | None] = []
        self.holding = 2
        self.ran = False

    async def run(self) -> None:
        self.ran = True

    def follow(self, stack: GPUStack | None) -> None:
        self.stacks.append(stack.metadata.name if stack is not None else None)

    def report(self, status: StackStatus) -> StackStatus:
        return StackStatus(version=status.version, nodes=NodeCounts(nodes=7))

    def waits(self) -> str:
        return "5 of 7 nodes are not ready"

    async def release(self, stack: GPUStack) -> str:
        self.holding = max(0, self.holding - 1)
        return f"{self.holding} taints" if self.holding else ""


async def test_a_part_reports_and_takes_back_before_objects_go(world: World) -> None:
    part, seen = _Part(), []
    world.playground.store.collection("daemonsets.apps").listeners.append(
        lambda change: seen.append(part.holding) if change.removed else None
    )
    world.stack()
    async with world.operator(parts_of=lambda _shared: (part,)):
        await world.until(lambda: world.condition("Ready")[1] == "NodesNotReady")
        assert world.condition("Ready")[2] == "5 of 7 nodes are not ready"
        assert world.get(STACKS, "", "gpus")["status"]["nodes"]["nodes"] == 7  # type: ignore[index]
        assert part.ran and part.stacks[-1] == "gpus"
        world.playground.delete(STACKS, "", "gpus")
        await world.until(lambda: world.get(STACKS, "", "gpus") is None)
    assert seen == [0] and part.stacks[-1] is None


@pytest.mark.slow
async def test_only_the_leader_writes_and_the_next_one_takes_over(world: World) -> None:
    async with world.operator(leader_elect=True):
        await world.until(lambda: world.get("leases.coordination.k8s.io", "dovetail-system", "dovetail-operator"))
        async with world.operator(leader_elect=True) as second:
            world.stack()
            await world.applied()
            assert not second.done()
    lease = world.get("leases.coordination.k8s.io", "dovetail-system", "dovetail-operator")
    assert lease is not None and lease["spec"]["holderIdentity"] == ""
    world.stack(image={"repository": "dovetail", "tag": "2"})
    async with world.operator(leader_elect=True):
        await world.applied()
        assert _image(world) == "dovetail:2"
