# SPDX-License-Identifier: Apache-2.0
"""Labels on a real API server: the agent owns all of them or none, and removes all of them."""

import json
from collections.abc import AsyncIterator, Iterator

import pytest

from dovetail.agent.mig.manager import DivisionOutcome
from dovetail.agent.mig.node import STATE, StateLabel
from dovetail.agent.publish.labels import MANAGER, TIMESTAMP, NodeLabels
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_kubeconfig
from tools.controlplane.plane import Plane

pytestmark = pytest.mark.plane

NODE = "labelled"
PRODUCT, COUNT = "nvidia.com/gpu.product", "nvidia.com/gpu.count"
LABELS = {PRODUCT: "NVIDIA-A100-SXM4-40GB", COUNT: "8", "nvidia.com/mig-1g.5gb.count": "7"}


@pytest.fixture
async def client(plane: Plane) -> AsyncIterator[Client]:
    async with Client(load_kubeconfig([plane.kubeconfig])) as client:
        yield client


@pytest.fixture
def labels(plane: Plane, client: Client) -> Iterator[NodeLabels]:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"people": "wrote-this"}}}
    plane.kubectl("create", "--filename=-", input=json.dumps(node))
    yield NodeLabels(client, NODE, clock=lambda: 1724632719.5)
    plane.kubectl("delete", "node", NODE)


def there(plane: Plane) -> dict[str, str]:
    return json.loads(plane.kubectl("get", "node", NODE, "--output=json"))["metadata"]["labels"]


def version(plane: Plane) -> str:
    return plane.kubectl("get", "node", NODE, "--output=jsonpath={.metadata.resourceVersion}")


async def test_they_are_written_kept_and_taken_away(plane: Plane, labels: NodeLabels) -> None:
    assert await labels.write(LABELS) == ""
    assert there(plane) == LABELS | {TIMESTAMP: "1724632719", "people": "wrote-this"}
    before = version(plane)
    assert await labels.write(LABELS) == ""
    assert version(plane) == before, "what has not changed is not written"
    fewer = {PRODUCT: "NVIDIA-A100-SXM4-40GB"}
    assert await labels.write(fewer, timestamp=False) == ""
    assert there(plane) == fewer | {"people": "wrote-this"}
    assert await labels.write({}) == ""
    assert there(plane) == {"people": "wrote-this"}
    managed = plane.kubectl("get", "node", NODE, "--show-managed-fields", "--output=jsonpath={.metadata.managedFields}")
    assert MANAGER not in managed


async def test_none_is_written_while_another_one_writes_such_labels(plane: Plane, labels: NodeLabels) -> None:
    await labels.write(LABELS)
    plane.kubectl("label", "node", NODE, f"{COUNT}=4", "--overwrite", "--field-manager=nfd-master")
    reason = await labels.write(LABELS)
    assert reason == f"nfd-master writes {COUNT}"
    assert there(plane) == {COUNT: "4", "people": "wrote-this"}, "ours are gone, theirs is as they wrote it"
    before = version(plane)
    assert await labels.write(LABELS) == reason
    assert version(plane) == before
    plane.kubectl("label", "node", NODE, f"{COUNT}-", "--field-manager=nfd-master")
    assert await labels.write(LABELS) == ""
    assert there(plane)[COUNT] == "8"


async def test_labels_of_the_gpu_operator_are_not_such_labels(plane: Plane, labels: NodeLabels) -> None:
    others = ("nvidia.com/gpu.present=true", "nvidia.com/gpu.deploy.dcgm=true", "nvidia.com/mig.config=all-1g.5gb")
    plane.kubectl("label", "node", NODE, *others, "--field-manager=gpu-operator")
    assert await labels.write(LABELS) == ""
    assert {"nvidia.com/mig.config", PRODUCT} <= there(plane).keys()


async def test_the_state_of_a_layout_has_the_values_of_mig_manager(
    plane: Plane, labels: NodeLabels, client: Client
) -> None:
    plane.kubectl("label", "node", NODE, f"{STATE}=failed", "--field-manager=nvidia-mig-manager")
    state = StateLabel(client, NODE)
    for outcome, word in (
        (DivisionOutcome("applying", "x"), "pending"),
        (DivisionOutcome("pending", "x"), "pending"),
        (DivisionOutcome("applied"), "success"),
        (DivisionOutcome("refused", "x"), "failed"),
        (DivisionOutcome("failed", "x"), "failed"),
    ):
        await state.write(outcome)
        assert there(plane)[STATE] == word
    await labels.write(LABELS)
    assert there(plane)[STATE] == "failed", "one writer's labels do not take away another's"
    await state.write(None)
    assert STATE not in there(plane)
    assert there(plane)[PRODUCT] == LABELS[PRODUCT]
