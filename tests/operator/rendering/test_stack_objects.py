# SPDX-License-Identifier: Apache-2.0
"""The objects of a GPUStack."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import msgspec
import pytest
import yaml

from dovetail import __version__
from dovetail.agent.config import read as read_config
from dovetail.cli.agent.run import command as agent_command
from dovetail.cli.collector import command as collector_command
from dovetail.cli.dashboard import command as dashboard_command
from dovetail.cli.idle_policy import command as idle_policy_command
from dovetail.cli.plane.serve import command as serve_command
from dovetail.cli.scheduler import command as scheduler_command
from dovetail.core.labels import matches
from dovetail.core.model import LabelSelector
from dovetail.kube.api.discovery import Served
from dovetail.kube.api.resources import DEVICE_CLASSES, POD_MONITORS, PROMETHEUS_RULES, SERVICE_MONITORS
from dovetail.kube.objects import base
from dovetail.kube.objects.stack import GPUStack, StackMeta, StackSpec
from dovetail.kube.translate.selectors import node_terms
from dovetail.monitoring import boards, rules
from dovetail.operator.found import Found, Rival
from dovetail.operator.rendering.kustomize import build, containers, pod_spec, select
from dovetail.operator.rendering.stack_objects import ORDER, Desired, desired
from tests.deploy.crds.test_gpustack import EXAMPLE
from tests.docs.pages import page
from tests.paths import ROOT

Document = dict[str, Any]
DEPLOY = ROOT / "deploy"
IMAGE = "registry.example:5000/dovetail:0.1.0"
DIGEST = "sha256:" + "0123456789abcdef" * 4
MONITORS = Found(
    Served(
        frozenset(
            (one.api_version, one.plural) for one in (SERVICE_MONITORS, POD_MONITORS, PROMETHEUS_RULES, DEVICE_CLASSES)
        )
    )
)
POOL = {"name": "p", "nodeSelector": {"matchLabels": {"use": "p"}}}
WORKLOADS = ("Deployment", "DaemonSet", "StatefulSet")
AGENT_PLANES = {"agentPlanes": {"enabled": True}}
IDLE = {"idle": {"enabled": True}}
DASHBOARD = {"dashboard": {"enabled": True}}
HISTORY = {"history": {"enabled": True}}


def made(spec: Document | None = None, found: Found = Found(), uid: str = "u-1") -> Desired:  # noqa: B008
    stack = GPUStack(StackMeta(name="stack", uid=uid), msgspec.convert(spec or {}, StackSpec))
    return desired(stack, found, IMAGE)


def objects(spec: Document | None = None, found: Found = Found()) -> list[Document]:  # noqa: B008
    result = made(spec, found)
    assert result.problems == ()
    return deepcopy(list(result.objects))


def pools(*listed: Document, **spec: Any) -> Document:
    return {"agent": {"pools": list(listed)}} | spec


def agent(daemon_set: Document) -> Document:
    return next(one for one in containers(daemon_set) if one["name"] == "agent")


def names(found: Iterable[Document], kind: str) -> list[str]:
    return [one["metadata"]["name"] for one in found if one["kind"] == kind]


def selected(daemon_set: Document, labels: dict[str, str]) -> bool:
    """Whether its affinity permits a node with these labels."""
    affinity = pod_spec(daemon_set)["affinity"]["nodeAffinity"]  # type: ignore[index]
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = node_terms(msgspec.convert(required, base.NodeSelector), "", []) or ()
    return any(matches(LabelSelector(term.expressions), labels) for term in terms)


def test_an_empty_spec_is_what_deploy_installs_by_hand() -> None:
    """But for labels and owner, the image, and that the operator replaces the agents' pods. An empty spec has no
    endpoints of agents, no history, no policy about idle workloads, and no web pages."""
    assert "StatefulSet" not in {one["kind"] for one in objects()}
    parts = ("agent", "agent-planes", "functions/history", "idle-policy", "dashboard")
    folders = (DEPLOY, *(DEPLOY / part for part in parts))
    by_hand = {(one["kind"], one["metadata"]["name"]): one for folder in folders for one in build(folder)}
    rendered = {
        (one["kind"], one["metadata"]["name"]): one for one in objects(AGENT_PLANES | HISTORY | IDLE | DASHBOARD)
    }
    added = {(kind, name) for kind, name in rendered.keys() - by_hand.keys() if kind != "ConfigMap"}
    assert added == {("RuntimeClass", "nvidia")}
    assert {kind for kind, _ in by_hand.keys() - rendered.keys()} == {"Namespace"}
    for key in rendered.keys() & by_hand.keys():
        one, other = rendered[key], by_hand[key]
        del one["metadata"]["ownerReferences"]
        for part in (one, other):
            part["metadata"].pop("labels", None)
            for container in containers(part):
                del container["image"]
        if key[0] == "DaemonSet":
            del one["spec"]["updateStrategy"], other["spec"]["updateStrategy"]
            pool = {"dovetail.dev/pool": "default", "app.kubernetes.io/component": "agent"}
            other["spec"]["selector"]["matchLabels"] |= pool
            other["spec"]["template"]["metadata"]["labels"] |= pool
        if key[0] in WORKLOADS:
            annotations = one["spec"]["template"]["metadata"].pop("annotations", None)
            assert bool(annotations) == (key[1] != "dovetail-dashboard"), "the web pages have no metrics"
        assert one == other, key


def test_each_object_is_the_operator_s_and_owned_by_the_stack() -> None:
    for one in objects(EXAMPLE["spec"], MONITORS):
        labels, (owner,) = one["metadata"]["labels"], one["metadata"]["ownerReferences"]
        assert labels["app.kubernetes.io/managed-by"] == "dovetail-operator"
        assert (labels["app.kubernetes.io/part-of"], labels["dovetail.dev/stack"]) == ("dovetail", "stack")
        assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("GPUStack", "stack", "u-1", True)
    for one in made(uid="").objects:
        assert "ownerReferences" not in one["metadata"], "of a spec from a file nothing is the owner"


def test_they_are_in_the_order_in_which_they_need_each_other() -> None:
    kinds = [one["kind"] for one in objects(EXAMPLE["spec"], MONITORS)]
    assert kinds == sorted(kinds, key=ORDER.index)
    assert ORDER.index("ClusterRoleBinding") < ORDER.index("Deployment")
    assert ORDER.index("ValidatingAdmissionPolicy") < ORDER.index("DaemonSet"), "limits come before what they limit"


def test_equal_questions_have_equal_answers() -> None:
    assert made(EXAMPLE["spec"]) == made(EXAMPLE["spec"])


def test_neither_namespaces_nor_definitions_are_the_stack_s() -> None:
    kinds = {one["kind"] for one in objects(pools({"name": "default", "allocation": "DRA"}) | AGENT_PLANES, MONITORS)}
    assert kinds | {"ConfigMap"} == {*ORDER}, "and each kind in the order is made"


def test_a_contradiction_leaves_no_objects() -> None:
    result = made({"driver": {"mode": "Container"}})
    assert [one.field for one in result.problems] == ["spec.driver.image"]
    assert result.objects == ()


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({}, IMAGE),
        ({"repository": "r.example/d"}, f"r.example/d:{__version__}"),
        ({"tag": "9"}, "registry.example:5000/dovetail:9"),
        ({"repository": "r.example/d", "tag": "9"}, "r.example/d:9"),
        ({"repository": "r.example/d", "tag": "9", "digest": DIGEST}, f"r.example/d@{DIGEST}"),
    ],
)
def test_the_image_of_scheduler_and_agents(image: Document, expected: str) -> None:
    found = objects({"image": image} | AGENT_PLANES | pools(POOL | {"sharing": {"strategy": "mps", "resources": [{}]}}))
    images = {one["image"] for each in found if each["kind"] in WORKLOADS for one in containers(each)}
    assert images == {expected}


def test_pull_policy_and_secrets_are_of_all_pods() -> None:
    spec = {"image": {"pullPolicy": "Always", "pullSecrets": ["a", "b"]}, "runtime": {"configure": f"t@{DIGEST}"}}
    for one in objects(spec | AGENT_PLANES | {"driver": {"mode": "Container", "image": f"d@{DIGEST}"}}):
        if one["kind"] in WORKLOADS:
            assert pod_spec(one)["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]  # type: ignore[index]
            assert {container["imagePullPolicy"] for container in containers(one)} == {"Always"}


def test_options_of_the_scheduler() -> None:
    scheduler = {
        "replicas": 3, "schedulerName": "other", "fabric": ["a/row", "a/rack"], "consolidate": 5,
        "quarantineBudget": "3", "divideMig": True, "extraArgs": ["--log-level=debug"],
        "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}},
    }  # fmt: skip
    mig = POOL | {"mig": {"strategy": "mixed", "repartition": True}}
    deployment = select(objects({"scheduler": scheduler} | pools(mig)), "Deployment", "dovetail-scheduler")
    (container,) = containers(deployment)
    assert deployment["spec"]["replicas"] == 3
    assert container["args"][2:] == [
        "--views=0.0.0.0:10352",
        "--scheduler-name=other",
        "--fabric=a/row,a/rack",
        "--consolidate=5",
        "--quarantine-budget=3",
        "--divide-mig",
        "--log-level=debug",
    ]
    assert container["resources"] == {"requests": {"cpu": "2", "memory": "256Mi"}, "limits": {"memory": "4Gi"}}
    known = {option for param in scheduler_command.params for option in param.opts}
    assert {one.partition("=")[0] for one in container["args"][1:]} <= known


def test_without_views_there_is_neither_their_api_nor_their_option_nor_any_right() -> None:
    spec = {"scheduler": {"views": False}} | AGENT_PLANES
    off, on = objects(spec), objects(AGENT_PLANES)
    with_views = {(one["kind"], one["metadata"]["name"]) for one in on}
    assert with_views - {(one["kind"], one["metadata"]["name"]) for one in off} == {
        ("APIService", "v1alpha1.views.dovetail.dev"), ("Service", "dovetail-views"),
        ("EndpointSlice", "dovetail-views-ipv4"), ("EndpointSlice", "dovetail-views-ipv6"),
        ("NetworkPolicy", "dovetail-scheduler-views"),
    }  # fmt: skip
    for kind, name, more in (("ClusterRole", "dovetail-scheduler", 2), ("Role", "dovetail-scheduler-lease", 1)):
        assert len(select(on, kind, name)["rules"]) == len(select(off, kind, name)["rules"]) + more
    (container,) = containers(select(off, "Deployment", "dovetail-scheduler"))
    assert [port["name"] for port in container["ports"]] == ["http"]
    assert not [one for one in container["args"] if "views" in one]


def test_roles_of_people_are_not_the_stack_s() -> None:
    for one in objects(AGENT_PLANES):
        if one["kind"] in ("ClusterRole", "Role"):
            assert not [label for label in one["metadata"]["labels"] if label.startswith("rbac.authorization.k8s.io/")]
    people = {one["metadata"]["name"] for one in build(DEPLOY / "people")}
    assert len(people) == 3 and not people & {*names(objects(AGENT_PLANES), "ClusterRole")}


def test_the_defaults_of_the_spec_are_those_of_the_command() -> None:
    """So that what is not in the spec need not be in the arguments."""
    spec = StackSpec().scheduler
    defaults = {option: param.default for param in scheduler_command.params for option in param.opts}
    assert (defaults["--scheduler-name"], defaults["--consolidate"]) == (spec.scheduler_name, spec.consolidate)
    assert defaults["--quarantine-budget"] == spec.quarantine_budget


def test_options_of_the_endpoints_of_agents() -> None:
    planes = {
        "enabled": True, "extraArgs": ["--most-pods=10"], "resources": {"requests": {"cpu": "1"}},
    }  # fmt: skip
    stateful_set = select(
        objects({"agentPlanes": planes, "scheduler": {"schedulerName": "other"}}),
        "StatefulSet",
        "dovetail-agent-planes",
    )
    (container,) = containers(stateful_set)
    assert container["args"][-2:] == ["--scheduler-name=other", "--most-pods=10"]
    assert container["resources"] == {"requests": {"cpu": "1", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
    known = {option for param in serve_command.params for option in param.opts}
    assert {one.partition("=")[0] for one in container["args"][2:]} <= known
    set_here = {one.partition("=")[0] for one in container["args"][2:-2]}
    for name in (*set_here, "--address", "--listen", "--plane", "--scheduler-name", "--kubeconfig", "--context"):
        refused = made({"agentPlanes": {"extraArgs": [f"{name}=x"]}})
        assert [one.field for one in refused.problems] == ["spec.agentPlanes.extraArgs"], name


def test_options_of_the_collector_and_its_volume() -> None:
    history = {
        "enabled": True, "storage": "1Ti", "storageClass": "fast", "days": 800, "hourlyDays": 60,
        "prices": "our-prices", "publish": {"tokenSecret": "our-token", "every": "5m"},
        "extraArgs": ["--write-every=2"], "resources": {"limits": {"memory": "4Gi"}},
    }  # fmt: skip
    found = objects({"history": history, "scheduler": {"schedulerName": "other"}})
    stateful_set = select(found, "StatefulSet", "dovetail-collector")
    (container,), (claim,) = containers(stateful_set), stateful_set["spec"]["volumeClaimTemplates"]
    assert container["args"][3:] == [
        "--scheduler-name=other", "--days-by-day=800", "--days-of-records=800", "--days-by-hour=60",
        "--prices=/etc/dovetail/prices", "--publish-every=5m", "--publish-token=/etc/dovetail/publish/token",
        "--write-every=2",
    ]  # fmt: skip
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "4Gi"}}
    assert (claim["spec"]["storageClassName"], claim["spec"]["resources"]["requests"]) == ("fast", {"storage": "1Ti"})
    prices, publish = pod_spec(stateful_set)["volumes"]  # type: ignore[index]
    assert prices == {"name": "prices", "configMap": {"name": "our-prices"}}
    # The file is readable to the group of the process, which is that of the pod's volumes.
    items = [{"key": "token", "path": "token"}]
    assert publish == {"name": "publish", "secret": {"secretName": "our-token", "items": items, "defaultMode": 0o440}}
    for name in ("prices", "publish"):
        mount = {"name": name, "mountPath": f"/etc/dovetail/{name}", "readOnly": True}
        assert mount in container["volumeMounts"]
    assert not [
        rule for one in found for rule in one.get("rules", []) if "secrets" in rule.get("resources", []) and
        one["metadata"]["name"].startswith(("dovetail-collector", "dovetail-history"))
    ]  # fmt: skip
    known = {option: param.default for param in collector_command.params for option in param.opts}
    assert {one.partition("=")[0] for one in container["args"][1:]} <= known.keys()
    spec = StackSpec().history
    assert (known["--days-by-day"], known["--days-of-records"], known["--days-by-hour"]) == (
        spec.days, spec.days, spec.hourly_days,
    )  # fmt: skip
    for name in (
        "--store",
        "--answers",
        "--prices",
        "--publish-every",
        "--publish-token",
        "--days-by-day",
        "--days-by-hour",
        "--agent-namespace",
        "--listen",
        "--context",
    ):
        refused = made({"history": {"extraArgs": [f"{name}=x"]}})
        assert [one.field for one in refused.problems] == ["spec.history.extraArgs"], name


def test_options_of_the_policy_about_idle_workloads() -> None:
    idle = {
        "enabled": True, "notifyAfter": "30m", "actAfter": "1h30m", "grace": "20m", "actsPerHour": 2,
        "exemptNamespaces": ["ops", "prod"],
    }  # fmt: skip
    (container,) = containers(select(objects({"idle": idle}), "StatefulSet", "dovetail-idle-policy"))
    assert container["args"] == [
        "idle-policy", "--notify-after=30m", "--act-after=1h30m", "--grace=20m", "--acts-per-hour=2",
        "--exempt-namespace=ops", "--exempt-namespace=prod",
    ]  # fmt: skip
    known = {option: param.default for param in idle_policy_command.params for option in param.opts}
    assert {one.partition("=")[0] for one in container["args"][1:]} <= known.keys()
    spec = StackSpec().idle
    defaults = [known[name] for name in ("--notify-after", "--act-after", "--grace", "--acts-per-hour")]
    assert defaults == [spec.notify_after, spec.act_after, spec.grace, spec.acts_per_hour]


def test_options_of_the_web_pages() -> None:
    spec = {
        "dashboard": {"enabled": True, "replicas": 2},
        "scheduler": {"schedulerName": "other", "fabric": ["example.com/row", "example.com/rack"]},
    }
    deployment = select(objects(spec), "Deployment", "dovetail-dashboard")
    (container,) = containers(deployment)
    assert container["args"][-2:] == ["--scheduler-name=other", "--fabric=example.com/row,example.com/rack"]
    known = {option for param in dashboard_command.params for option in param.opts}
    assert {one.partition("=")[0] for one in container["args"][1:]} <= known
    assert deployment["spec"]["replicas"] == 2
    assert "--actions" not in container["args"], "read-only, unless it is asked for"
    (acting,) = containers(
        select(objects({"dashboard": {"enabled": True, "actions": True}}), "Deployment", "dovetail-dashboard")
    )
    assert acting["args"][-1] == "--actions" and "--actions" in known
    off = made({"dashboard": {"enabled": True}, "scheduler": {"views": False}})
    assert [one.field for one in off.problems] == ["spec.dashboard.enabled"]


def test_nothing_may_change_a_workload_unless_the_policy_is_switched_on() -> None:
    for spec, may in (({}, False), (IDLE, True)):
        found = {
            (group, resource)
            for role in objects(spec | AGENT_PLANES | HISTORY) if role["kind"] == "ClusterRole"
            for rule in role["rules"] if "patch" in rule["verbs"] and "*" not in rule["verbs"]
            for group in rule["apiGroups"] for resource in rule["resources"]
        }  # fmt: skip
        assert (("apps", "deployments") in found, ("batch", "jobs") in found) == (may, may)


@pytest.mark.parametrize("part", ["scheduler", "agent", "agentPlanes", "history", "idle", "dashboard"])
def test_a_request_above_a_limit_of_the_manifest_is_a_problem(part: str) -> None:
    result = made({part: {"enabled": True, "resources": {"requests": {"memory": "9Gi"}}}})
    assert [one.field for one in result.problems] == [f"spec.{part}.resources.requests"]
    enough = {"enabled": True, "resources": {"requests": {"memory": "9Gi"}, "limits": {"memory": "10Gi"}}}
    assert made({part: enough}).problems == ()


def test_parts_can_be_left_out() -> None:
    none = {"enabled": False}
    off = {"validation": none, "startupTaint": False}
    assert names(objects({"agent": none} | off), "DaemonSet") == []
    assert names(objects({"scheduler": none}), "Deployment") == []
    kinds = {one["kind"] for one in objects({"agent": none, "scheduler": none} | off)}
    assert kinds == {"RuntimeClass", "ConfigMap"}


FUNCTIONS = [
    ({}, {"--labels", "--topology-objects"}, {"labels", "topology-objects"}),
    ({"labels": False}, {"--topology-objects"}, {"topology-objects"}),
    ({"allocation": "None"}, {"--labels", "--topology-objects", "--no-device-plugin"}, {"labels", "topology-objects"}),
    ({"allocation": "DRA"}, {"--labels", "--topology-objects", "--no-device-plugin", "--claims"},
     {"labels", "topology-objects", "claims"}),
    ({"allocation": "DRA", "mig": {"repartition": True}},
     {"--labels", "--topology-objects", "--no-device-plugin", "--claims", "--partitionable"},
     {"labels", "topology-objects", "claims"}),
    ({"mig": {"strategy": "mixed"}}, {"--labels", "--topology-objects", "--config", "--mig-observer"},
     {"labels", "topology-objects", "config"}),
    ({"mig": {"strategy": "mixed", "layout": "all-1g.10gb"}}, {"--labels", "--topology-objects", "--config", "--mig"},
     {"labels", "topology-objects", "config", "mig"}),
    ({"extraArgs": ["--clean-period=60"]}, {"--labels", "--topology-objects", "--clean-period"},
     {"labels", "topology-objects"}),
]  # fmt: skip


@pytest.mark.parametrize(("pool", "options", "roles"), FUNCTIONS)
def test_what_a_pool_asks_for_is_in_the_options_and_roles_of_its_agents(
    pool: Document, options: set[str], roles: set[str]
) -> None:
    found = objects(pools(POOL | pool))
    args = agent(select(found, "DaemonSet", "dovetail-agent-p"))["args"]
    base_args = agent(select(build(DEPLOY / "agent"), "DaemonSet", "dovetail-agent"))["args"][:7]
    assert {one.partition("=")[0] for one in args} - {one.partition("=")[0] for one in base_args} == options
    known = {option for param in agent_command.params for option in (*param.opts, *param.secondary_opts)}
    assert {one.partition("=")[0] for one in args[2:]} <= known
    expected = {
        "dovetail-scheduler",
        "dovetail-agent",
        *(f"dovetail-agent-{one}" for one in roles),
    }
    assert {*names(found, "ClusterRoleBinding")} == expected
    assert {*names(found, "ClusterRole")} == expected | {"dovetail-software-agent"}


def test_the_agent_s_other_functions() -> None:
    spec: Document = pools(POOL | {"processes": True})
    spec["agent"] |= {"kubeletCertificate": True, "topologyObjects": False, "resources": {"requests": {"cpu": "50m"}}}
    daemon_set = select(objects(spec), "DaemonSet", "dovetail-agent-p")
    pods = pod_spec(daemon_set)
    assert pods is not None and pods["hostPID"] is True
    assert "kubelet-certificate" in {one["name"] for one in pods["volumes"]}
    assert "--topology-objects" not in agent(daemon_set)["args"]
    assert agent(daemon_set)["resources"]["requests"] == {"cpu": "50m", "memory": "64Mi"}


def test_each_pool_has_a_daemon_set_that_finds_only_its_own_pods() -> None:
    found = objects(EXAMPLE["spec"])
    expected = ["dovetail-agent-inference", "dovetail-agent-notebooks", "dovetail-agent-training"]
    assert names(found, "DaemonSet") == expected
    sets = [select(found, "DaemonSet", name) for name in expected]
    selectors = [one["spec"]["selector"]["matchLabels"] for one in sets]
    for one, own in zip(sets, selectors, strict=True):
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert [selector for selector in selectors if selector.items() <= labels.items()] == [own]
        assert one["spec"]["updateStrategy"] == {"type": "OnDelete"}
    gpu = {"nvidia.com/gpu.present": "true"}
    where = [[one for one in expected if selected(select(found, "DaemonSet", one), gpu | labels)]
             for labels in ({}, {"example.com/use": "notebooks"}, {"example.com/use": "batch"})]  # fmt: skip
    assert where == [["dovetail-agent-training"], ["dovetail-agent-notebooks"], ["dovetail-agent-inference"]]


def test_names_that_meet_are_a_problem() -> None:
    spec = pools({"name": "default"}, POOL | {"name": "no-devices"})
    result = made(spec, Found(foreign_allocation=frozenset({"default"})))
    assert [(one.field, one.value) for one in result.problems] == [("spec.agent.pools", "dovetail-agent-no-devices")]


def test_pools_that_no_affinity_describes_are_a_problem() -> None:
    many = [{"name": f"p{i}", "nodeSelector": {"matchLabels": {f"{k}{i}": "x" for k in "abcd"}}} for i in range(8)]
    result = made(pools(*many, {"name": "rest"}))
    assert {one.field for one in result.problems} == {"spec.agent.pools"}


SHARED = POOL | {"sharing": {"strategy": "time-slicing", "resources": [{"replicas": 4}]}}


@pytest.mark.parametrize(
    ("pool", "strategy", "replicas", "fails"),
    [
        (SHARED, "time-slicing", 4, False),
        (SHARED | {"sharing": SHARED["sharing"] | {"failRequestsGreaterThanOne": True}}, "time-slicing", 4, True),
        (POOL | {"sharing": {"strategy": "mps", "resources": [{"replicas": 8}]}}, "mps", 8, True),
    ],
)  # fmt: skip
def test_the_agent_reads_how_its_pool_shares(
    tmp_path: Any, pool: Document, strategy: str, replicas: int, fails: bool
) -> None:
    found = objects(pools(pool))
    config = select(found, "ConfigMap", "dovetail-agent-p")
    file = tmp_path / "config.yaml"
    file.write_text(config["data"]["config.yaml"])
    shared = read_config(file).sharing["nvidia.com/gpu"]
    assert (shared.strategy, shared.replicas, shared.fail_requests_greater_than_one) == (strategy, replicas, fails)
    pods = pod_spec(select(found, "DaemonSet", "dovetail-agent-p"))
    volumes = {one["name"]: one for one in pods["volumes"]}  # type: ignore[index]
    assert volumes["config"]["configMap"] == {"name": "dovetail-agent-p"}
    assert ("dovetail-mps-p" in names(found, "DaemonSet")) == (strategy == "mps")


def test_the_agent_reads_mig_and_the_way_devices_are_passed(tmp_path: Any) -> None:
    file = tmp_path / "config.yaml"
    spec = pools({"name": "default", "mig": {"strategy": "single"}}, runtime={"cdi": False})
    file.write_text(select(objects(spec), "ConfigMap", "dovetail-agent")["data"]["config.yaml"])
    config = read_config(file)
    assert (config.mig_strategy, config.device_list_strategies) == ("single", ("volume-mounts",))


def apart(daemon_set: dict[str, Any]) -> list[Any]:
    """What its pods are kept apart from."""
    affinity = (pod_spec(daemon_set) or {})["affinity"]
    terms: list[Any] = affinity.get("podAntiAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])
    return terms


def test_a_component_that_stays_on_some_nodes_has_agents_beside_it() -> None:
    rival = Rival("gpu-operator", (("app", "nvidia-device-plugin-daemonset"),))
    found = Found(foreign_allocation=frozenset({"default"}), foreign_exporters=frozenset({"default"}), rivals=(rival,))
    sets = {one["metadata"]["name"]: one for one in objects({}, found) if one["kind"] == "DaemonSet"}
    expected = {
        "dovetail-agent": (False, False),
        "dovetail-agent-no-devices": (True, False),
        "dovetail-agent-no-metrics": (False, True),
        "dovetail-agent-no-devices-no-metrics": (True, True),
    }
    assert sets.keys() == expected.keys()
    for name, (no_devices, no_metrics) in expected.items():
        args = agent(sets[name])["args"]
        assert ("--no-device-plugin" in args, "--exporter=" in args) == (no_devices, no_metrics)
        assert ("gpu-metrics" not in {port["name"] for port in agent(sets[name])["ports"]}) == no_metrics
        assert len(apart(sets[name])) == (1 if no_devices else 2)
    for allocation in (None, "dovetail", "foreign"):
        for exporter in (None, "dovetail", "foreign"):
            labels = {"nvidia.com/gpu.present": "true"}
            labels |= {"dovetail.dev/allocation": allocation} if allocation else {}
            labels |= {"dovetail.dev/exporter": exporter} if exporter else {}
            (where,) = [name for name, one in sets.items() if selected(one, labels)]
            assert expected[where] == (allocation != "dovetail", exporter != "dovetail")


def test_rivals_are_kept_apart_by_their_labels_and_namespace() -> None:
    found = Found(rivals=(Rival("gpu-operator", (("app", "plugin"),)), Rival("kube-system", (("name", "ds"),))))
    terms = apart(select(objects({}, found), "DaemonSet", "dovetail-agent"))
    assert [(one.get("namespaces"), one["labelSelector"]["matchLabels"]) for one in terms] == [
        (None, {"app.kubernetes.io/name": "dovetail-agent"}),
        (["gpu-operator"], {"app": "plugin"}),
        (["kube-system"], {"name": "ds"}),
    ]


def test_agents_of_all_pools_are_kept_apart_and_the_daemons_of_mps_are_not() -> None:
    spec = pools(
        {"name": "mps", "nodeSelector": {"matchLabels": {"use": "mps"}},
         "sharing": {"strategy": "mps", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}},
        {"name": "rest"},
    )  # fmt: skip
    sets = {one["metadata"]["name"]: one for one in objects(spec) if one["kind"] == "DaemonSet"}
    assert "dovetail-mps-mps" in sets
    for name, one in sets.items():
        selectors = [term["labelSelector"]["matchLabels"] for term in apart(one)]
        assert selectors == ([{"app.kubernetes.io/name": "dovetail-agent"}] if "agent" in name else [])
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert (labels["app.kubernetes.io/name"] == "dovetail-agent") == ("agent" in name)


def test_a_driver_container_and_the_toolkit_run_on_all_gpu_nodes() -> None:
    spec = {"driver": {"mode": "Container", "image": f"r/driver@{DIGEST}"}, "runtime": {"configure": f"r/ctk@{DIGEST}"}}
    found = objects(spec | pools(POOL))
    for name in ("driver", "toolkit"):
        daemon_set = select(found, "DaemonSet", f"dovetail-{name}")
        assert [one["image"] for one in containers(daemon_set)] == [spec[name if name == "driver" else "runtime"][
            "image" if name == "driver" else "configure"]]  # fmt: skip
        assert selected(daemon_set, {"nvidia.com/gpu.present": "true"})
        assert not selected(daemon_set, {"nvidia.com/gpu.present": "true", "dovetail.dev/agent": "false"})
        assert daemon_set["spec"]["updateStrategy"] == {"type": "OnDelete"}
        assert "labels" in daemon_set["metadata"] and pod_spec(daemon_set)["automountServiceAccountToken"] is False  # type: ignore[index]
    (toolkit,) = containers(select(found, "DaemonSet", "dovetail-toolkit"))
    settings = {one["name"]: one["value"] for one in toolkit["env"]}
    assert settings["NVIDIA_DRIVER_ROOT"] == "/run/nvidia/driver"
    assert (settings["NVIDIA_RUNTIME_NAME"], settings["RUNTIME_ENABLE_CDI"]) == ("nvidia", "true")
    agents = select(found, "DaemonSet", "dovetail-agent-p")
    mounts = {one["name"]: one for one in agent(agents)["volumeMounts"]}
    assert mounts["driver"]["mountPath"] == "/host" and mounts["driver"]["readOnly"]
    assert not {"usr", "firmware"} & mounts.keys()
    paths = [one["mountPath"] for one in agent(agents)["volumeMounts"] if one["mountPath"].startswith("/host")]
    assert paths[0] == "/host", "what is below it is mounted after it"
    assert "--driver-root-on-host=/run/nvidia/driver" in agent(agents)["args"]


def test_beside_nvidias_driver_container_agents_find_it_and_a_second_one_is_reported() -> None:
    beside = Found(driver_containers=frozenset({"p"}))
    agents = select(objects(pools(POOL), beside), "DaemonSet", "dovetail-agent-p")
    assert "--driver-root-on-host=/run/nvidia/driver" in agent(agents)["args"]
    elsewhere = select(objects(pools(POOL), Found(driver_containers=frozenset({"q"}))), "DaemonSet", "dovetail-agent-p")
    assert "--driver-root-on-host=/" in agent(elsewhere)["args"]
    (problem,) = made(pools(POOL, driver={"mode": "Container", "image": f"r/driver@{DIGEST}"}), beside).unmet
    assert problem.field == "spec.driver.mode"


def test_without_a_driver_container_and_toolkit_no_node_is_changed() -> None:
    assert names(objects(), "DaemonSet") == ["dovetail-agent"]


def test_the_runtime_class() -> None:
    assert names(objects(), "RuntimeClass") == ["nvidia"]
    assert names(objects({}, Found(runtime_classes=frozenset({"nvidia"}))), "RuntimeClass") == []
    other = objects({"runtime": {"className": "gpu"}})
    assert select(other, "RuntimeClass", "gpu")["handler"] == "gpu"
    assert pod_spec(select(other, "DaemonSet", "dovetail-agent"))["runtimeClassName"] == "gpu"  # type: ignore[index]


def test_without_a_runtime_class_agents_are_privileged() -> None:
    found = objects({"runtime": {"className": "", "createClass": False}})
    daemon_set = select(found, "DaemonSet", "dovetail-agent")
    assert names(found, "RuntimeClass") == []
    assert "runtimeClassName" not in (pod_spec(daemon_set) or {})
    assert agent(daemon_set)["securityContext"] == {"privileged": True}
    assert "LD_LIBRARY_PATH" in {one["name"] for one in agent(daemon_set)["env"]}


def test_the_classes_of_claims_are_those_of_the_how_to() -> None:
    claims = pools({"name": "default", "allocation": "DRA"})
    rendered = [one for one in objects(claims, MONITORS) if one["kind"] == "DeviceClass"]
    blocks = page("docs/how-to/dra-driver.md").blocks
    shown = list(yaml.safe_load_all(next(one.text for one in blocks if "kind: DeviceClass" in one.text)))
    assert [one["spec"] for one in rendered] == [one["spec"] for one in shown]
    assert names(rendered, "DeviceClass") == [one["metadata"]["name"] for one in shown]
    foreign = Found(MONITORS.served, device_classes=frozenset({"gpu.nvidia.com"}))
    assert names(objects(claims, foreign), "DeviceClass") == ["mig.nvidia.com"]
    assert names(objects({}, MONITORS), "DeviceClass") == []
    without = made(claims)
    assert [(one.field, one.value) for one in without.unmet] == [("spec.agent.pools", "DRA")]
    assert "DeviceClass" not in {one["kind"] for one in without.objects}


@pytest.mark.parametrize(
    ("scrape", "found", "monitors", "annotated"),
    [
        ("Auto", Found(), False, True),
        ("Auto", MONITORS, True, False),
        ("ServiceMonitor", MONITORS, True, False),
        ("Annotations", MONITORS, False, True),
        ("None", MONITORS, False, False),
    ],
)
def test_how_prometheus_finds_the_pods(scrape: str, found: Found, monitors: bool, annotated: bool) -> None:
    rendered = objects({"metrics": {"scrape": scrape, "intervalSeconds": 30}} | AGENT_PLANES | HISTORY | IDLE, found)
    named = {
        "dovetail-scheduler",
        "dovetail-agent-planes",
        "dovetail-collector",
        "dovetail-idle-policy",
        "dovetail-agent",
    }
    assert {*names(rendered, "ServiceMonitor"), *names(rendered, "PodMonitor")} == (named if monitors else set())
    for one in rendered:
        if one["kind"] in WORKLOADS:
            metadata = one["spec"]["template"]["metadata"]
            annotations = metadata.get("annotations", {})
            assert (annotations.get("prometheus.io/scrape") == "true") == annotated
            ports = {port["containerPort"]: port["name"] for each in containers(one) for port in each["ports"]}
            if annotated and {"endpoints", "views", "answers"} & {*ports.values()}:
                assert ports[int(annotations["prometheus.io/port"])] == "http", "endpoints and views serve no metrics"
    if monitors:
        ports = {port["name"] for one in rendered if one["kind"] in WORKLOADS for each in containers(one)
                 for port in each["ports"]} - {"endpoints", "views", "answers"}  # fmt: skip
        services = [one for one in rendered if one["kind"] == "ServiceMonitor"]
        endpoints = [*(endpoint for one in services for endpoint in one["spec"]["endpoints"]),
                     *select(rendered, "PodMonitor", "dovetail-agent")["spec"]["podMetricsEndpoints"]]  # fmt: skip
        assert {one["port"] for one in endpoints} == ports
        assert all(one["interval"] == "30s" and one["honorLabels"] for one in endpoints)


def test_monitors_that_the_cluster_does_not_have_are_reported_and_left_out() -> None:
    result = made({"metrics": {"scrape": "ServiceMonitor"}})
    assert [one.field for one in result.unmet] == ["spec.metrics.scrape"]
    assert result.problems == () and "ServiceMonitor" not in {one["kind"] for one in result.objects}
    assert made({}, MONITORS).unmet == made().unmet == ()


def test_rules_and_boards() -> None:
    served = objects({}, MONITORS)
    assert {*names(served, "PrometheusRule")} == {group.name for group in rules.GROUPS}
    plain = yaml.safe_load(select(objects(), "ConfigMap", "dovetail-rules")["data"]["rules.yaml"])
    assert [group["name"] for group in plain["groups"]] == [group.name for group in rules.GROUPS]
    shown = {one["metadata"]["name"] for one in served if one["metadata"]["labels"].get("grafana_dashboard") == "1"}
    assert shown == {boards.config_map_name(board.uid) for board in boards.BOARDS}
    assert {"dovetail-board-node", "dovetail-board-job"} < shown
    without = objects({"metrics": {"rules": False, "dashboards": False}}, MONITORS)
    assert not {"PrometheusRule", "ConfigMap"} & {one["kind"] for one in without}
