# SPDX-License-Identifier: Apache-2.0
"""Serving stacks in manifests: the pods that their controllers would make, and where these are placed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.kube.gangs.ordinals import ordinals
from dovetail.kube.manifests.documents import Document
from dovetail.kube.manifests.parts import MOST_PODS
from dovetail.kube.manifests.workloads import expanded
from dovetail.kube.objects.base import ObjectMeta

CLIQUE, RACK = "nvidia.com/gpu.clique", "dovetail.dev/rack"


def template(gpus: int = 4) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": gpus} if gpus else {}
    return {"spec": {"containers": [{"name": "a", "image": "b", "resources": {"limits": limits}}]}}


def node(name: str, clique: str, gpus: int = 4) -> dict[str, Any]:
    amounts = {"cpu": "99", "memory": "99Gi", "pods": "99", "nvidia.com/gpu": str(gpus)}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {CLIQUE: clique, "kubernetes.io/hostname": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def cliques(*sizes: int) -> list[dict[str, Any]]:
    """Nodes `x-0`... of the clique `x` and so on, with 4 GPUs each."""
    return [node(f"{name}-{i}", name) for name, size in zip("xyz", sizes, strict=False) for i in range(size)]


def obj(api_version: str, kind: str, spec: Any, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "s", **metadata}, "spec": spec}


def lws(spec: Any, **metadata: Any) -> dict[str, Any]:
    return obj("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec, **metadata)


def disaggregated(slices: int = 1, prefill: int = 1, decode: int = 2, policy: Any = None, size: int = 1) -> Any:
    of_role = {"size": size, "workerTemplate": template()}
    roles = [
        {"name": name, "spec": {"replicas": replicas, "leaderWorkerTemplate": of_role}}
        for name, replicas in (("prefill", prefill), ("decode", decode))
    ]
    spec = {"slices": slices, "roles": roles, **({"placementPolicy": policy} if policy else {})}
    return obj("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet", spec)


def pod_cliques(replicas: int = 1, scaled: int = 1, pack: str = "") -> dict[str, Any]:
    """A router, and `scaled` replicas of decode with a leader and two workers, one of which is in the base."""

    def clique(name: str, pods: int, gpus: int) -> dict[str, Any]:
        return {"name": name, "spec": {"roleName": name, "replicas": pods, "podSpec": template(gpus)["spec"]}}

    constraint = {"topologyConstraint": {"pack": {"required": pack}}} if pack else {}
    groups = [{"name": "decode", "cliqueNames": ["leader", "worker"], "replicas": scaled, **constraint}]
    return obj("grove.io/v1alpha1", "PodCliqueSet", {
        "replicas": replicas,
        "template": {
            "cliques": [clique("router", 1, 0), clique("leader", 1, 4), clique("worker", 2, 4)],
            "podCliqueScalingGroups": groups,
        },
    })  # fmt: skip


def made(whole: dict[str, Any]) -> list[Any]:
    found = expanded([Document("f", whole)])
    assert found.faults == ()
    return [one.value for one in found.documents]


def pods_of(whole: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The labels of the pods by their names."""
    return {one["metadata"]["name"]: one["metadata"]["labels"] for one in made(whole) if one["kind"] == "Pod"}


def placed(folder: Path, nodes: list[Any], *objects: Any) -> dict[str, str]:
    """The clique of each pod that was placed."""
    file = folder / "all.yaml"
    file.write_text(yaml.safe_dump_all([*nodes, *objects]))
    result = CliRunner().invoke(cli, ["simulate", str(file), "-o", "json"])
    assert result.exit_code in (0, 1), result.output
    return {one["pod"].removeprefix("default/"): one["node"][0] for one in json.loads(result.stdout)["placed"]}


def test_sub_groups_have_the_labels_of_the_webhook() -> None:
    policy = {"subGroupSize": 2}
    both = {"size": 5, "workerTemplate": template(), "subGroupPolicy": policy}
    found = pods_of(lws({"leaderWorkerTemplate": both}))
    key = "leaderworkerset.sigs.k8s.io/subgroup-index"
    assert {name: labels[key] for name, labels in found.items()} == {
        "s-0": "0", "s-0-1": "0", "s-0-2": "0", "s-0-3": "1", "s-0-4": "1",
    }  # fmt: skip
    policy["subGroupPolicyType"] = "LeaderExcluded"  # type: ignore[assignment]
    assert key not in pods_of(lws({"leaderWorkerTemplate": both}))["s-0"]


def test_each_group_and_each_sub_group_has_a_domain_for_itself(tmp_path: Path) -> None:
    """Two groups of two sub-groups with two pods: a group has a rack, a sub-group of it a clique."""
    nodes = cliques(4, 4, 4)
    for one in nodes:
        one["metadata"]["labels"]["rack"] = "1" if one["metadata"]["name"][0] in "xy" else "2"
    both = {"size": 4, "workerTemplate": template(), "subGroupPolicy": {"subGroupSize": 2}}
    marks = {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack",
             "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology": CLIQUE}  # fmt: skip
    found = placed(tmp_path, nodes, lws({"replicas": 1, "leaderWorkerTemplate": both}, annotations=marks))
    assert found["s-0"] == found["s-0-1"] != found["s-0-2"] == found["s-0-3"]
    # The second group's sub-groups would need two cliques of a rack that no other group has.
    assert len(placed(tmp_path, nodes, lws({"replicas": 2, "leaderWorkerTemplate": both}, annotations=marks))) < 8


def test_a_disaggregated_set_makes_a_leader_worker_set_for_each_role_of_each_slice() -> None:
    found = made(disaggregated(slices=2, decode=1))
    sets = [one["metadata"]["name"] for one in found if one["kind"] == "LeaderWorkerSet"]
    assert sets == ["s-0-new-prefill", "s-0-new-decode", "s-1-new-prefill", "s-1-new-decode"]
    labels = next(one["metadata"]["labels"] for one in found if one["metadata"]["name"] == "s-1-new-decode-0")
    assert {key.partition("/")[2]: one for key, one in labels.items() if key.startswith("disagg")} == {
        "name": "s", "role": "decode", "slice": "1", "revision": "new",
    }  # fmt: skip
    assert found[0]["kind"] == "DisaggregatedSet"


@pytest.mark.parametrize("kind", ["ExclusiveSlice", "ExclusiveTopology"])
def test_each_slice_is_in_a_clique_of_its_own(tmp_path: Path, kind: str) -> None:
    found = placed(
        tmp_path, cliques(9, 3, 3), disaggregated(3, policy={"type": kind, "topology": CLIQUE})
    )  # fmt: skip
    slices = [{clique for pod, clique in found.items() if pod.startswith(f"s-{i}-")} for i in range(3)]
    assert len(found) == 9 and sorted(map(sorted, slices)) == [["x"], ["y"], ["z"]]


def test_only_an_exclusive_topology_keeps_other_sets_away(tmp_path: Path) -> None:
    """Two sets with three pods each, and a clique that has room for both."""
    for kind, expected in (("ExclusiveSlice", 6), ("ExclusiveTopology", 3)):
        sets = [disaggregated(policy={"type": kind, "topology": CLIQUE}) for _ in range(2)]
        sets[1]["metadata"] = {"name": "t"}
        assert len(placed(tmp_path, cliques(9), *sets)) == expected


@pytest.mark.parametrize(
    ("free", "expected"), [(1, []), (2, ["decode", "prefill"]), (3, ["decode", "decode", "prefill"])]
)
def test_decode_never_starts_without_prefill(tmp_path: Path, free: int, expected: list[str]) -> None:
    """With room for one instance nothing starts; further instances come as far as they fit."""
    found = placed(tmp_path, cliques(free), disaggregated(prefill=1, decode=4))
    assert sorted(pod.split("-")[3] for pod in found) == expected


def test_a_further_instance_is_placed_whole_or_not_at_all(tmp_path: Path) -> None:
    """Instances of two pods: five nodes hold one of each role, and no half of another one."""
    assert len(placed(tmp_path, cliques(5), disaggregated(prefill=1, decode=2, size=2))) == 4


def test_grove_makes_base_and_scaled_pod_gangs() -> None:
    found = made(pod_cliques(scaled=3, pack="clique"))
    gangs = {one["metadata"]["name"]: one for one in found if one["kind"] == "PodGang"}
    assert {name: [group["name"] for group in one["spec"]["podgroups"]] for name, one in gangs.items()} == {
        "s-0": ["s-0-router", "s-0-decode-0-leader", "s-0-decode-0-worker"],
        "s-0-decode-0": ["s-0-decode-1-leader", "s-0-decode-1-worker"],
        "s-0-decode-1": ["s-0-decode-2-leader", "s-0-decode-2-worker"],
    }
    assert gangs["s-0-decode-1"]["metadata"]["labels"] == {"grove.io/base-podgang": "s-0"}
    (config,) = gangs["s-0"]["spec"]["topologyConstraintGroupConfigs"]
    assert config["topologyConstraint"] == {"packConstraint": {"required": CLIQUE}}
    assert [one["kind"] for one in found].count("Pod") == 10 and "PodCliqueSet" not in {one["kind"] for one in found}


def test_a_scaled_pod_gang_packs_as_its_group_does_else_as_the_set_does() -> None:
    def packs(whole: dict[str, Any]) -> list[Any]:
        whole["spec"]["template"]["topologyConstraint"] = {"pack": {"required": "rack", "preferred": "clique"}}
        gangs = {one["metadata"]["name"]: one["spec"] for one in made(whole) if one["kind"] == "PodGang"}
        assert gangs["s-0-decode-0"]["topologyConstraintGroupConfigs"] == []
        return [gangs[name]["topologyConstraint"]["packConstraint"] for name in ("s-0", "s-0-decode-0")]

    of_the_set = {"required": RACK, "preferred": CLIQUE}
    assert packs(pod_cliques(scaled=2, pack="clique")) == [of_the_set, {"required": CLIQUE}]
    assert packs(pod_cliques(scaled=2)) == [of_the_set, of_the_set]


def test_idle_cliques_are_in_no_pod_gang() -> None:
    """Grove keeps them at 0 replicas, also below their minimum: no gang waits for their pods."""
    whole = pod_cliques(scaled=2)
    worker = whole["spec"]["template"]["cliques"][2]["spec"]
    worker |= {"replicas": 0, "minAvailable": 2}
    found = made(whole)
    gangs = {one["metadata"]["name"]: one for one in found if one["kind"] == "PodGang"}
    assert {name: [group["name"] for group in one["spec"]["podgroups"]] for name, one in gangs.items()} == {
        "s-0": ["s-0-router", "s-0-decode-0-leader"], "s-0-decode-0": ["s-0-decode-1-leader"],
    }  # fmt: skip
    whole["spec"]["template"]["cliques"][0]["spec"]["replicas"] = 0
    whole["spec"]["template"]["podCliqueScalingGroups"][0]["replicas"] = 0
    assert not {"PodGang", "Pod"} & {one["kind"] for one in made(whole)}


def test_the_ranks_of_a_scaling_group_go_on_from_clique_to_clique() -> None:
    pods = {one["metadata"]["name"]: one["metadata"] for one in made(pod_cliques(scaled=2)) if one["kind"] == "Pod"}
    stated = {name.removeprefix("s-0-"): ordinals(ObjectMeta(labels=meta["labels"])) for name, meta in pods.items()}
    assert stated == {
        "router-0": (0,),
        "decode-0-leader-0": (0, 0), "decode-0-worker-0": (0, 1), "decode-0-worker-1": (0, 2),
        "decode-1-leader-0": (1, 0), "decode-1-worker-0": (1, 1), "decode-1-worker-1": (1, 2),
    }  # fmt: skip


def test_the_replicas_of_a_scaling_group_are_each_in_one_clique(tmp_path: Path) -> None:
    """Cliques of three and four nodes hold two replicas of three pods, and no third one across both."""
    found = placed(tmp_path, cliques(3, 4), pod_cliques(scaled=3, pack="clique"))
    by_replica = [{one for pod, one in found.items() if pod.startswith(f"s-0-decode-{i}-")} for i in range(3)]
    assert sorted(map(sorted, by_replica)) == [[], ["x"], ["y"]]


def test_storm_services_make_role_sets() -> None:
    roles = [
        {"name": "prefill", "replicas": 1, "template": template()},
        {"name": "decode", "replicas": 2, "podGroupSize": 2, "template": template()},
    ]
    spec = {"replicas": 1, "template": {"spec": {"roles": roles}}}
    found = made(obj("orchestration.aibrix.ai/v1alpha1", "StormService", spec))
    kinds = [one["kind"] for one in found]
    assert (kinds.count("RoleSet"), kinds.count("PodSet"), kinds.count("Pod")) == (1, 2, 5)
    last = found[-1]["metadata"]
    assert last["name"] == "s-roleset-0-decode-1-1"
    assert last["labels"]["storm-service-name"] == "s" and last["labels"]["role-name"] == "decode"


def test_storm_services_start_with_an_instance_of_each_role(tmp_path: Path) -> None:
    roles = [
        {"name": "prefill", "replicas": 1, "template": template()},
        {"name": "decode", "replicas": 2, "podGroupSize": 2, "template": template()},
    ]
    storm = obj("orchestration.aibrix.ai/v1alpha1", "StormService", {"template": {"spec": {"roles": roles}}})
    assert len(placed(tmp_path, cliques(2), storm)) == 0
    assert len(placed(tmp_path, cliques(4), storm)) == 3


@pytest.mark.parametrize(
    ("whole", "field"),
    [
        (disaggregated(slices=10**5), "spec.slices"),
        (pod_cliques(replicas=10**5), "spec.replicas"),
        (pod_cliques(replicas=10**5, scaled=10**5), "spec.replicas"),
        (obj("grove.io/v1alpha1", "PodCliqueSet", {"replicas": 10**5, "template": {
            "podCliqueScalingGroups": [{"name": "none", "cliqueNames": [], "replicas": 10**5}]}}), "spec.replicas"),
        (obj("orchestration.aibrix.ai/v1alpha1", "StormService", {"replicas": 10**5, "template": {"spec": {"roles": [
            {"name": "a", "replicas": 10**4, "podGroupSize": 10, "template": template()}]}}}),
         "spec.template.spec.roles[0].replicas"),
        (obj("orchestration.aibrix.ai/v1alpha1", "StormService",
             {"replicas": 10**5, "template": {"spec": {"roles": [{}, {}]}}}), "spec.replicas"),
    ],
)  # fmt: skip
def test_sets_without_end_are_refused_before_anything_is_made(whole: Any, field: str) -> None:
    (fault,) = expanded([Document("f", whole)]).faults
    assert fault.field == field and str(MOST_PODS) in fault.message


def test_a_scaling_group_of_cliques_that_do_not_exist() -> None:
    whole = pod_cliques()
    whole["spec"]["template"]["podCliqueScalingGroups"][0]["cliqueNames"] = ["leader", "ghost"]
    (fault,) = expanded([Document("f", whole)]).faults
    assert str(fault).endswith(
        "spec.template.podCliqueScalingGroups[0].cliqueNames: must be a list of names of the cliques"
    )
