# SPDX-License-Identifier: Apache-2.0
"""From Pods to core records, field by field, with everything resolved."""

from typing import Any

import pytest

from dovetail.core.model import (
    HostPort,
    LabelSelector,
    NodeTerm,
    PeerTerm,
    PreferredNodes,
    PreferredPeers,
    Requirement,
    Spread,
    Toleration,
)
from dovetail.kube.translate import pod_status, pods
from tests.kube.yaml_objects import pod

APP = LabelSelector((Requirement("app", "In", ("x",)),))
HOST = "kubernetes.io/hostname"


def request_of(spec: str, **metadata: Any) -> Any:
    record = pods.pod(pod(f"spec: {spec}", **metadata))
    assert record.problem is None
    return record.request


def test_a_pending_pod() -> None:
    record = pods.pod(
        pod(
            """
metadata:
  name: a
  namespace: ml
  uid: u-1
  creationTimestamp: 2026-01-01T00:00:01Z
  labels: {b: "2", a: "1", dovetail.dev/queue: research}
spec:
  schedulerName: dovetail
  priority: 7
  schedulingGates: [{name: wait}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: same, persistentVolumeClaim: {claimName: data}}
  - {name: scratch, ephemeral: {volumeClaimTemplate: {}}}
  - {name: token, projected: {}}
status: {nominatedNodeName: n9, conditions: [{type: PodScheduled, status: "False"}]}
"""
        )
    )
    assert (record.uid, record.key, record.priority, record.created_ms) == ("u-1", "ml/a", 7, 1767225601000)
    assert record.labels == (("a", "1"), ("b", "2"), ("dovetail.dev/queue", "research"))
    assert (record.node, record.bound_ms, record.nominated_node, record.gang) == ("", 0, "n9", "")
    assert (record.managed, record.gated, record.deleting, record.queue) == (True, True, False, "research")
    assert record.claims == ("data", "a-scratch")
    assert record.own_volumes == ("a-scratch",)


def test_a_bound_pod_reports_when_it_was_bound() -> None:
    text = """
spec: {nodeName: n1, schedulerName: default-scheduler}
status:
  phase: Running
  conditions:
  - {type: Ready, status: "True", lastTransitionTime: "2026-01-01T00:00:09Z"}
  - {type: PodScheduled, status: "True", lastTransitionTime: "2026-01-01T00:00:02Z"}
"""
    record = pods.pod(pod(text, deletionTimestamp="2026-01-01T01:00:00Z"))
    assert (record.node, record.bound_ms, record.managed, record.deleting) == ("n1", 1767225602000, False, True)


def test_a_null_time_is_unknown() -> None:
    assert pods.pod(pod(creationTimestamp=None)).created_ms == 0
    assert pods.pod(pod(creationTimestamp="0001-01-01T00:00:00Z")).created_ms == 0


@pytest.mark.parametrize(
    ("phase", "finished"), [("Succeeded", True), ("Failed", True), ("Running", False), ("", False)]
)
def test_finished(phase: str, finished: bool) -> None:
    assert pod_status.is_finished(pod(f"status: {{phase: '{phase}'}}")) is finished


def test_pods_of_one_template_share_their_request() -> None:
    spec = "spec: {tolerations: [{operator: Exists}], containers: [{resources: {limits: {cpu: 1}}}]}"
    assert pods.pod(pod(spec, name="a")).request is pods.pod(pod(spec, name="b")).request


def test_node_selection() -> None:
    request = request_of(
        """
  nodeSelector: {pool: gpu, arch: amd64}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: gen, operator: Gt, values: ["3"]}]
          matchFields: [{key: metadata.name, operator: In, values: [n1]}]
        - {}
      preferredDuringSchedulingIgnoredDuringExecution:
      - {weight: 5, preference: {matchExpressions: [{key: ssd, operator: Exists}]}}
"""
    )
    assert request.node_selector == (("arch", "amd64"), ("pool", "gpu"))
    in_field = Requirement("metadata.name", "In", ("n1",))
    assert request.node_terms == (NodeTerm((Requirement("gen", "Gt", ("3",)),), (in_field,)), NodeTerm())
    assert request.preferred_nodes == (PreferredNodes(5, NodeTerm((Requirement("ssd", "Exists"),))),)


def test_no_required_terms_match_nothing_and_no_affinity_matches_everything() -> None:
    required = "{requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}"
    assert request_of(f"{{affinity: {{nodeAffinity: {required}}}}}").node_terms == ()
    assert request_of("{affinity: {nodeAffinity: {}}}").node_terms is None
    assert request_of("{}").node_terms is None


def test_spare_nodes_are_tolerated_by_pods_of_dovetails_own_namespace_alone() -> None:
    spec = "spec: {tolerations: [{key: dovetail.dev/spare, operator: Exists}, {key: x, operator: Exists}]}"
    for namespace, keys in (("dovetail-system", ["dovetail.dev/spare", "x"]), ("team", ["x"])):
        record = pods.pod(pod(f"{{metadata: {{namespace: {namespace}}}, {spec}}}"))
        assert [one.key for one in record.request.tolerations] == keys


def test_tolerations_get_their_defaults() -> None:
    request = request_of("{tolerations: [{key: gpu, value: a, effect: NoSchedule}, {operator: Exists}]}")
    assert request.tolerations == (Toleration("gpu", "Equal", "a", "NoSchedule"), Toleration("", "Exists"))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("{containers: [{ports: [{containerPort: 80}]}]}", ()),
        ("{containers: [{ports: [{containerPort: 80, hostPort: 8080}]}]}", (HostPort("0.0.0.0", "TCP", 8080),)),
        ("{hostNetwork: true, containers: [{ports: [{containerPort: 53, protocol: UDP, hostIP: 10.0.0.1}]}]}",
         (HostPort("10.0.0.1", "UDP", 53),)),
        ("{containers: [{ports: [{hostPort: 2}, {hostPort: 1}]}, {ports: [{hostPort: 2}]}]}",
         (HostPort("0.0.0.0", "TCP", 1), HostPort("0.0.0.0", "TCP", 2))),
        ("{containers: [], initContainers: [{ports: [{hostPort: 1}]},"
         " {restartPolicy: Always, ports: [{hostPort: 2}]}]}", (HostPort("0.0.0.0", "TCP", 2),)),
    ],
)  # fmt: skip
def test_host_ports(spec: str, expected: tuple[HostPort, ...]) -> None:
    assert request_of(spec).ports == expected


def test_spread_constraints_get_their_defaults_and_the_pods_values() -> None:
    request = request_of(
        """
  topologySpreadConstraints:
  - {maxSkew: 2, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, minDomains: 3,
     labelSelector: {matchLabels: {app: x}}, matchLabelKeys: [rev, app, absent],
     nodeAffinityPolicy: Ignore, nodeTaintsPolicy: Honor}
  - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, matchLabelKeys: [rev]}
""",
        labels={"app": "x", "rev": "7"},
    )
    merged = LabelSelector((*APP.requirements, Requirement("rev", "In", ("7",))))
    own = frozenset({"ml"})
    assert request.spread == (
        Spread(PeerTerm(merged, own, "zone"), 2, True, 3, honor_affinity=False, honor_taints=True),
        Spread(PeerTerm(None, own, "zone"), 1, False),
    )


PEERS = f"""
  affinity:
    podAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
      - {{topologyKey: {HOST}, labelSelector: {{matchLabels: {{app: x}}}}}}
      - {{topologyKey: {HOST}, labelSelector: {{}}, namespaces: [b, c]}}
      - {{topologyKey: {HOST}, namespaceSelector: {{}}}}
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
      - {{topologyKey: {HOST}, labelSelector: {{matchExpressions: [{{key: app, operator: NotIn, values: [y]}}]}},
         mismatchLabelKeys: [rev], namespaces: [b], namespaceSelector: {{matchLabels: {{team: z}}}}}}
      preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 9
        podAffinityTerm: {{topologyKey: zone, labelSelector: {{matchLabels: {{app: x}}}}}}
"""


def test_peers_are_resolved_to_namespaces_and_keys_are_left_to_the_api_server() -> None:
    request = request_of(PEERS, labels={"rev": "7"})
    own = frozenset({"ml"})
    assert request.affinity == (
        PeerTerm(APP, own, HOST),
        PeerTerm(LabelSelector(), frozenset({"b", "c"}), HOST),
        PeerTerm(None, frozenset(), HOST, LabelSelector()),
    )
    other = LabelSelector((Requirement("app", "NotIn", ("y",)),))
    in_team = LabelSelector((Requirement("team", "In", ("z",)),))
    assert request.anti_affinity == (PeerTerm(other, frozenset({"b"}), HOST, in_team),)
    assert request.preferred_peers == (PreferredPeers(-9, PeerTerm(APP, own, "zone")),)


def test_keys_that_the_api_server_has_merged_already_are_not_added_twice() -> None:
    term = "{topologyKey: h, matchLabelKeys: [app], labelSelector: {matchExpressions: [%s]}}"
    expression = "{key: app, operator: In, values: [x]}"
    spec = "{affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [%s]}}}" % (term % expression)
    assert request_of(spec, labels={"app": "x"}).affinity[0].selector == APP
    assert request_of(spec, labels={"app": "changed since"}).affinity[0].selector == APP


NODE_AFFINITY = "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [%s]}}}"
SPREAD = "topologySpreadConstraints: [{whenUnsatisfiable: %s}]"


@pytest.mark.parametrize(
    ("spec", "field", "value", "nearest"),
    [
        ("tolerations: [{operator: Exist}]", "spec.tolerations[0].operator", "Exist", "Exists"),
        ("tolerations: [{effect: NoExec}]", "spec.tolerations[0].effect", "NoExec", "NoExecute"),
        (NODE_AFFINITY % "{matchExpressions: [{key: a, operator: Gte, values: ['1']}]}",
         "spec.affinity.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].operator", "Gte", "Gt"),
        (NODE_AFFINITY % "{matchFields: [{key: metadata.nam, operator: In, values: [n]}]}",
         "spec.affinity.nodeAffinity.required.nodeSelectorTerms[0].matchFields[0].key", "metadata.nam",
         "metadata.name"),
        (SPREAD % "ScheduleAnyhow", "spec.topologySpreadConstraints[0].whenUnsatisfiable", "ScheduleAnyhow",
         "ScheduleAnyway"),
        (SPREAD % "DoNotSchedule, nodeTaintsPolicy: honour", "spec.topologySpreadConstraints[0].nodeTaintsPolicy",
         "honour", "Honor"),
    ],
)  # fmt: skip
def test_a_value_of_a_closed_set_that_is_not_known(spec: str, field: str, value: str, nearest: str) -> None:
    problem = pods.pod(pod(f"spec: {{{spec}}}")).problem
    assert problem is not None
    assert (problem.field, problem.value) == (field, value)
    assert problem.rule.endswith(f"nearest valid value: {nearest}")


def test_an_unknown_operator_holds_nowhere() -> None:
    record = pods.pod(pod("spec: {%s}" % (NODE_AFFINITY % "{matchExpressions: [{key: a, operator: Near}]}")))
    assert record.request.node_terms == (NodeTerm((Requirement("a", "In", ()),)),)


def test_one_problem_names_the_fields_of_the_others() -> None:
    record = pods.pod(pod("spec: {containers: [{resources: {limits: {cpu: x}}}], tolerations: [{operator: y}]}"))
    assert record.problem is not None
    assert record.problem.field == "spec.containers[0].resources.limits[cpu]"
    assert "spec.tolerations[0].operator" in record.problem.rule


def test_pods_of_other_schedulers_are_counted_without_complaint() -> None:
    text = "spec: {schedulerName: other, containers: [{resources: {limits: {nvidia.com/gpu: 1, cpu: x}}}]}"
    record = pods.pod(pod(text, labels={"dovetail.dev/queue": "q", "dovetail.dev/nonsense": "1"}))
    assert (record.problem, record.queue, record.managed) == (None, "", False)
    assert record.request.resources == (("nvidia.com/gpu", 1),)
