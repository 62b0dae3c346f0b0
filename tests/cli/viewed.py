# SPDX-License-Identifier: Apache-2.0
"""A scheduler that answers views about the cluster in a file, in place of the one behind an API server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from msgspec.structs import replace

from dovetail.aggregated.question import BadQuestion, Reply
from dovetail.cli import cluster
from dovetail.core.cycle import enter
from dovetail.core.json_text import decode_json
from dovetail.core.placing.expected_fill import ExpectedFill
from dovetail.core.policy import Policy, unhurried
from dovetail.core.state import State
from dovetail.kube.api.changes import Change
from dovetail.kube.api.resources import CONTROL_PLANES, GPU_LEASES, GPU_NODES, LEASE_REQUESTS, Resource
from dovetail.kube.manifests.cluster import read
from dovetail.kube.objects.views import VIEWS_GROUP, ViewDocument
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


def answers_of(file: Path, now_ms: int) -> ViewAnswers:
    """What answers views of the cluster in a file, at this time."""
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
    return ViewAnswers(state, now_ms, "dovetail", objects)


def answered_from(file: Path, now_ms: int, monkeypatch: pytest.MonkeyPatch, folder: Path, *, whole: bool) -> Path:
    """From now on commands with this kubeconfig are answered by views of the file, at this time, and read no cluster.
    `whole`: as for users with all rights, else for users of the namespace that they ask about."""
    answers = answers_of(file, now_ms)

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


@contextmanager
def serving(answers: ViewAnswers, folder: Path) -> Iterator[Path]:
    """The kubeconfig of an API server that has these views and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                question = API.question_of(url.path, parse_qsl(url.query), self.command)
                reply = answers.answer(replace(question, body=body.decode()))
            except BadQuestion as error:
                reply = Reply(error.status, str(error).encode())
            failure = {"kind": "Status", "message": reply.body.decode(), "details": {"kind": VIEWS_GROUP}}
            sent = reply.body if reply.status == 200 else json.dumps(failure).encode()
            self.send_response(reply.status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = folder / "config"
    config.write_text(CONFIG.replace(':1"', f':{server.server_port}"'))
    try:
        yield config
    finally:
        server.shutdown()
        server.server_close()
