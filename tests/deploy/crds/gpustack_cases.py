# SPDX-License-Identifier: Apache-2.0
"""Specs of a GPUStack that are refused: by the API server, and those that contradict themselves by the operator too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Document = dict[str, Any]
Case = tuple[Callable[[Document], object], str, str]
"""What changes an empty spec, the field that is named, and a part of the message."""
DIGEST = "sha256:" + "0123456789abcdef" * 4
POOL = {"name": "p", "nodeSelector": {"matchLabels": {"a": "b"}}}


def pool(**fields: Any) -> Callable[[Document], object]:
    return lambda spec: spec.update(agent={"pools": [POOL | fields]})


CONTRADICTIONS: list[Case] = [
    # Contradictions, in the order of the reference.
    (pool(mig={"strategy": "mixed", "repartition": True}), "spec.scheduler.divideMig", "must be true"),
    (lambda s: s.update(scheduler={"divideMig": True}), "spec.scheduler.divideMig", "must be false"),
    (lambda s: pool(allocation="DRA")(s) or s.update(runtime={"cdi": False}), "spec.runtime.cdi", "must be true"),
    (lambda s: s.update(agent={"enabled": False}, startupTaint=False), "spec.validation.enabled", "must be false"),
    (lambda s: s.update(agent={"enabled": False}, validation={"enabled": False}), "spec.startupTaint", "must be"),
    (lambda s: s.update(agent={"enabled": False}, takeOver=["device-plugin"], startupTaint=False), "spec.takeOver",
     "must be empty"),
    (lambda s: s.update(scheduler={"extraArgs": ["--fabric=a"]}), "spec.scheduler.extraArgs", "must not set"),
    (lambda s: s.update(scheduler={"extraArgs": ["--views=:1"]}), "spec.scheduler.extraArgs", "must not set"),
    (lambda s: s.update(scheduler={"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": 1}}}),
     "spec.scheduler.resources.requests", "above the limits"),
    (lambda s: s.update(agent={"pools": [{"name": "a"}, {"name": "b"}]}), "spec.agent.pools", "at most one pool"),
    (lambda s: s.update(agent={"pools": [POOL, POOL | {"name": "q"}]}), "spec.agent.pools", "same nodes twice"),
    (pool(allocation="DRA", sharing={"strategy": "mps", "resources": [{}]}),
     "spec.agent.pools[0].sharing.strategy", "must be none"),
    (pool(allocation="DRA", mig={"strategy": "mixed"}), "spec.agent.pools[0].mig.strategy", "DRA"),
    (pool(mig={"strategy": "single"}, sharing={"strategy": "mps", "resources": [{}]}),
     "spec.agent.pools[0].mig.strategy", "mps"),
    (pool(mig={"layout": "all-1g.10gb"}), "spec.agent.pools[0].mig.layout", "must not divide"),
    (pool(mig={"repartition": True}), "spec.agent.pools[0].mig.repartition", "no instance"),
    (pool(mig={"strategy": "mixed", "repartition": True, "layout": "all-1g.10gb"}),
     "spec.agent.pools[0].mig.repartition", "names a layout"),
    (pool(allocation="None", mig={"strategy": "mixed", "repartition": True}),
     "spec.agent.pools[0].mig.repartition", "another component"),
    (pool(extraArgs=["--no-labels"]), "spec.agent.pools[0].extraArgs", "must not set"),
    (pool(nodeSelector={"matchLabels": {}}), "spec.agent.pools[0].nodeSelector", "must have a requirement"),
    (pool(nodeSelector={"matchExpressions": [{"key": "a", "operator": "In"}]}),
     "spec.agent.pools[0].nodeSelector.matchExpressions[0].values", "must have values"),
    (pool(sharing={"strategy": "mps"}), "spec.agent.pools[0].sharing.resources", "must name what is shared"),
    (pool(sharing={"resources": [{}]}), "spec.agent.pools[0].sharing.resources", "must name what is shared"),
    (pool(sharing={"failRequestsGreaterThanOne": True}),
     "spec.agent.pools[0].sharing.failRequestsGreaterThanOne", "must be left out"),
    (pool(sharing={"strategy": "mps", "resources": [{"replicas": 49}]}),
     "spec.agent.pools[0].sharing.resources", "at most 48"),
    (lambda s: s.update(agent={"resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "512Mi"}}}),
     "spec.agent.resources.requests", "above the limits"),
    (lambda s: s.update(agentPlanes={"extraArgs": ["--state=/tmp"]}), "spec.agentPlanes.extraArgs", "must not set"),
    (lambda s: s.update(agentPlanes={"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": 1}}}),
     "spec.agentPlanes.resources.requests", "above the limits"),
    (lambda s: s.update(history={"days": 30}), "spec.history.hourlyDays", "above days"),
    (lambda s: s.update(history={"extraArgs": ["--store=/tmp/x"]}), "spec.history.extraArgs", "must not set"),
    (lambda s: s.update(history={"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": 1}}}),
     "spec.history.resources.requests", "above the limits"),
    (lambda s: s.update(idle={"notifyAfter": "9m"}), "spec.idle.notifyAfter", "at least 10m"),
    (lambda s: s.update(idle={"actAfter": "59m"}), "spec.idle.actAfter", "below notifyAfter"),
    (lambda s: s.update(idle={"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": 1}}}),
     "spec.idle.resources.requests", "above the limits"),
    (lambda s: s.update(idle={"enabled": True}, agent={"enabled": False}, validation={"enabled": False},
                        startupTaint=False), "spec.idle.enabled", "agents report"),
    (lambda s: s.update(dashboard={"enabled": True}, scheduler={"views": False}), "spec.dashboard.enabled",
     "the scheduler answers"),
    (lambda s: s.update(dashboard={"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": 1}}}),
     "spec.dashboard.resources.requests", "above the limits"),
    (lambda s: s.update(driver={"mode": "Container"}), "spec.driver.image", "must name a driver container"),
    (lambda s: s.update(driver={"image": f"x@{DIGEST}"}), "spec.driver.image", "nothing otherwise"),
    (lambda s: s.update(runtime={"className": ""}), "spec.runtime.createClass", "must be false"),
    (lambda s: s.update(upgrade={"maxNodes": "2", "canary": {"nodes": 3}}), "spec.upgrade.canary.nodes", "above"),
    (lambda s: s.update(validation={"command": ["x"]}), "spec.validation.command", "must be left out"),
]  # fmt: skip
VALUES: list[Case] = [
    *((lambda s, text=text: s.update(idle={"grace": text}), "spec.idle.grace", "")
      for text in ("", "0h", "1d", "-1h", "1.5h", "99999h", "1h 30m", "h")),
    (lambda s: s.update(dashboard={"replicas": 10}), "spec.dashboard.replicas", ""),
    (lambda s: s.update(idle={"actsPerHour": 61}), "spec.idle.actsPerHour", ""),
    (lambda s: s.update(idle={"exemptNamespaces": ["A b"]}), "spec.idle.exemptNamespaces[0]", ""),
    # Values that do not fit.
    (lambda s: s.update(image={"digest": "sha256:0"}), "spec.image.digest", ""),
    (lambda s: s.update(driver={"mode": "Container", "image": "x:1"}), "spec.driver.image", ""),
    (lambda s: s.update(runtime={"configure": "x:1"}), "spec.runtime.configure", ""),
    (lambda s: s.update(history={"storage": "20 GiB"}), "spec.history.storage", ""),
    (lambda s: s.update(history={"publish": {"every": "0m"}}), "spec.history.publish.every", ""),
    (lambda s: s.update(history={"publish": {"every": "59s"}}), "spec.history.publish.every", ""),
    (lambda s: s.update(history={"publish": {"tokenSecret": "Our_Token"}}), "spec.history.publish.tokenSecret", ""),
    (lambda s: s.update(scheduler={"replicas": 0}), "spec.scheduler.replicas", ""),
    (lambda s: s.update(scheduler={"extraArgs": ["-v"]}), "spec.scheduler.extraArgs[0]", ""),
    (lambda s: s.update(scheduler={"quarantineBudget": "101%"}), "spec.scheduler.quarantineBudget", ""),
    (lambda s: s.update(upgrade={"maxNodes": "0"}), "spec.upgrade.maxNodes", ""),
    (lambda s: s.update(upgrade={"maxGpus": "0%"}), "spec.upgrade.maxGpus", ""),
    (lambda s: s.update(metrics={"scrape": "Always"}), "spec.metrics.scrape", ""),
    (lambda s: s.update(takeOver=["driver"]), "spec.takeOver[0]", ""),
    (pool(name="UPPER"), "spec.agent.pools[0].name", ""),
    (pool(allocation="plugin"), "spec.agent.pools[0].allocation", ""),
]  # fmt: skip
