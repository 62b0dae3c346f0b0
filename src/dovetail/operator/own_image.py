# SPDX-License-Identifier: Apache-2.0
"""The image that the operator itself runs, as its own pod has it: scheduler and agents run the same one."""

from __future__ import annotations

from dovetail.kube.api.client import Client
from dovetail.kube.api.errors import ApiError
from dovetail.kube.api.resources import PODS
from dovetail.kube.objects.base import Wire
from dovetail.operator import metrics


class _Container(Wire, frozen=True):
    image: str = ""


class _Spec(Wire, frozen=True):
    containers: tuple[_Container, ...] = ()


class _Pod(Wire, frozen=True):
    spec: _Spec = _Spec()


async def own_image(client: Client, pod: str, otherwise: str) -> str:
    """The image of the first container of `pod` (NAMESPACE/NAME); `otherwise` where there is no such pod, or it cannot
    be read."""
    namespace, _, name = pod.partition("/")
    if not name:
        return otherwise
    try:
        found = await client.request("GET", PODS.path(namespace, name), decode=_Pod)
    except ApiError as error:
        metrics.log.warning("the image of the operator's own pod: %s; taking %s", error, otherwise)
        return otherwise
    return next((one.image for one in found.spec.containers if one.image), otherwise)
