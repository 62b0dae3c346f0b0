# SPDX-License-Identifier: Apache-2.0
"""Jobs make pods, and report how far they have come."""

from dovetail.playground import EXIT_CODE, RUN_SECONDS, Playground
from tests.contract.api import Api, Json

INDEX = "batch.kubernetes.io/job-completion-index"


def job(name: str, annotations: Json | None = None, **spec: object) -> Json:
    template = {
        "metadata": {"annotations": annotations or {}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example/none"}]},
    }
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"template": template, **spec},
    }  # fmt: skip


async def _watch_until(api: Api, kind: str) -> Json:
    """The job, when it has the condition."""
    async with api.watch(api.path("jobs", version="batch/v1")) as events:
        while True:
            found = (await events.next())["object"]
            conditions = found.get("status", {}).get("conditions", ())
            if any(c["type"] == kind and c["status"] == "True" for c in conditions):
                return found


async def _bind_all(playground: Playground, api: Api) -> list[Json]:
    """Binds what waits for a node."""
    playground.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}})
    pods = (await api.get(api.path("pods"), fieldSelector="spec.nodeName=,status.phase=Pending")).body["items"]
    for waiting in pods:
        await api.bind(waiting["metadata"]["name"], "gpu-1")
    return pods


async def _pods_made(api: Api, count: int) -> None:
    """Waits until there are so many pods."""
    async with api.watch(api.path("pods")) as events:
        while count:
            count -= (await events.next())["type"] == "ADDED"


async def test_an_indexed_job_runs_each_index_once(playground: Playground, api: Api) -> None:
    playground.put(job("train", {RUN_SECONDS: "0"}, parallelism=2, completions=2, completionMode="Indexed"))
    await _pods_made(api, 2)
    pods = await _bind_all(playground, api)
    assert sorted(p["metadata"]["annotations"][INDEX] for p in pods) == ["0", "1"]
    assert {p["metadata"]["labels"]["batch.kubernetes.io/job-name"] for p in pods} == {"train"}
    assert all(p["metadata"]["ownerReferences"][0]["controller"] for p in pods)
    assert {"name": "JOB_COMPLETION_INDEX", "value": "0"} in [
        variable for p in pods for variable in p["spec"]["containers"][0]["env"]
    ]
    done = await _watch_until(api, "Complete")
    assert (done["status"]["succeeded"], done["status"]["active"]) == (2, 0)


async def test_a_failing_job_gives_up_at_its_limit(playground: Playground, api: Api) -> None:
    playground.put(job("train", {RUN_SECONDS: "0", EXIT_CODE: "1"}, parallelism=1, completions=1, backoffLimit=1))
    await _pods_made(api, 1)
    await _bind_all(playground, api)
    await _pods_made(api, 2)
    await _bind_all(playground, api)
    failed = await _watch_until(api, "Failed")
    assert (failed["status"]["failed"], failed["status"]["conditions"][0]["reason"]) == (2, "BackoffLimitExceeded")


async def test_a_deleted_pod_is_replaced_and_a_suspended_job_has_none(playground: Playground, api: Api) -> None:
    playground.put(job("train", parallelism=1, completions=1))
    await _pods_made(api, 1)
    (first,) = (await api.get(api.path("pods"))).names
    await api.delete(api.path("pods", first))
    await _pods_made(api, 1)
    assert (await api.get(api.path("pods"))).names != [first]
    await api.patch(api.path("jobs", "train", "batch/v1"), {"spec": {"suspend": True}})
    await _watch_until(api, "Suspended")
    assert (await api.get(api.path("pods"))).names == []


async def test_a_job_whose_pods_are_refused_states_why(playground: Playground, api: Api) -> None:
    playground.put(job("train") | {"spec": {"template": {"spec": {"containers": []}}}})
    stuck = await _watch_until(api, "FailureTarget")
    assert "spec.containers: Required value" in stuck["status"]["conditions"][0]["message"]


async def test_a_deleted_job_takes_its_pods_along(playground: Playground, api: Api) -> None:
    playground.put(job("train", parallelism=2, completions=2))
    await _pods_made(api, 2)
    await api.delete(api.path("jobs", "train", "batch/v1"))
    assert (await api.get(api.path("pods"))).names == []
