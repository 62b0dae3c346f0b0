# SPDX-License-Identifier: Apache-2.0
"""The objects of the collector of the history: those of `deploy/functions/history/`, with what the spec asks for. The
claim of its volume is made by the StatefulSet, and stays when that is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.core.model import Problem
from dovetail.kube.objects.stack import HistorySpec, StackSpec
from dovetail.operator.rendering.kustomize import containers, select
from dovetail.operator.rendering.scheduler_objects import resource_problems, scheduler_name
from dovetail.operator.rendering.sources import image_name, set_images, set_resources, tree

Document = dict[str, Any]

NAME = "dovetail-collector"
PRICES = "/etc/dovetail/prices"
_DEFAULTS = HistorySpec()


def history_objects(spec: StackSpec, operator_image: str) -> tuple[list[Document], list[Problem]]:
    """The objects, and what cannot be as the spec asks."""
    history = spec.history
    if not history.enabled:
        return [], []
    objects = tree("functions/history")
    stateful_set = select(objects, "StatefulSet", NAME)
    set_images(stateful_set, spec.image, image_name(spec.image, operator_image))
    (container,), (claim,) = containers(stateful_set), stateful_set["spec"]["volumeClaimTemplates"]
    container["args"] += [*scheduler_name(spec.scheduler), *_options(history), *history.extra_args]
    claim["spec"]["resources"]["requests"]["storage"] = history.storage
    if history.storage_class:
        claim["spec"]["storageClassName"] = history.storage_class
    if history.prices:
        container["volumeMounts"].append({"name": "prices", "mountPath": PRICES, "readOnly": True})
        volumes = stateful_set["spec"]["template"]["spec"].setdefault("volumes", [])
        volumes.append({"name": "prices", "configMap": {"name": history.prices}})
    set_resources(container, history.resources)
    return objects, list(resource_problems(container, "spec.history.resources"))


def _options(history: HistorySpec) -> Iterator[str]:
    """What is not the command's own default."""
    if history.days != _DEFAULTS.days:
        yield f"--days-by-day={history.days}"
        yield f"--days-of-records={history.days}"
    if history.hourly_days != _DEFAULTS.hourly_days:
        yield f"--days-by-hour={history.hourly_days}"
    if history.prices:
        yield f"--prices={PRICES}"
