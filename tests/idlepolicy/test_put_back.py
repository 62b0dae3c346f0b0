# SPDX-License-Identifier: Apache-2.0
"""What something else starts again is stopped once, and no more: no oscillation, however long it goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import yaml

from dovetail.idlepolicy.decision import IdlePolicy, next_act, step_of
from dovetail.idlepolicy.put_back import PUT_BACK_MS, put_back
from dovetail.idlepolicy.reading import PodsOwner
from dovetail.idlepolicy.records import consequence
from dovetail.idlepolicy.stoppable import Stoppable, stoppable
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.objects.holding import HoldingPod
from tests.idlepolicy.world import HOUR, MINUTE, Document, selected, text, workload
from tools.controlplane.plane import Plane

POLICY = IdlePolicy(HOUR, 4 * HOUR, HOUR, acts_per_hour=60)
START = 1_900_000_000_000


def owned(manager: str, path: str, at_ms: int, **more: Any) -> Document:
    """An entry of managedFields."""
    fields: Any = {}
    for step in reversed(path.split(".")):
        fields = {f"f:{step}": fields}
    return {"manager": manager, "operation": "Update", "time": text(at_ms), "fieldsV1": fields, **more}


def stopped(at_ms: int, *entries: Document, note: str = ", replicas 2") -> Document:
    annotations = {"dovetail.dev/idle-stopped": text(at_ms) + note}
    return {"metadata": {"annotations": annotations, "managedFields": list(entries)}, "spec": {"replicas": 2}}


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (owned("argocd-controller", "spec.replicas", START + 3 * MINUTE), "argocd-controller"),
        (owned("keda", "spec.replicas", START + 1000, subresource="scale"), "keda"),
        (
            owned("kustomize-controller", "spec.replicas", START + PUT_BACK_MS, operation="Apply"),
            "kustomize-controller",
        ),
        (owned("kustomize-controller", "spec.replicas", START + PUT_BACK_MS + 1000), ""),
        (owned("argocd-controller", "spec.replicas", START - 1000), ""),
        (owned("argocd-controller", "spec.template", START + 1000), ""),
        (owned("kubectl-scale", "spec.replicas", START + 1000), ""),
        (owned("dovetail-idle-policy", "spec.replicas", START), ""),
        # The API server writes no time for what is written by the subresource `scale`.
        ({"manager": "keda", "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}, "keda"),
        ({"manager": "x", "time": "soon", "fieldsV1": {"f:spec": {"f:replicas": {}}}}, "x"),
        ({"manager": "kube-controller-manager", "fieldsV1": {"f:spec": {"f:replicas": {}}}}, ""),
        ({"manager": "x", "time": text(START), "fieldsV1": {"f:spec": "f:replicas"}}, ""),
    ],
)
def test_the_manager_that_put_it_back(entry: Document, found: str) -> None:
    back = put_back(stopped(START, entry), "spec.replicas")
    assert (back.manager if back is not None else "") == found


def test_without_a_stop_or_a_manager_nothing_was_put_back() -> None:
    entry = owned("argocd-controller", "spec.replicas", START)
    assert put_back(stopped(START), "spec.replicas") is None
    assert put_back({"metadata": {"managedFields": [entry]}}, "spec.replicas") is None
    for wrong in ("", "yesterday", "2030-01-01T00:00:00", "x" * 10_000):
        document = stopped(START, entry)
        document["metadata"]["annotations"]["dovetail.dev/idle-stopped"] = wrong
        assert put_back(document, "spec.replicas") is None


class Loop:
    """A workload whose pods never use their GPUs, and what starts it again `after_ms` after each stop, if anything."""

    def __init__(self, kind: Stoppable, consent: str, manager: str, after_ms: int) -> None:
        assert kind.way is not None
        self.kind, self.way, self.consent, self.manager, self.after_ms = kind, kind.way, consent, manager, after_ms
        self.annotations: dict[str, str] = {}
        self.fields: list[Document] = []
        self.running_ms = START
        self.value: Any = None

    def document(self) -> Document:
        found: Document = {"metadata": {"uid": "u", "annotations": self.annotations, "managedFields": self.fields}}
        *above, last = self.way.path.split(".")
        inner = found
        for step in above:
            inner = inner.setdefault(step, {})
        if self.value is not None:
            inner[last] = self.value
        return found

    def owner(self) -> PodsOwner:
        pod = HoldingPod(ObjectMeta(name="p", namespace="ml", uid="p"))
        running = not self.way.holds(self.value)
        pods = (pod,) if running else ()
        since = {"p": self.running_ms} if running else {}
        return PodsOwner(self.kind, self.document(), "ml", "w", pods, since, self.consent)

    def weeks(self, days: int) -> Iterator[int]:
        """The times of the stops."""
        stopped_ms = 0
        for now_ms in range(START, START + days * 24 * HOUR, 5 * MINUTE):
            if stopped_ms and now_ms - stopped_ms >= self.after_ms and self.way.holds(self.value):
                self.value = 2 if self.way.path == "spec.replicas" else False
                self.fields = [owned(self.manager, self.way.path, now_ms)]
                self.running_ms = now_ms
            facts = self.owner().facts(now_ms)
            if facts.consents and step_of(facts, POLICY, now_ms) == "notify":
                self.annotations["dovetail.dev/idle-noticed"] = text(now_ms)
            if next_act([facts], POLICY, now_ms, HOUR) is not None:
                self.value, stopped_ms = self.way.value(text(now_ms)), now_ms
                self.fields = [owned("dovetail-idle-policy", self.way.path, now_ms)]
                self.annotations["dovetail.dev/idle-stopped"] = text(now_ms)
                yield now_ms


CASES = (
    ("apps", "Deployment", "argocd-controller", 3 * MINUTE),
    ("apps", "StatefulSet", "keda-operator", MINUTE),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "helm-controller", 50 * MINUTE),
    ("batch", "Job", "kueue", MINUTE),
    ("kubeflow.org", "PyTorchJob", "kustomize-controller", 10 * MINUTE),
)


def loop(group: str, kind: str, manager: str, after_ms: int) -> Loop:
    found = stoppable(group, kind)
    assert found is not None and found.way is not None
    return Loop(found, found.way.consent, manager, after_ms)


@pytest.mark.parametrize(("group", "kind", "manager", "after_ms"), CASES)
@pytest.mark.slow
def test_a_controller_and_the_policy_do_not_stop_and_start_it_in_turn(
    group: str, kind: str, manager: str, after_ms: int
) -> None:
    one = loop(group, kind, manager, after_ms)
    assert len(list(one.weeks(14))) == 1
    now_ms = START + 14 * 24 * HOUR
    owner = one.owner()
    assert owner.put_back and not owner.facts(now_ms).consents
    note = consequence(owner, POLICY, now_ms)
    assert f"after the last stop {manager} put {one.way.path} back at 20" in note
    # Once the controller leaves the field alone and the annotation is gone it is stopped again.
    del one.annotations["dovetail.dev/idle-stopped"]
    one.fields = []
    assert one.owner().facts(now_ms).consents


def test_what_its_owner_starts_again_has_its_whole_time_each_time() -> None:
    stops = list(loop("apps", "Deployment", "kubectl-scale", 10 * HOUR).weeks(7))
    assert len(stops) > 5
    assert all(later - earlier >= 14 * HOUR for earlier, later in pairwise(stops))


@pytest.mark.plane
def test_the_fields_of_managers_are_as_a_real_api_server_writes_them(plane: Plane) -> None:
    namespace = "put-back"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    web = workload("Deployment", "web", selected("web", replicas=2))
    web["metadata"]["namespace"] = namespace
    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(web))
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/web"

    def found() -> str:
        back = put_back(plane.get(path), "spec.replicas")
        return back.manager if back is not None else ""

    def stop() -> None:
        note = {"dovetail.dev/idle-stopped": text(round(time.time() * 1000))}
        change = {"metadata": {"annotations": note}, "spec": {"replicas": 0}}
        plane.request("PATCH", f"{path}?fieldManager=dovetail-idle-policy", change, "application/merge-patch+json")

    stop()
    assert found() == ""
    plane.request(
        "PATCH", f"{path}?fieldManager=argocd-controller", {"spec": {"replicas": 2}}, "application/merge-patch+json"
    )
    assert found() == "argocd-controller"
    stop()
    plane.kubectl("scale", "deployment", "web", "-n", namespace, "--replicas=3")
    assert found() == ""
    stop()
    applied = ("apply", "--server-side", "--force-conflicts", "--field-manager=kustomize-controller", "-f", "-")
    plane.kubectl(*applied, input=yaml.safe_dump(web))
    assert found() == "kustomize-controller"
    stop()
    scale = {"spec": {"replicas": 2}}
    plane.request("PATCH", f"{path}/scale?fieldManager=keda-operator", scale, "application/merge-patch+json")
    assert found() == "keda-operator"
    plane.request("DELETE", f"/api/v1/namespaces/{namespace}")
