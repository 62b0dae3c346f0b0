# SPDX-License-Identifier: Apache-2.0
"""An API server with a Deployment, its pods, and the views of a scheduler whose core sees the same cluster."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from msgspec.structs import replace

from dovetail.viewserver.answers import API
from tests.cli.viewed import answers_of
from tests.kube.reading.test_prometheus import served

NOW_MS = 1_700_000_000_000
LABELS = {"app": "llama"}


def node(name: str, gpus: int) -> dict[str, Any]:
    allocatable = {"nvidia.com/gpu": str(gpus), "cpu": "64", "memory": "512Gi", "pods": "110"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}}


def spec(gpus: int = 4) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)}
    return {"schedulerName": "dovetail", "containers": [{"name": "main", "resources": {"limits": limits}}]}


def pod(name: str, on: str = "", gpus: int = 4, **labels: str) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "llama-5", "uid": "r", "controller": True}
    meta = {"name": name, "namespace": "serving", "uid": name, "labels": LABELS | labels, "ownerReferences": [owner]}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": meta,
        "spec": spec(gpus) | {"priority": 0} | ({"nodeName": on} if on else {}),
        "status": {"phase": "Running" if on else "Pending"},
    }  # fmt: skip


def deployment(replicas: int, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "llama", "namespace": "serving", "uid": "d"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": spec() | more},
        },
    }  # fmt: skip


@asynccontextmanager
async def cluster(
    folder: Path, workload: dict[str, Any], objects: list[dict[str, Any]], asked: list[dict[str, Any]] | None = None,
    quotas: Sequence[dict[str, Any]] | None = (),
) -> AsyncIterator[Path]:  # fmt: skip
    """The kubeconfig of it. The questions about what can be placed are noted. `quotas` None: they cannot be read."""
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    answers = answers_of(file, NOW_MS)

    async def answer(request: web.Request) -> web.Response:
        if request.path in (
            "/apis/apps/v1/namespaces/serving/deployments/llama",
            "/apis/apps/v1/namespaces/serving/deployments/llama-b",
            "/apis/leaderworkerset.x-k8s.io/v1/namespaces/serving/leaderworkersets/llama",
        ):
            return web.json_response(workload)
        if request.path == "/api/v1/namespaces/serving/pods":
            wanted = dict(one.split("=") for one in request.query["labelSelector"].split(","))
            found = [
                one for one in objects
                if one["kind"] == "Pod" and wanted.items() <= one["metadata"]["labels"].items()
            ]  # fmt: skip
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": found})
        if request.path == "/api/v1/namespaces/serving/resourcequotas" and quotas is not None:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": list(quotas)})
        if request.method == "POST":
            body = await request.text()
            if asked is not None:
                asked.append(json.loads(body))
            question = API.question_of(request.path, (), "POST")
            reply = answers.answer(replace(question, body=body))
            return web.Response(status=reply.status, body=reply.body, content_type="application/json")
        message = {"kind": "Status", "code": 404, "reason": "NotFound", "message": f"{request.path} not found"}
        return web.Response(status=404, body=msgspec.json.encode(message), content_type="application/json")

    async with served(answer) as url:
        config = folder / "config"
        config.write_text(
            f"apiVersion: v1\nclusters: [{{name: c, cluster: {{server: '{url}'}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
            "contexts: [{name: x, context: {cluster: c, user: u, namespace: serving}}]\ncurrent-context: x\n"
        )
        yield config
