# SPDX-License-Identifier: Apache-2.0
"""Whatever JSON a client sends, the answer is an answer: no request ends in an error of the server."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.playground import Playground

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-9, 9)
    | st.sampled_from(["", "x", "1", "-1", "100Gi", "a/b", "2026-01-01T00:00:00Z", "True", "$patch", "delete"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["name", "type", "uid", "key", "$patch", "limits", "spec", "matchLabels", "x", "f:a", "k:{}"]),
        inner, max_size=3,
    ),
    max_leaves=6,
)  # fmt: skip
KINDS = {
    "pods": ("v1", "Pod"), "configmaps": ("v1", "ConfigMap"), "events": ("v1", "Event"), "services": ("v1", "Service"),
    "secrets": ("v1", "Secret"), "jobs": ("batch/v1", "Job"), "leases": ("coordination.k8s.io/v1", "Lease"),
    "podgroups": ("scheduling.k8s.io/v1beta1", "PodGroup"), "deployments": ("apps/v1", "Deployment"),
    "resourceclaims": ("resource.k8s.io/v1", "ResourceClaim"), "daemonsets": ("apps/v1", "DaemonSet"),
    "poddisruptionbudgets": ("policy/v1", "PodDisruptionBudget"),
}  # fmt: skip
PLACES = [
    "metadata", "metadata.labels", "metadata.annotations", "metadata.finalizers", "metadata.ownerReferences",
    "metadata.managedFields", "metadata.managedFields.0.fieldsV1", "metadata.generateName", "metadata.uid",
    "metadata.resourceVersion", "metadata.deletionTimestamp", "metadata.generation",
    "spec", "spec.containers", "spec.containers.0", "spec.containers.0.resources", "spec.containers.0.env",
    "spec.containers.0.resources.limits", "spec.containers.0.name", "spec.restartPolicy", "spec.tolerations",
    "spec.schedulingGates", "spec.template", "spec.template.metadata", "spec.template.spec.containers",
    "spec.template.metadata.labels", "spec.parallelism", "spec.completions", "spec.completionMode", "spec.selector",
    "spec.backoffLimit", "spec.suspend", "spec.priorityClassName", "spec.overhead", "spec.resourceClaims",
    "spec.devices", "spec.devices.requests", "spec.replicas", "spec.strategy", "spec.updateStrategy",
    "spec.minAvailable", "spec.terminationGracePeriodSeconds", "spec.nodeName", "spec.leaseDurationSeconds",
    "status", "status.conditions", "status.phase", "status.containerStatuses", "status.allocation",
    "status.reservedFor", "data", "involvedObject", "eventTime", "lastTimestamp", "type",
]  # fmt: skip
TYPES = [f"application/{name}" for name in
         ("merge-patch+json", "strategic-merge-patch+json", "json-patch+json", "apply-patch+yaml")]  # fmt: skip
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def whole(plural: str) -> dict[str, Any]:
    """An object that every kind takes."""
    version, kind = KINDS[plural]
    container = {"name": "main", "image": "registry.example/none", "resources": {}, "env": []}
    template = {"metadata": {"labels": {"app": "one"}}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": version, "kind": kind, "metadata": {"name": "one", "managedFields": [
            {"manager": "other", "operation": "Apply", "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": {}},
        ]},
        "spec": {"restartPolicy": "Never", "containers": [container], "template": template},
        "status": {},
    }  # fmt: skip


def with_junk(document: Any, path: str, junk: Any) -> Any:
    """The document with something else at a dotted path, where there is such a place."""
    if not path:
        return junk
    step, _, rest = path.partition(".")
    value = with_junk(document[int(step)] if isinstance(document, list) else document.get(step, {}), rest, junk)
    if isinstance(document, list):
        return [value if place == int(step) else one for place, one in enumerate(document)]
    return document | {step: value}


class Client:
    """Sends requests to one playground, all in one event loop."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._playground, self._session = self._runner.run(self._start())

    async def _start(self) -> tuple[Playground, aiohttp.ClientSession]:
        playground = Playground()
        return playground, aiohttp.ClientSession(await playground.start())

    def send(self, method: str, path: str, body: object = None, type: str = "application/json", **query: str) -> int:
        """Status of the answer."""
        return self._runner.run(self._send(method, path, body, type, query))

    async def _send(self, method: str, path: str, body: object, type: str, query: dict[str, str]) -> int:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": type, "Accept": f"{TABLE},application/json"}
        async with self._session.request(method, path, data=data, headers=headers, params=query) as response:
            await response.read()
            # Controllers have their turn: they must survive what is stored now.
            await asyncio.sleep(0)
            return response.status

    def controllers_run(self) -> bool:
        return not any(task.done() for task in self._playground._tasks)

    def close(self) -> None:
        self._runner.run(self._session.close())
        self._runner.run(self._playground.stop())
        self._runner.close()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.close()


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.sampled_from(sorted(KINDS)), st.sampled_from(PLACES), JUNK,
    st.lists(st.tuples(st.sampled_from(TYPES), JUNK), max_size=3),
    st.sampled_from(["", "/status"]),
)  # fmt: skip
def test_any_document_gets_an_answer(
    client: Client, plural: str, place: str, junk: Any, patches: list[tuple[str, Any]], part: str
) -> None:
    base = f"/apis/{KINDS[plural][0]}" if "/" in KINDS[plural][0] else f"/api/{KINDS[plural][0]}"
    path = f"{base}/namespaces/default/{plural}"
    bad = with_junk(whole(plural), place, junk)
    codes = [client.send("POST", path, bad), client.send("POST", path, whole(plural))]
    codes += [client.send("PUT", f"{path}/one{part}", bad)]
    for type, patch in patches:
        document = with_junk({}, place.replace(".0", ""), patch) if "json-patch" not in type else [
            {"op": "add", "path": "/" + place.replace(".", "/"), "value": patch}, patch,
        ]  # fmt: skip
        if "apply" in type:
            document = with_junk(whole(plural), place, patch)
        codes.append(client.send("PATCH", f"{path}/one{part}", document, type, fieldManager="me", force="true"))
    codes += [client.send("GET", path), client.send("GET", path, labelSelector="a=b")]
    codes += [client.send("DELETE", f"{path}/one", {"preconditions": junk, "gracePeriodSeconds": 0})]
    client.send("PATCH", f"{path}/one", {"metadata": {"finalizers": None}}, TYPES[0])
    client.send("DELETE", f"{path}/one", {"gracePeriodSeconds": 0})
    assert not [code for code in codes if code >= 500 and code != 501], codes
    assert client.controllers_run()
