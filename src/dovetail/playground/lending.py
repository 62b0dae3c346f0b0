# SPDX-License-Identifier: Apache-2.0
"""The objects of a cluster that lends GPUs to software agents, for a playground or a real API server.

for document in (*definitions(folder), gpu_node("n", 8), lending_queue(), *control_plane("team", "agent")):
    playground.put(document)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dovetail.apiserver.objects import Object
from dovetail.kube.yaml_text import Loader

GROUP = "dovetail.dev/v1alpha1"
QUEUE = "agents"


def definitions(folder: Path) -> list[Object]:
    """The CustomResourceDefinitions in the YAML files of a folder, such as deploy/crds. Raises OSError, YAMLError."""
    documents = [one for path in sorted(folder.glob("*.yaml")) for one in yaml.load_all(path.read_text(), Loader)]
    return [one for one in documents if one["kind"] == "CustomResourceDefinition"]


def gpu_node(name: str, gpus: int) -> Object:
    """A Node that is ready, with so many GPUs."""
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def lending_queue() -> Object:
    """The queue in which each control plane is a leaf."""
    return {"apiVersion": GROUP, "kind": "Queue", "metadata": {"name": QUEUE}, "spec": {"planes": True}}


def control_plane(namespace: str, name: str, **spec: Any) -> tuple[Object, Object]:
    """A namespace, and the AgentControlPlane in it, with these fields beside its queue."""
    metadata = {"name": name, "namespace": namespace}
    plane = {"apiVersion": GROUP, "kind": "AgentControlPlane", "metadata": metadata, "spec": {"queue": QUEUE} | spec}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, plane
