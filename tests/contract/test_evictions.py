# SPDX-License-Identifier: Apache-2.0
"""Evictions: what disruption budgets allow, what they take of a pod's grace, and what they write down."""

import asyncio

from tests.contract.api import MERGE, STRATEGIC, Api, Json, pod
from tests.patience import PATIENCE_S

READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def budget(name: str, **spec: object) -> Json:
    spec = {"selector": {"matchLabels": {"app": "one"}}} | spec
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}


def budgets(api: Api) -> str:
    return api.path("poddisruptionbudgets", version="policy/v1")


async def evict(api: Api, name: str, status: int, **options: object) -> Json:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}
    reply = await api.post(api.path("pods", f"{name}/eviction"), eviction)
    assert reply.status == status, reply.body
    return reply.body


async def running(api: Api, name: str, **spec: object) -> Json:
    """A pod with the label app=one that is ready on a node that no other test uses."""
    document = pod(name, **spec)
    document["metadata"]["labels"] = {"app": "one"}
    made = await api.create(api.path("pods"), document)
    await api.bind(name)
    assert (await api.patch(api.path("pods", f"{name}/status"), {"status": READY})).status == 200
    return made


async def settled(api: Api, name: str, reason: str = "", **wanted: object) -> Json:
    """The status of a budget, once the disruption controller has made these of its fields, and why that is allowed."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = (await api.get(f"{budgets(api)}/{name}")).body
            status = found.get("status", {})
            reasons = [c["reason"] for c in status.get("conditions", ())]
            if reason in ("", *reasons) and all(status.get(field) == value for field, value in wanted.items()):
                return status
            await asyncio.sleep(0.02)


async def test_eviction_respects_a_disruption_budget(api: Api) -> None:
    await running(api, "one")
    await api.create(budgets(api), budget("guard", minAvailable=1))
    status = await settled(api, "guard", observedGeneration=1, currentHealthy=1)
    assert (status["desiredHealthy"], status["expectedPods"], status["disruptionsAllowed"]) == (1, 1, 0)
    assert _allowed(status) == ("False", "InsufficientPods")
    refused = await evict(api, "one", 429)
    assert refused["reason"] == "TooManyRequests"
    assert refused["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert refused["details"]["causes"][0]["reason"] == "DisruptionBudget"
    assert "The disruption budget guard needs 1 healthy pods" in refused["details"]["causes"][0]["message"]
    await api.patch(f"{budgets(api)}/guard", {"spec": {"minAvailable": 0}}, MERGE)
    assert _allowed(await settled(api, "guard", observedGeneration=2, disruptionsAllowed=1)) == (
        "True", "SufficientPods",
    )  # fmt: skip
    await evict(api, "one", 201)
    evicted = (await api.get(api.path("pods", "one"))).body
    conditions = {c["type"]: c.get("reason") for c in evicted["status"]["conditions"]}
    assert evicted["metadata"]["deletionTimestamp"] and conditions["DisruptionTarget"] == "EvictionByEvictionAPI"
    assert (await api.get(f"{budgets(api)}/guard")).body["status"]["disruptionsAllowed"] == 0


def _allowed(status: Json) -> tuple[str, str]:
    (condition,) = [c for c in status["conditions"] if c["type"] == "DisruptionAllowed"]
    return condition["status"], condition["reason"]


async def test_one_disruption_is_allowed_once(api: Api) -> None:
    for name in ("one", "two"):
        await running(api, name)
    await api.create(budgets(api), budget("guard", minAvailable=1))
    await settled(api, "guard", observedGeneration=1, disruptionsAllowed=1)
    await evict(api, "one", 201)
    await evict(api, "two", 429)
    # A pod that ends may be evicted again, whatever the budget.
    await evict(api, "one", 201)


async def test_pods_without_a_controller_are_not_counted_by_a_budget_of_the_unavailable(api: Api) -> None:
    await running(api, "one")
    await api.create(budgets(api), budget("guard", maxUnavailable=1))
    status = await settled(api, "guard", observedGeneration=1, currentHealthy=1)
    assert (status["expectedPods"], status["disruptionsAllowed"]) == (0, 0)
    await evict(api, "one", 429)


async def test_a_budget_of_the_unavailable_allows_nothing_of_jobs(api: Api) -> None:
    template = {"metadata": {"labels": {"app": "one"}}, "spec": pod("x")["spec"] | {"restartPolicy": "Never"}}
    spec = {"parallelism": 2, "completions": 2, "template": template}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}
    await api.create(api.path("jobs", version="batch/v1"), job)
    names: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(names) < 2:
            names = (await api.get(api.path("pods"), labelSelector="app=one")).names
            await asyncio.sleep(0.02)
    for name in names:
        await api.bind(name)
        await api.patch(api.path("pods", f"{name}/status"), {"status": READY})
    await api.create(budgets(api), budget("guard", maxUnavailable=1))
    status = await settled(api, "guard", "SyncFailed")
    assert _allowed(status) == ("False", "SyncFailed")
    assert status["disruptionsAllowed"] == 0
    await evict(api, names[0], 429)


async def test_a_pod_may_take_the_grace_that_it_or_the_eviction_states(api: Api) -> None:
    for name in ("own", "shorter"):
        await running(api, name, terminationGracePeriodSeconds=50)
    await evict(api, "own", 201)
    await evict(api, "shorter", 201, gracePeriodSeconds=5)
    for name, grace_s in (("own", 50), ("shorter", 5)):
        assert (await api.get(api.path("pods", name))).body["metadata"]["deletionGracePeriodSeconds"] == grace_s


async def test_an_eviction_can_name_the_pod_it_means(api: Api) -> None:
    made = await running(api, "one")
    await evict(api, "one", 409, preconditions={"uid": "00000000-0000-0000-0000-000000000000"})
    found = (await api.get(api.path("pods", "one"))).body
    assert "deletionTimestamp" not in found["metadata"]
    assert "DisruptionTarget" not in [c["type"] for c in found["status"]["conditions"]]
    await evict(api, "one", 201, preconditions={"uid": made["metadata"]["uid"]})


async def test_an_eviction_sets_the_reason_over_an_earlier_one(api: Api) -> None:
    await running(api, "one")
    stated = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for another"}
    reported = {"status": {"conditions": [stated]}}
    assert (await api.patch(api.path("pods", "one/status"), reported, STRATEGIC)).status == 200
    await evict(api, "one", 201)
    conditions = (await api.get(api.path("pods", "one"))).body["status"]["conditions"]
    assert [c["reason"] for c in conditions if c["type"] == "DisruptionTarget"] == ["EvictionByEvictionAPI"]
    # After the eviction the preemptor can still be written.
    assert (await api.patch(api.path("pods", "one/status"), reported, STRATEGIC)).status == 200
    conditions = (await api.get(api.path("pods", "one"))).body["status"]["conditions"]
    assert [c["reason"] for c in conditions if c["type"] == "DisruptionTarget"] == ["PreemptionByScheduler"]


async def test_a_node_can_be_nominated_for_a_waiting_pod_and_cleared(api: Api) -> None:
    await api.create_pod("one")
    for node in ("gpu-1", None):
        await api.patch(api.path("pods", "one/status"), {"status": {"nominatedNodeName": node}}, STRATEGIC)
        assert (await api.get(api.path("pods", "one"))).body["status"].get("nominatedNodeName") == node


async def test_a_waiting_pod_is_evicted_without_asking_a_budget(api: Api) -> None:
    await api.create_pod("one")
    await api.create(budgets(api), budget("guard", minAvailable=1))
    await evict(api, "one", 201)
    assert (await api.get(api.path("pods", "one"))).status == 404
    await evict(api, "one", 404)
