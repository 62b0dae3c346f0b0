# SPDX-License-Identifier: Apache-2.0
"""The operator with the objects of `deploy/`."""

from __future__ import annotations

import asyncio

import pytest

from dovetail.operator.metrics import WRITES
from dovetail.operator.rendering.stack_objects import ORDER, desired
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


async def test_what_the_cluster_cannot_have_is_in_the_message_and_the_rest_is_installed(installed: World) -> None:
    installed.stack(metrics={"scrape": "ServiceMonitor"})
    async with installed.operator(desired):
        await installed.applied()
    message = f"spec.metrics.scrape: 'ServiceMonitor': {ABSENT}"
    assert installed.condition("Accepted") == ("True", "Valid", message)
