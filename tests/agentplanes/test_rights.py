# SPDX-License-Identifier: Apache-2.0
"""What the process asks of the host's API server is what the roles of deploy/agent-planes grant, and all of that is
asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from dovetail.agentplanes.facts import CarryLimits
from dovetail.agentplanes.serving import ServeOptions, run
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.plane.kubernetes import KubernetesBroker
from tests.agentplanes.on_cluster import AGENT, carried, new_address, secret
from tests.agentplanes.world import job
from tests.paths import ROOT
from tests.scheduler.leased import LEASES, PLANES, LeasedCluster
from tests.scheduler.scripted import until

Right = tuple[str, str, str, str]
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def asked_for(method: str, path: str, params: Any) -> tuple[str, Right] | None:
    """Namespace, and group, resource, verb and name that RBAC decides by; None for discovery."""
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1] if len(parts) > 1 else "", parts[3:])
    if not rest:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    verb = VERBS.get(method) or ("get" if name else "watch" if (params or {}).get("watch") else "list")
    return namespace, (group, f"{resource}/{subresource}" if subresource else resource, verb, name)


def granted(name: str) -> set[Right]:
    """The rights of a ClusterRole; with the name of an object where they are for that alone."""
    files = [ROOT / "deploy/agent-planes/rbac.yaml", ROOT / "deploy/agent-namespaces/role.yaml"]
    documents = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    (role,) = [one for one in documents if one["kind"] == "ClusterRole" and one["metadata"]["name"] == name]
    return {
        (group, resource, verb, only)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for only in rule.get("resourceNames", [""])
    }


def by(rights: set[Right], right: Right) -> Right | None:
    """The grant by which the right is there."""
    named, whole = right, (*right[:3], "")
    return named if named in rights else whole if whole in rights else None


@pytest.mark.slow
async def test_the_requests_are_those_that_the_roles_grant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[str, Right]] = set()
    compose: Any = Client._compose

    def noted(self: Client, identity: Any, method: str, path: str, params: Any, *more: Any) -> bytes:
        if "dovetail-agent-planes" in self._fixed_headers and (right := asked_for(method, path, params)) is not None:
            seen.add(right)
        composed: bytes = compose(self, identity, method, path, params, *more)
        return composed

    monkeypatch.setattr(Client, "_compose", noted)
    async with LeasedCluster.opened(AGENT, backend="api", heartbeat="1s") as cluster, cluster.scheduler():
        store = cluster.playground.store
        for last in (False, True):
            before = secret(cluster)
            options = ServeOptions(folder=tmp_path, address=new_address(), listen="", limits=CarryLimits(linger_ms=100))
            task = asyncio.create_task(run(ClusterConfig(cluster.playground.url), options, KubernetesBroker))
            await until(lambda before=before: secret(cluster) != before)  # type: ignore[misc]
            headers = {"Authorization": f"Bearer {secret(cluster)['token']}"}
            async with aiohttp.ClientSession(headers=headers) as session:
                server = secret(cluster)["server"]
                jobs = f"{server}/apis/batch/v1/namespaces/default/jobs"
                await session.post(jobs, json=job("serve", 1, None))
                await until(lambda: [pod["status"]["phase"] for pod in carried(cluster)] == ["Running"])
                name = (await (await session.get(f"{server}/api/v1/pods")).json())["items"][0]["metadata"]["name"]
                await session.get(f"{server}/api/v1/namespaces/default/pods/{name}/log")
                await session.delete(f"{jobs}/serve")
                await until(lambda: not carried(cluster))
                await until(lambda: all(one["status"].get("state") == "Ended" for one in store.list(LEASES)))
            if last:
                cluster.playground.delete(PLANES, AGENT, AGENT)
                await until(lambda: not list(tmp_path.glob("[0-9a-f]*.sqlite")))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    everywhere, inside = granted("dovetail-agent-planes"), granted("dovetail-agent-planes-namespace")
    used = set[Right]()
    for namespace, right in seen:
        assert namespace in ("", AGENT), right
        grant = by(everywhere, right) or (by(inside, right) if namespace else None)
        assert grant is not None, right
        used.add(grant)
    # Of the agent's own role it needs a part.
    own = {right for right in inside if right[0] == ""}
    assert own - used == set()
