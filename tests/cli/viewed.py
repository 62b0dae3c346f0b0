# SPDX-License-Identifier: Apache-2.0
"""A scheduler that answers views about the cluster in a file, in place of the one behind an API server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.cli import cluster
from dovetail.core.cycle import enter
from dovetail.core.json_text import decode_json
from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.policy import Policy, unhurried
from dovetail.core.state import State
from dovetail.kube.api.changes import Change
from dovetail.kube.api.resources import CONTROL_PLANES, GPU_LEASES, GPU_NODES, LEASE_REQUESTS, Resource
from dovetail.kube.manifests.cluster import read
from dovetail.kube.objects.views import ViewDocument
from dovetail.kube.reading import state as reading
from dovetail.kube.reading import views
from dovetail.kube.reading.views import NoSuchObject, ViewRequest
from dovetail.kube.translate.reported import ReportedObjects, batch_of, notes_batch
from dovetail.viewserver.answers import API, ViewAnswers

CONFIG = """
apiVersion: v1
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u, namespace: default}}]
current-context: x
"""


def answered_from(file: Path, now_ms: int, monkeypatch: pytest.MonkeyPatch, folder: Path, *, whole: bool) -> Path:
    """From now on commands with this kubeconfig are answered by views of the file, at this time, and read no cluster.
    `whole`: as for users with all rights, else for users of the namespace that they ask about."""
    found = read((str(file),), "dovetail")
    state = State(unhurried(Policy(scoring=ExpectedFill())))
    enter(state, found.events, now_ms)
    objects = ReportedObjects("dovetail")
    leased = found.feed.leases.objects
    kinds: tuple[tuple[Resource, Iterable[Any]], ...] = (
        (CONTROL_PLANES, leased.planes), (LEASE_REQUESTS, leased.requests), (GPU_LEASES, leased.leases),
        (GPU_NODES, filter(None, map(found.feed.node_records.gpu_node, state.cluster.nodes.slots))),
    )  # fmt: skip
    for resource, made in kinds:
        objects.take(batch_of(resource, [Change("added", one) for one in made]))
    objects.take(notes_batch((about, found.feed.notes(about)) for about in found.feed.noted()))
    answers = ViewAnswers(state, now_ms, "dovetail", objects)

    async def read_view(config: object, asked: ViewRequest) -> ViewDocument:
        name = f"{asked.namespace}:{asked.name}" if whole and asked.name else asked.name
        path = "/".join(filter(None, ("" if whole else f"namespaces/{asked.namespace}", asked.resource.plural, name)))
        question = API.question_of(f"{API.path}/{path}", asked.query.items(), "POST" if asked.body else "GET")
        reply = answers.answer(replace(question, body=asked.body.decode()))
        if reply.status == 422 and asked.instead is not None:
            return await read_view(config, asked.instead)
        if reply.status != 200:
            raise NoSuchObject(reply.body.decode())
        return decode_json(reply.body, ViewDocument)

    async def unread(*_: object, **__: object) -> Any:
        raise AssertionError("the cluster is read")

    monkeypatch.setattr(views, "read_view", read_view)
    monkeypatch.setattr(reading, "read_cluster", unread)
    monkeypatch.setattr(cluster, "now_ms", lambda: now_ms)
    config = folder / "config"
    config.write_text(CONFIG)
    return config
