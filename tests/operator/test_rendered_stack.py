# SPDX-License-Identifier: Apache-2.0
"""The operator with the objects of `deploy/`."""

from __future__ import annotations

import asyncio
from copy import deepcopy

import pytest

from dovetail.kube.objects.stack import GPUStack
from dovetail.operator.found import Found
from dovetail.operator.metrics import WRITES
from dovetail.operator.rendering.stack_objects import ORDER, Desired, desired
from tests.operator.stack_world import World

ABSENT = "the cluster has no kinds ServiceMonitor and PodMonitor (monitoring.coreos.com/v1)"


@pytest.fixture
def installed(world: World) -> World:
    """With the namespaces, as the installation of the operator makes them."""
    world.playground.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dovetail-agent"}})
    return world


def writes() -> dict[tuple[str, ...], float]:
    """By kind, verb and result the writes of objects that are rendered; status and revisions follow the pods."""
    samples = [one for metric in WRITES.collect() for one in metric.samples if one.name.endswith("_total")]
    return {tuple(one.labels.values()): one.value for one in samples if one.labels["kind"] in ORDER}


@pytest.mark.slow
async def test_an_empty_spec_is_installed_and_written_once(installed: World) -> None:
    installed.stack()
    async with installed.operator(desired):
        await installed.applied()
        await installed.quiet(0.5)
    before = writes()
    assert installed.get("daemonsets.apps", "dovetail-agent", "dovetail-agent") is not None
    async with installed.operator(desired):
        await asyncio.sleep(0.5)
    assert sum(before.values()) > 25
    assert writes() == before


@pytest.mark.slow
async def test_what_the_cluster_cannot_have_is_in_the_message_and_the_rest_is_installed(installed: World) -> None:
    installed.stack(metrics={"scrape": "ServiceMonitor"})
    async with installed.operator(desired):
        await installed.applied()
    message = f"spec.metrics.scrape: 'ServiceMonitor': {ABSENT}"
    assert installed.condition("Accepted") == ("True", "Valid", message)


@pytest.mark.slow
async def test_an_upgrade_renames_the_boards_and_removes_those_of_the_old_names(installed: World) -> None:
    """Boards were ConfigMaps of their uids before, `dovetail-node` for example."""

    def old(stack: GPUStack, found: Found, image: str) -> Desired:
        before = deepcopy(desired(stack, found, image).objects)
        for one in before:
            name = one["metadata"]["name"]
            if one["kind"] == "ConfigMap" and name.startswith("dovetail-board-"):
                one["metadata"]["name"] = name.replace("dovetail-board-", "dovetail-")
        return Desired(before)

    def boards() -> set[str]:
        labelled = [one["metadata"] for one in installed.playground.store.list("configmaps")]
        return {meta["name"] for meta in labelled if "grafana_dashboard" in meta.get("labels", {})}

    installed.stack()
    async with installed.operator(old):
        await installed.until(lambda: "dovetail-node" in boards())
        await installed.applied()
    before = boards()
    async with installed.operator(desired):
        await installed.until(lambda: "dovetail-node" not in boards())
        await installed.quiet()
    assert boards() == {name.replace("dovetail-", "dovetail-board-") for name in before} and len(before) > 4
