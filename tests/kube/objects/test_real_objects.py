# SPDX-License-Identifier: Apache-2.0
"""Objects as a real API server writes them, with its defaults, decode to what was meant."""

import json
from typing import Any, TypeVar

import msgspec
import pytest
import yaml

from dovetail.core.model import Toleration
from dovetail.kube.gangs import declared
from dovetail.kube.gangs.dialects import COMPOSITE, NATIVE
from dovetail.kube.objects.base import Node
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate import nodes, pods
from tools.controlplane.plane import Plane

pytestmark = pytest.mark.plane

T = TypeVar("T")
NAMESPACE = "translate"

POD = """
apiVersion: v1
kind: Pod
metadata: {name: a, labels: {app: x}, annotations: {dovetail.dev/topology-required: rack}}
spec:
  schedulerName: dovetail
  schedulingGroup: {podGroupName: g}
  hostNetwork: true
  resources: {requests: {cpu: 3}}
  containers:
  - name: main
    image: none
    ports: [{containerPort: 80}]
    resources: {limits: {cpu: 2, memory: 1Gi, nvidia.com/gpu: 4}}
  initContainers:
  - {name: side, image: none, restartPolicy: Always, resources: {requests: {memory: 1Gi}}}
  affinity:
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
      - {topologyKey: kubernetes.io/hostname, labelSelector: {}, matchLabelKeys: [app]}
"""
GROUP = """
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: g}
spec:
  schedulingPolicy: {gang: {minCount: 2}}
  schedulingConstraints: {topology: [{key: rack}]}
  parentCompositePodGroupName: top
  workloadRef: {workloadName: w, templateName: t}
"""
TOP = """
apiVersion: scheduling.k8s.io/v1alpha3
kind: CompositePodGroup
metadata: {name: top}
spec:
  schedulingPolicy: {gang: {minGroupCount: 1}}
  workloadRef: {workloadName: w, templateName: t}
"""
NODE = "{apiVersion: v1, kind: Node, metadata: {name: translate-node}, spec: {unschedulable: true}}"


@pytest.fixture(scope="module")
def namespace(plane: Plane) -> str:
    plane.kubectl("create", "namespace", NAMESPACE)
    plane.kubectl("wait", f"--namespace={NAMESPACE}", "--for=create", "serviceaccount/default", "--timeout=60s")
    return NAMESPACE


def created(plane: Plane, namespace: str, text: str, kind: type[T]) -> T:
    document: dict[str, Any] = yaml.safe_load(text)
    command = ("create", f"--namespace={namespace}", "--output=json", "--filename=-")
    return msgspec.json.decode(plane.kubectl(*command, input=json.dumps(document)), type=kind)


def test_a_pod(plane: Plane, namespace: str) -> None:
    record = pods.pod(created(plane, namespace, POD, Pod))
    request = record.request
    assert record.problem is None
    assert (record.key, record.managed) == ("translate/a", True)
    assert record.uid
    assert record.created_ms > 1_700_000_000_000
    assert request.resources == (("cpu", 3000), ("memory", 2 * 2**30), ("nvidia.com/gpu", 4))
    assert [(port.port, port.protocol) for port in request.ports] == [(80, "TCP")]
    assert Toleration("node.kubernetes.io/not-ready", "Exists", "", "NoExecute") in request.tolerations
    (term,) = request.anti_affinity
    assert term.selector is not None
    assert [(r.key, r.values) for r in term.selector.requirements] == [("app", ("x",))]


def test_pod_groups(plane: Plane, namespace: str) -> None:
    top = COMPOSITE.declare(created(plane, namespace, TOP, COMPOSITE.kind))
    group = NATIVE.declare(created(plane, namespace, GROUP, NATIVE.kind))
    (above,), (gang,) = declared.records(top, ()), declared.records(group, ())
    assert (above.min_groups, above.parent, above.problem) == (1, "", None)
    assert (gang.min_count, gang.parent, gang.required, gang.problem) == (2, above.id, ("rack",), None)
    assert gang.priority == 0
    assert gang.created_ms > 1_700_000_000_000


def test_a_node_that_no_kubelet_has_filled_in(plane: Plane, namespace: str) -> None:
    record = nodes.node(created(plane, namespace, NODE, Node))
    assert (record.name, record.unschedulable) == ("translate-node", True)
    assert record.problem is not None
    assert record.problem.field == "status.allocatable"
    plane.kubectl("delete", "node", "translate-node")
