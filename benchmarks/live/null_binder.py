# SPDX-License-Identifier: Apache-2.0
"""A scheduler without scheduling logic: `python -m benchmarks.live.null_binder --kubeconfig FILE [--events]`.

It lists the nodes and its pending pods, binds the pods to the nodes round-robin, and then binds each new pod until it
is killed. It shows the upper limit of the API server and a Python client. With --events it also writes a Scheduled
event for each pod after the bind, as kube-scheduler does. It reads only names; the names of pods that fit nowhere mark
them.
"""

import argparse
import asyncio
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime

import uvloop

from benchmarks.live.scenario import UNPLACEABLE, SeenPod
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig, load_config
from dovetail.kube.api.decoding import Identified
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.reflector import Change, Reflector
from dovetail.kube.api.resources import EVENTS, NODES, PODS

SCHEDULER_NAME = "null-binder"
CONNECTIONS = 96
PENDING = {"fieldSelector": f"spec.schedulerName={SCHEDULER_NAME},spec.nodeName="}


async def run(config: ClusterConfig, events: bool) -> None:
    """Bind until cancelled. Raises ApiError."""
    async with Client(config, concurrency=CONNECTIONS) as client:
        nodes = itertools.cycle([name for _, name in (await list_all(client, NODES, Identified)).objects])
        pods = (await list_all(client, PODS, SeenPod, params=PENDING)).objects.values()
        shared = zip(pods, nodes, strict=False)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(work(client, shared, events))
        async with asyncio.TaskGroup() as tasks:

            def sink(changes: list[Change[SeenPod]]) -> None:
                for change in changes:
                    if change.kind == "added":
                        tasks.create_task(bind(client, change.object, next(nodes), events))

            await Reflector(client, PODS, SeenPod, sink, params=PENDING).run()


async def work(client: Client, shared: Iterator[tuple[SeenPod, str]], events: bool) -> None:
    for pod, node in shared:
        await bind(client, pod, node, events)


async def bind(client: Client, pod: SeenPod, node: str, events: bool) -> None:
    namespace, name, uid = pod.metadata.namespace, pod.metadata.name, pod.metadata.uid
    if name.endswith(UNPLACEABLE):
        return
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "target": {"kind": "Node", "name": node},
    }
    await client.request("POST", PODS.path(namespace, name, "binding"), binding)
    if events:
        await client.request("POST", EVENTS.path(namespace), scheduled(pod, node))


def scheduled(pod: SeenPod, node: str) -> dict[str, object]:
    """The Scheduled event of a pod."""
    namespace, name, uid = pod.metadata.namespace, pod.metadata.name, pod.metadata.uid
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"namespace": namespace, "name": f"{name}.{uid}"},
        "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": SCHEDULER_NAME,
        "reportingInstance": SCHEDULER_NAME,
        "action": "Binding",
        "reason": "Scheduled",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
        "note": f"Successfully assigned {namespace}/{name} to {node}",
        "type": "Normal",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live.null_binder")
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--events", action="store_true", help="also write an event for each pod")
    options = parser.parse_args()
    uvloop.run(run(load_config(options.kubeconfig), options.events))
