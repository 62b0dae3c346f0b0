# SPDX-License-Identifier: Apache-2.0
"""Further replicas are bounded by the ResourceQuotas of their namespace, as quota admission counts pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from dovetail.kube.objects.quotas import ResourceQuota
from dovetail.replicas.quotas import room_in
from tests.cli.answers import answer
from tests.replicas.test_count import TWO, busy, count, counted
from tests.replicas.world import cluster, deployment, node, pod

GPUS = "requests.nvidia.com/gpu"


def quota(hard: dict[str, Any], used: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    status = {} if used is None else {"hard": hard, "used": used}
    return {"metadata": {"name": "team", "uid": "q"}, "spec": {"hard": hard} | spec, "status": status}


async def test_replicas_beyond_a_quota_are_not_asked_for(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    quotas = [quota({GPUS: "18"}, {GPUS: "8"})]
    async with cluster(tmp_path, deployment(2), [node("n1", 64), *TWO], asked, quotas) as config:
        found = await count(config, busy(25))
    assert (found["needed"], found["placeable"], found["desired"]) == (6, 4, 4)
    assert found["because"] == (
        "60 requests, 10 for each replica; 4 can be placed now; "
        f"ResourceQuota 'team': of 18 {GPUS} 10 are left, and a replica has 4"
    )
    assert len(asked[0]["change"]["objects"]) == 2


async def test_a_full_quota_leaves_what_there_is(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    async with cluster(tmp_path, deployment(2), [node("n1", 64), *TWO], asked, [quota({"pods": 2}, {"pods": 3})]) as c:
        found = await count(c, busy(25))
    assert (found["desired"], asked) == (2, [])
    assert found["because"].endswith("ResourceQuota 'team': of 2 pods 0 are left, and a replica has 1")


async def test_two_workloads_share_a_quota(tmp_path: Path) -> None:
    quotas = [quota({GPUS: "20"}, {GPUS: "8"})]
    async with cluster(tmp_path, deployment(2), [node("n1", 64), *TWO], quotas=quotas) as config:
        done = await counted(config, busy(15), "deployment/llama-b", "-o", "json")
    assert [one["desired"] for one in answer(done.stdout, "ReplicaCount")] == [4, 3]


async def test_room_bounds_before_a_quota_does(tmp_path: Path) -> None:
    quotas = [quota({GPUS: "20"}, {GPUS: "8"})]
    async with cluster(tmp_path, deployment(2), [node("n1", 8), node("n2", 5), *TWO], quotas=quotas) as config:
        assert (await count(config, busy(25)))["desired"] == 3


async def test_quotas_that_cannot_be_read_are_named_as_not_known(tmp_path: Path) -> None:
    async with cluster(tmp_path, deployment(2), [node("n1", 64), *TWO], quotas=None) as config:
        found = await count(config, busy(25))
    assert found["desired"] == 6
    assert "whether a ResourceQuota admits them is not known" in found["because"]


def _room(of: dict[str, Any], **spec: Any) -> int:
    """Of 8 replicas with 2 CPUs, 4 Gi and a limit of 8 Gi."""
    resources = {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "8Gi", "nvidia.com/gpu": 1}}
    one = pod("a")
    one["spec"] |= {"containers": [{"name": "main", "resources": resources}]} | spec
    return room_in([convert(of, ResourceQuota)], [one] * 8, (), 8).replicas


@pytest.mark.parametrize(
    ("hard", "admitted"),
    [
        ({"requests.cpu": "7"}, 3), ({"cpu": "7500m"}, 3), ({"memory": "16Gi"}, 4), ({"limits.memory": "16Gi"}, 2),
        ({"limits.cpu": "1"}, 8), ({"count/pods": "5"}, 5), ({"services": "0"}, 8), ({"nvidia.com/gpu": "1"}, 8),
        ({GPUS: 6, "requests.cpu": "10"}, 5), ({"requests.memory": "lots"}, 8),
    ],
)  # fmt: skip
def test_what_a_quota_counts(hard: dict[str, Any], admitted: int) -> None:
    assert _room(quota(hard)) == admitted


@pytest.mark.parametrize(
    ("scope", "spec", "admitted"),
    [
        ({"scopes": ["NotTerminating"]}, {}, 1), ({"scopes": ["Terminating"]}, {}, 8),
        ({"scopes": ["Terminating"]}, {"activeDeadlineSeconds": 60}, 1), ({"scopes": ["BestEffort"]}, {}, 8),
        ({"scopes": ["NotBestEffort"]}, {}, 1), ({"scopes": ["CrossNamespacePodAffinity"]}, {}, 8),
        ({"scopes": ["VolumeAttributesClass"]}, {}, 8),
    ],
)  # fmt: skip
def test_a_quota_counts_the_pods_in_its_scopes(scope: dict[str, Any], spec: dict[str, Any], admitted: int) -> None:
    assert _room(quota({"pods": 1}, **scope), **spec) == admitted


@pytest.mark.parametrize(("operator", "values", "admitted"), [("In", ["high"], 1), ("NotIn", ["high"], 8)])
def test_a_quota_of_a_class_of_priority(operator: str, values: list[str], admitted: int) -> None:
    one = {"scopeName": "PriorityClass", "operator": operator, "values": values}
    of = quota({"pods": 1}, scopeSelector={"matchExpressions": [one]})
    assert _room(of, priorityClassName="high") == admitted
