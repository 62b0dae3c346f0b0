# SPDX-License-Identifier: Apache-2.0
"""The GPUs of each pod of a new job, as a user writes them, and the models that are meant.

Rules
- `8` and `8xH100` are whole GPUs, `2xmig-3g.20gb` are MIG instances, `0.5` and `0.5xA10` are a part of one GPU.
- A model is part of the label nvidia.com/gpu.product, in upper or lower case: all labels of the nodes that offer the
  resource and contain it are meant. Where the nodes are not known, those of the known products are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.devices.products import PRODUCTS
from dovetail.core.model import GPU, SHARED_GPU, WHOLE_GPU_MILLI
from dovetail.core.queues.types import MODEL_LABEL
from dovetail.views.names import nearest
from dovetail.views.shape_types import ShapeError, ShapeView, parse

_MIG = re.compile(r"(?:(?P<count>[1-9]\d?)x)?mig-(?P<profile>[1-9]\d?[cg]\.[0-9a-z.+-]{1,32})")
_PART = re.compile(r"(?P<part>0?\.\d{1,3})(?:x(?P<model>\D.*))?")

_IN_FULL = "NVIDIA-"
"""What the labels of GPU feature discovery begin with."""


class GpuRequest(Struct, frozen=True):
    """What each pod asks for: `count` of a `resource` ("": nothing), or `milli` thousandths of one GPU (0: all of it);
    `model` is part of the GPU label, "" for any."""

    resource: str = ""
    count: int = 0
    milli: int = 0
    model: str = ""

    @property
    def gpus(self) -> int:
        """How many processes a pod has by default: one for each GPU."""
        return max(1, self.count)


def gpu_request(text: str) -> GpuRequest:
    """`8`, `8xH100`, `2xmig-3g.20gb`, `0.5`. Raises ShapeError."""
    if mig := _MIG.fullmatch(text):
        return GpuRequest(f"{RESOURCE_PREFIX}{mig['profile']}", int(mig["count"] or 1))
    if part := _PART.fullmatch(text):
        milli = int(Fraction(part["part"]) * WHOLE_GPU_MILLI)
        if milli:
            return GpuRequest(SHARED_GPU, 1, milli, part["model"] or "")
    if text == "0":
        return GpuRequest()
    shape = _shape(text)
    if shape is None or shape.model.lower().startswith("mig-"):
        raise ShapeError(
            f"{text!r} are no GPUs of a pod: 8 are whole GPUs, 8xH100 those of a model, 1xmig-3g.20gb is a MIG "
            "instance, 0.5 is half of a GPU, 0 none"
        )
    if shape.pods > 1:
        raise ShapeError(f"{text!r} names a number of pods: use --nodes {shape.pods} --gpus {text.partition('x')[2]}")
    return GpuRequest(GPU, shape.gpus, 0, shape.model)


def _shape(text: str) -> ShapeView | None:
    try:
        return parse(text)
    except ShapeError:
        return None


class NodeOffer(Struct, frozen=True):
    """What a node offers: its labels and its allocatable amounts, as text."""

    labels: Mapping[str, str]
    amounts: Mapping[str, str]

    def has(self, resource: str) -> bool:
        return self.amounts.get(resource, "0") != "0"


def offered(request: GpuRequest, nodes: Iterable[NodeOffer] | None) -> GpuRequest:
    """The request by the name under which these nodes share GPUs: a plugin may keep the name of whole ones. `nodes`
    None: they are not known."""
    if request.resource != SHARED_GPU or nodes is None or any(node.has(SHARED_GPU) for node in nodes):
        return request
    return replace(request, resource=GPU)


def products_meant(request: GpuRequest, nodes: Iterable[NodeOffer] | None) -> tuple[str, ...]:
    """The GPU labels that the model of the request means, sorted; none where it names no model. `nodes` None: they are
    not known. Raises ShapeError if no label is meant."""
    if not request.model:
        return ()
    if nodes is None:
        labels = {name for product in PRODUCTS for name in product.names}
        there = f"the nodes cannot be read, and no known product is called so: name their label {MODEL_LABEL} in full"
    else:
        labels = {label for node in nodes if (label := node.labels.get(MODEL_LABEL, "")) and node.has(request.resource)}
        there = f"there are {', '.join(sorted(labels))}" if labels else f"no node has the label {MODEL_LABEL}"
    found = tuple(sorted(label for label in labels if request.model.lower() in label.lower()))
    if found:
        return found
    if nodes is None and request.model.startswith(_IN_FULL):
        return (request.model,)
    near = nearest(request.model, labels) if nodes is not None else ""
    raise ShapeError(f"no node has GPUs of the model {request.model!r}{near}: {there}")
