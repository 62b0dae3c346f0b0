# SPDX-License-Identifier: Apache-2.0
"""Queues: what is printed of them, and that spec and status have each their own writer."""

from collections.abc import AsyncIterator

import pytest
import yaml

from tests.contract.api import JSON_PATCH, MERGE, Api, Json
from tests.paths import ROOT

DEFINITION = yaml.safe_load((ROOT / "deploy/crds/queue.yaml").read_text())
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
QUEUES = "/apis/dovetail.dev/v1alpha1/queues"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.fixture
async def name(api: Api) -> AsyncIterator[str]:
    """A queue name that no other test uses, on a server with the definition of Queue."""
    made = await api.post(DEFINITIONS, DEFINITION)
    assert made.status in (201, 409), made.body
    # A real server serves the resource some moments after it was defined.
    while (await api.get(QUEUES)).status != 200:
        pass
    yield api.namespace
    await api.delete(f"{QUEUES}/{api.namespace}")


def queue(name: str, **spec: object) -> Json:
    return {
        "apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name},
        "spec": {"weight": 2, "parent": "research"} | spec,
    }  # fmt: skip


STATUS = {
    "allocated": {"gpu": "40"}, "due": {"gpu": "36"}, "guaranteed": {"gpu": "32"}, "pendingJobs": 3,
    "usage": {"asOf": "2026-01-02T00:00:00.250Z", "used": "1", "rate": "2", "credit": "-1.5"},
    "money": {
        "spent": "12.345678", "currency": "USD", "periodStart": "2026-01-01T00:00:00Z",
        "periodEnd": "2026-02-01T00:00:00Z", "asOf": "2026-01-02T00:00:00Z", "message": "2.0 GPU-hours have no price.",
    },
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "Usable", "lastTransitionTime": "2026-01-02T00:00:00.250Z"}
    ],
}  # fmt: skip


def replaced(uid: str, status: Json) -> list[Json]:
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status", "value": status},
    ]


async def test_a_status_is_replaced_as_a_whole_and_the_spec_stays(api: Api, name: str) -> None:
    made = await api.create(QUEUES, queue(name, limit={"gpu": "8"}))
    uid = made["metadata"]["uid"]
    assert "status" not in made
    for status in (STATUS, {"pendingJobs": 0}):
        reply = await api.patch(f"{QUEUES}/{name}/status", replaced(uid, status), JSON_PATCH)
        assert reply.status == 200, reply.body
        assert reply.body["status"] == status
    mixed = await api.patch(f"{QUEUES}/{name}/status", {"spec": {"weight": 9}, "status": {"pendingJobs": 1}}, MERGE)
    assert (mixed.body["spec"]["weight"], mixed.body["status"]["pendingJobs"]) == (2, 1)
    main = await api.patch(f"{QUEUES}/{name}", {"spec": {"weight": 3}, "status": {"pendingJobs": 7}}, MERGE)
    assert (main.body["spec"]["weight"], main.body["status"]["pendingJobs"]) == (3, 1)
    assert (main.body["metadata"]["generation"], main.body["spec"]["limit"]) == (2, {"gpu": "8"})


async def test_the_status_of_another_queue_of_that_name_is_not_written(api: Api, name: str) -> None:
    await api.create(QUEUES, queue(name))
    reply = await api.patch(f"{QUEUES}/{name}/status", replaced("another", STATUS), JSON_PATCH)
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")
    assert "status" not in (await api.get(f"{QUEUES}/{name}")).body


async def test_a_status_of_a_queue_that_is_gone_is_not_found(api: Api, name: str) -> None:
    reply = await api.patch(f"{QUEUES}/{name}/status", replaced("x", STATUS), JSON_PATCH)
    assert (reply.status, reply.body["reason"]) == (404, "NotFound")


async def test_a_table_shows_what_a_queue_has_and_is_due(api: Api, name: str) -> None:
    made = await api.create(QUEUES, queue(name))
    await api.patch(f"{QUEUES}/{name}/status", replaced(made["metadata"]["uid"], STATUS), JSON_PATCH)
    table = (await api.request("GET", f"{QUEUES}/{name}", accept=TABLE)).body
    shown = {c["name"]: cell for c, cell in zip(table["columnDefinitions"], table["rows"][0]["cells"], strict=True)}
    wanted = {
        "Name": name, "Parent": "research", "Weight": 2, "GPUs": "40", "Due": "36", "Guaranteed": "32", "Pending": 3,
        "Ready": "True",
    }  # fmt: skip
    assert shown | wanted == shown
