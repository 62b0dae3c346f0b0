# SPDX-License-Identifier: Apache-2.0
"""The objects of the collector of the history: those of `deploy/functions/history/`, with what the spec asks for. The
claim of its volume is made by the StatefulSet, and stays when that is deleted.

The token by which a Prometheus reads the history is a Secret that the kubelet mounts: neither the operator nor the
collector has a right to read it.
"""

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
PRICES, PUBLISH = "/etc/dovetail/prices", "/etc/dovetail/publish"
_TOKEN = "token"
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
    for name, path, source in _mounted(history):
        container["volumeMounts"].append({"name": name, "mountPath": path, "readOnly": True})
        stateful_set["spec"]["template"]["spec"].setdefault("volumes", []).append({"name": name, **source})
    set_resources(container, history.resources)
    return objects, list(resource_problems(container, "spec.history.resources"))


def _mounted(history: HistorySpec) -> Iterator[tuple[str, str, Document]]:
    """The volumes with files of the cluster's admin: name, path, and where they are from."""
    if history.prices:
        yield "prices", PRICES, {"configMap": {"name": history.prices}}
    if history.publish.token_secret:
        items = [{"key": _TOKEN, "path": _TOKEN}]
        # The group of the files is that of the process.
        secret = {"secretName": history.publish.token_secret, "items": items, "defaultMode": 0o440}
        yield "publish", PUBLISH, {"secret": secret}


def _options(history: HistorySpec) -> Iterator[str]:
    """What is not the command's own default."""
    if history.days != _DEFAULTS.days:
        yield f"--days-by-day={history.days}"
        yield f"--days-of-records={history.days}"
    if history.hourly_days != _DEFAULTS.hourly_days:
        yield f"--days-by-hour={history.hourly_days}"
    if history.prices:
        yield f"--prices={PRICES}"
    if history.publish.token_secret:
        yield f"--publish-every={history.publish.every}"
        yield f"--publish-token={PUBLISH}/{_TOKEN}"
