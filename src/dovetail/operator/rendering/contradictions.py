# SPDX-License-Identifier: Apache-2.0
"""What contradicts itself in the spec of a GPUStack: the rules of deploy/crds/gpustack.yaml, for specs that no API
server with that definition has checked. Fields and texts are the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from dovetail.core.model import Problem
from dovetail.core.quantities import QuantityError, parse
from dovetail.kube.objects import stack as kinds
from dovetail.kube.objects.base import Quantities
from dovetail.kube.objects.stack import (
    AgentPlanesSpec,
    AgentSpec,
    HistorySpec,
    NodePool,
    Resources,
    StackSpec,
)
from dovetail.kube.translate.durations import DURATION_RULE, duration_ms
from dovetail.kube.translate.problems import one_of
from dovetail.kube.translate.selectors import LABEL_OPERATORS

_DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")
_ALLOCATIONS = (kinds.DEVICE_PLUGIN, kinds.DRA, kinds.NO_ALLOCATION)
_SHARING, _MIG = ("none", "time-slicing", "mps"), ("none", "single", "mixed")
_DRIVERS = (kinds.DRIVER_PREINSTALLED, kinds.DRIVER_CONTAINER)
_SCRAPES = (kinds.SCRAPE_AUTO, kinds.SERVICE_MONITOR, kinds.ANNOTATIONS, kinds.NO_SCRAPE)
_DRAINS = (kinds.WAIT_FOR_JOBS, kinds.WAIT_FOR_CHECKPOINT, kinds.EVICT)
_MOST_MPS_REPLICAS = 48
_SCHEDULERS = re.compile(
    r"--(scheduler-name|fabric|consolidate|quarantine-budget|divide-mig|views|kubeconfig|context|lease-[a-z]+|"
    r"(no-)?leader-elect|listen)(=.*)?"
)
_AGENTS = re.compile(
    r"--(no-)?(device-plugin|claims|partitionable|labels|topology-objects|mig|config|mig-observer|kubeconfig|context|"
    r"node-name|listen|[a-z]+-root(-on-host)?|[a-z]+-folder)(=.*)?"
)
_AGENT_PLANES = re.compile(r"--(state|plane|address|url|tls-[a-z]+|scheduler-name|kubeconfig|context|listen)(=.*)?")
_COLLECTORS = re.compile(
    r"--(store|answers|prices|publish-[a-z]+|days-[a-z-]+|agent-namespace|scheduler-name|kubeconfig|context|listen)(=.*)?"
)
_LEAST_IDLE_MS, _MOST_ACTS = 600_000, 60
_OWN_FIELD = "must not set what the operator sets, or what has a field of its own"


def contradictions(spec: StackSpec) -> list[Problem]:
    """Each contradiction in a spec, with its field."""
    return [
        *_between_parts(spec), *_scheduler(spec), *_agent(spec.agent), *_agent_planes(spec.agent_planes),
        *_history(spec.history), *_idle(spec), *_dashboard(spec), *_nodes(spec), *_rest(spec),
    ]  # fmt: skip


def _between_parts(spec: StackSpec) -> Iterator[Problem]:
    pools = spec.agent.pools
    if spec.scheduler.enabled and spec.agent.enabled and not spec.scheduler.divide_mig:
        rule = "must be true where a pool with the device plugin has mig.repartition, or no GPU is ever repartitioned"
        if any(pool.mig.repartition and pool.allocation == kinds.DEVICE_PLUGIN for pool in pools):
            yield Problem("spec.scheduler.divideMig", "false", rule)
    if spec.scheduler.divide_mig and spec.agent.enabled and not any(pool.mig.repartition for pool in pools):
        rule = "must be false where no pool has mig.repartition, as no agent would do what the scheduler asks for"
        yield Problem("spec.scheduler.divideMig", "true", rule)
    if not spec.runtime.cdi and any(pool.allocation == kinds.DRA for pool in pools):
        yield Problem("spec.runtime.cdi", "false",
                      "must be true where a pool allocates by DRA, which passes devices by CDI alone")  # fmt: skip
    if spec.validation.enabled and not spec.agent.enabled:
        rule = "must be false where agent.enabled is false, as the agent reports the devices that are validated"
        yield Problem("spec.validation.enabled", "true", rule)
    if spec.startup_taint and not spec.agent.enabled:
        yield Problem("spec.startupTaint", "true",
                      "must be false where agent.enabled is false, as no node would ever lose the taint")  # fmt: skip
    if spec.take_over and not spec.agent.enabled:
        rule = "must be empty where agent.enabled is false, as nothing would replace the components"
        yield Problem("spec.takeOver", ", ".join(spec.take_over), rule)


def _scheduler(spec: StackSpec) -> Iterator[Problem]:
    scheduler = spec.scheduler
    yield from _arguments(scheduler.extra_args, _SCHEDULERS, "spec.scheduler.extraArgs")
    yield from _resources(scheduler.resources, "spec.scheduler.resources")


def _agent(agent: AgentSpec) -> Iterator[Problem]:
    yield from _resources(agent.resources, "spec.agent.resources")
    names = Counter(pool.name for pool in agent.pools)
    for name, count in names.items():
        if count > 1:
            yield Problem("spec.agent.pools", name, "must not have two pools of one name")
    if sum(pool.node_selector is None for pool in agent.pools) > 1:
        rule = "must have at most one pool without nodeSelector, which has the nodes that no other pool selects"
        yield Problem("spec.agent.pools", ", ".join(names), rule)
    selectors = [pool.node_selector for pool in agent.pools if pool.node_selector is not None]
    if any(one in selectors[:i] for i, one in enumerate(selectors)):
        yield Problem("spec.agent.pools", ", ".join(names), "must not select the same nodes twice")
    for i, pool in enumerate(agent.pools):
        yield from _pool(pool, f"spec.agent.pools[{i}]")


def _pool(pool: NodePool, path: str) -> Iterator[Problem]:
    yield from _one_of(_ALLOCATIONS, pool.allocation, f"{path}.allocation")
    yield from _one_of(_SHARING, pool.sharing.strategy, f"{path}.sharing.strategy")
    yield from _one_of(_MIG, pool.mig.strategy, f"{path}.mig.strategy")
    plugin, mig, sharing = pool.allocation == kinds.DEVICE_PLUGIN, pool.mig, pool.sharing
    if not plugin and sharing.strategy != "none":
        yield Problem(f"{path}.sharing.strategy", sharing.strategy,
                      "must be none unless allocation is DevicePlugin, which alone shares GPUs")  # fmt: skip
    if pool.allocation == kinds.DRA and mig.strategy != "none":
        yield Problem(f"{path}.mig.strategy", mig.strategy,
                      "must be none where allocation is DRA, whose claims name instances themselves")  # fmt: skip
    if sharing.strategy == "mps" and mig.strategy != "none":
        yield Problem(f"{path}.mig.strategy", mig.strategy,
                      "must be none where sharing.strategy is mps, which cannot share GPUs in MIG mode")  # fmt: skip
    offered = not plugin or mig.strategy != "none"
    if not offered and mig.layout not in ("", "all-disabled"):
        yield Problem(f"{path}.mig.layout", mig.layout,
                      "must not divide GPUs where mig.strategy is none, as no instance would be offered")  # fmt: skip
    if not offered and mig.repartition:
        yield Problem(f"{path}.mig.repartition", "true",
                      "must be false where mig.strategy is none, as no instance would be offered")  # fmt: skip
    if mig.repartition and mig.layout:
        yield Problem(f"{path}.mig.repartition", "true",
                      "must be false where mig.layout names a layout, which the agents keep")  # fmt: skip
    if mig.repartition and pool.allocation == kinds.NO_ALLOCATION:
        yield Problem(f"{path}.mig.repartition", "true",
                      "must be false where allocation is None, as another component offers the instances")  # fmt: skip
    yield from _arguments(pool.extra_args, _AGENTS, f"{path}.extraArgs")
    yield from _selector(pool, f"{path}.nodeSelector")
    yield from _sharing(pool, f"{path}.sharing")


def _agent_planes(planes: AgentPlanesSpec) -> Iterator[Problem]:
    yield from _arguments(planes.extra_args, _AGENT_PLANES, "spec.agentPlanes.extraArgs")
    yield from _resources(planes.resources, "spec.agentPlanes.resources")


def _history(history: HistorySpec) -> Iterator[Problem]:
    if history.hourly_days > history.days:
        yield Problem("spec.history.hourlyDays", str(history.hourly_days), "must not be above days")
    if not _duration_ms(history.publish.every):
        yield Problem("spec.history.publish.every", history.publish.every, DURATION_RULE)
    yield from _arguments(history.extra_args, _COLLECTORS, "spec.history.extraArgs")
    yield from _resources(history.resources, "spec.history.resources")


def _idle(spec: StackSpec) -> Iterator[Problem]:
    idle = spec.idle
    if idle.enabled and not spec.agent.enabled:
        rule = "must be false where agent.enabled is false, as the agents report which pods are idle"
        yield Problem("spec.idle.enabled", "true", rule)
    texts = {"notifyAfter": idle.notify_after, "actAfter": idle.act_after, "grace": idle.grace}
    for name, text in texts.items():
        if not _duration_ms(text):
            yield Problem(f"spec.idle.{name}", text, DURATION_RULE)
    notify_ms, act_ms = _duration_ms(idle.notify_after), _duration_ms(idle.act_after)
    if 0 < notify_ms < _LEAST_IDLE_MS:
        yield Problem("spec.idle.notifyAfter", idle.notify_after, "must be at least 10m, after which agents report it")
    if 0 < act_ms < notify_ms:
        yield Problem("spec.idle.actAfter", idle.act_after, "must not be below notifyAfter")
    if not 1 <= idle.acts_per_hour <= _MOST_ACTS:
        yield Problem("spec.idle.actsPerHour", str(idle.acts_per_hour), f"must be from 1 to {_MOST_ACTS}")
    yield from _resources(idle.resources, "spec.idle.resources")


def _dashboard(spec: StackSpec) -> Iterator[Problem]:
    if spec.dashboard.enabled and not (spec.scheduler.enabled and spec.scheduler.views):
        rule = "must be false where scheduler.enabled or scheduler.views is false, as the scheduler answers the pages"
        yield Problem("spec.dashboard.enabled", "true", rule)
    yield from _resources(spec.dashboard.resources, "spec.dashboard.resources")


def _duration_ms(text: str) -> int:
    """0 where it is none."""
    try:
        return duration_ms(text)
    except ValueError:
        return 0


def _selector(pool: NodePool, path: str) -> Iterator[Problem]:
    selector = pool.node_selector
    if selector is None:
        return
    if not selector.match_labels and not selector.match_expressions:
        yield Problem(path, "", "must have a requirement; leave it out to select all nodes that no other pool selects")
    for i, one in enumerate(selector.match_expressions):
        at = f"{path}.matchExpressions[{i}]"
        if one.operator not in LABEL_OPERATORS:
            yield from _one_of(LABEL_OPERATORS, one.operator, f"{at}.operator")
        elif (one.operator in ("In", "NotIn")) != bool(one.values):
            yield Problem(
                f"{at}.values", ", ".join(one.values), "must have values with In and NotIn, and none otherwise"
            )


def _sharing(pool: NodePool, path: str) -> Iterator[Problem]:
    sharing = pool.sharing
    shown = ", ".join(one.name for one in sharing.resources)
    if (sharing.strategy == "none") == bool(sharing.resources):
        yield Problem(f"{path}.resources", shown, "must name what is shared, and nothing where strategy is none")
    if sharing.strategy == "none" and sharing.fail_requests_greater_than_one is not None:
        value = str(sharing.fail_requests_greater_than_one).lower()
        yield Problem(f"{path}.failRequestsGreaterThanOne", value, "must be left out where strategy is none")
    if sharing.strategy == "mps" and any(
        one.name != "nvidia.com/gpu" or one.replicas > _MOST_MPS_REPLICAS for one in sharing.resources
    ):
        yield Problem(f"{path}.resources", shown,
                      "must be nvidia.com/gpu with at most 48 replicas where strategy is mps")  # fmt: skip


def _nodes(spec: StackSpec) -> Iterator[Problem]:
    driver, runtime = spec.driver, spec.runtime
    yield from _one_of(_DRIVERS, driver.mode, "spec.driver.mode")
    if (driver.mode == kinds.DRIVER_CONTAINER) != bool(driver.image):
        yield Problem("spec.driver.image", driver.image,
                      "must name a driver container where mode is Container, and nothing otherwise")  # fmt: skip
    for path, image in (("spec.driver.image", driver.image), ("spec.runtime.configure", runtime.configure)):
        if image and not _DIGEST.fullmatch(image):
            yield Problem(path, image, "must name the image by digest: repository@sha256:...")
    if runtime.create_class and not runtime.class_name:
        yield Problem("spec.runtime.createClass", "true", "must be false where className is empty")


def _rest(spec: StackSpec) -> Iterator[Problem]:
    yield from _one_of(_SCRAPES, spec.metrics.scrape, "spec.metrics.scrape")
    yield from _one_of(_DRAINS, spec.upgrade.drain, "spec.upgrade.drain")
    upgrade = spec.upgrade
    if upgrade.max_nodes.isdecimal() and upgrade.canary.nodes > int(upgrade.max_nodes):
        yield Problem("spec.upgrade.canary.nodes", str(upgrade.canary.nodes), "must not be above maxNodes")
    for path, budget in (("spec.upgrade.maxNodes", upgrade.max_nodes), ("spec.upgrade.maxGpus", upgrade.max_gpus)):
        if not re.fullmatch(r"100%|[1-9][0-9]?%|[1-9][0-9]{0,5}", budget):
            yield Problem(path, budget, "must be a number from 1, or a part from 1% to 100%")
    if spec.validation.command and not spec.validation.image:
        yield Problem("spec.validation.command", " ".join(spec.validation.command),
                      "must be left out where image is empty, as Dovetail's own image has its command")  # fmt: skip


def _one_of(allowed: Iterable[str], value: str, path: str) -> list[Problem]:
    found: list[Problem] = []
    one_of(dict.fromkeys(allowed, True), value, path, found)
    return found


def _arguments(arguments: Iterable[str], own: re.Pattern[str], path: str) -> Iterator[Problem]:
    for argument in arguments:
        if own.fullmatch(argument):
            yield Problem(path, argument, _OWN_FIELD)


def _resources(resources: Resources, path: str) -> Iterator[Problem]:
    for name in over_limits(resources.requests, resources.limits):
        yield Problem(f"{path}.requests", str(resources.requests[name]), "must not be above the limits")


def over_limits(requests: Quantities, limits: Quantities) -> list[str]:
    """The resources of which more is requested than the limit, or whose amounts are no quantities."""
    return [name for name, amount in requests.items() if name in limits and not _within(str(amount), str(limits[name]))]


def _within(amount: str, limit: str) -> bool:
    try:
        return parse(amount) <= parse(limit)
    except QuantityError:
        return False
