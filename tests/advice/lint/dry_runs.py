# SPDX-License-Identifier: Apache-2.0
"""Objects that a real API server would create or refuse, one request each on one connection: kubectl would take
0.3 s of CPU for each."""

from __future__ import annotations

import http.client
import json
from base64 import b64decode
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import yaml

from dovetail.kube.api.config import load_kubeconfig
from tools.controlplane.plane import Plane


class DryRuns:
    """Creates objects in the namespace `default`, and stores none."""

    def __init__(self, plane: Plane) -> None:
        config = load_kubeconfig([plane.kubeconfig])
        user = yaml.safe_load(plane.kubeconfig.read_text())["users"][0]["user"]
        pem = "".join(b64decode(user[part]).decode() for part in ("client-certificate-data", "client-key-data"))
        address, context = urlsplit(config.server), config.ssl_context(pem)
        self._connection = http.client.HTTPSConnection(address.hostname or "", address.port, context=context)
        self.collection = cache(self._collection)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, list[str], dict[str, Any]]:
        """The status, the warnings and the answer."""
        headers = {"Content-Type": "application/json"}
        self._connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.headers.get_all("Warning") or [], json.loads(answer.read())

    def _collection(self, api_version: str, kind: str) -> str:
        base = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        _, _, listed = self._ask("GET", base)
        found = next(one for one in listed["resources"] if one["kind"] == kind and "/" not in one["name"])
        return f"{base}/namespaces/default/{found['name']}" if found["namespaced"] else f"{base}/{found['name']}"

    def create(self, whole: dict[str, Any], *, with_warnings: bool = False) -> str:
        """The message with which the server refuses the object, or warns of it; "" for none."""
        refused, warnings = self.judged(whole)
        return "; ".join(filter(None, (refused, warnings if with_warnings else "")))

    def judged(self, whole: dict[str, Any]) -> tuple[str, str]:
        """The message with which the server refuses to create the object, and its warnings; "" for none."""
        return self._write("POST", self.collection(whole["apiVersion"], whole["kind"]), whole)

    def replace(self, whole: dict[str, Any]) -> str:
        """As `create` with warnings, for an object that exists."""
        path = f"{self.collection(whole['apiVersion'], whole['kind'])}/{whole['metadata']['name']}"
        return "; ".join(filter(None, self._write("PUT", path, whole)))

    def _write(self, method: str, path: str, whole: dict[str, Any]) -> tuple[str, str]:
        status, warnings, answer = self._ask(method, f"{path}?dryRun=All&fieldValidation=Strict", whole)
        refused = "" if status < 300 else str(answer["message"])
        # A quote in the text of a warning is escaped.
        return refused.replace('\\"', '"'), "; ".join(warnings).replace('\\"', '"')
