# SPDX-License-Identifier: Apache-2.0
"""A scheduler that does not think: `python -m benchmarks.live.null_binder --kubeconfig FILE [--events]`.

It lists the nodes and the pending pods that name it, binds the pods to the nodes in turn, and then waits to be killed.
So it shows what the API server and a Python client can do at most. With --events it also writes the Scheduled event of
each pod after its bind, as kube-scheduler does. It looks at nothing but names: whether the pods fit is the caller's
affair.
"""

import argparse
import asyncio
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime

import uvloop

from benchmarks.live.scenario import SeenPod
from dovetail.kube.client import Client
from dovetail.kube.config import ClusterConfig, load_config
from dovetail.kube.decoding import Identified
from dovetail.kube.listing import list_all
from dovetail.kube.resources import EVENTS, NODES, PODS

SCHEDULER_NAME = "null-binder"
CONNECTIONS = 96


async def bind_all(config: ClusterConfig, events: bool) -> None:
    """Bind every pending pod. Raises ApiError."""
    pending = {"fieldSelector": f"spec.schedulerName={SCHEDULER_NAME},spec.nodeName="}
    async with Client(config, concurrency=CONNECTIONS) as client:
        nodes = [name for _, name in (await list_all(client, NODES, Identified)).objects]
        pods = (await list_all(client, PODS, SeenPod, params=pending)).objects.values()
        shared = zip(pods, itertools.cycle(nodes), strict=False)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(work(client, shared, events))


async def work(client: Client, shared: Iterator[tuple[SeenPod, str]], events: bool) -> None:
    for pod, node in shared:
        namespace, name, uid = pod.metadata.namespace, pod.metadata.name, pod.metadata.uid
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
    """The event that says where a pod went."""
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


async def run(config: ClusterConfig, events: bool) -> None:
    await bind_all(config, events)
    # Its CPU time and memory are read from /proc, which forgets the latter when a process ends.
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live.null_binder")
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--events", action="store_true", help="also write an event for each pod")
    options = parser.parse_args()
    uvloop.run(run(load_config(options.kubeconfig), options.events))
