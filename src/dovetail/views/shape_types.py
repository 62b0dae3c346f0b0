# SPDX-License-Identifier: Apache-2.0
"""The shape of a pod or a gang, from text and as answers have it."""

from __future__ import annotations

import re

from msgspec import Struct

from dovetail.core.devices.layout import MAX_GPUS
from dovetail.views.free_types import Blocked, StrandedGpus

_SHAPE = re.compile(r"(?:(?P<pods>[1-9]\d{0,5})x)?(?P<gpus>[1-9]\d?)(?:x(?P<model>\D.*))?")
ANYWHERE = ""


class ShapeError(ValueError):
    """The text is not a shape, or no node has GPUs of the model; the message has what is possible."""


class ShapeView(Struct, frozen=True):
    """`pods` pods of `gpus` GPUs each; `model` is part of the GPU label, "" for any."""

    gpus: int
    pods: int = 1
    model: str = ""

    @property
    def text(self) -> str:
        """As `parse` reads it."""
        return f"{self.pods}x{self.gpus}" + (f"x{self.model}" if self.model else "")


class ShapeLevel(Struct, frozen=True):
    """The largest gang inside one domain, `name`, of a fabric `level` ("": anywhere): its number of `pods`, and their
    `nodes`. `blocked` is why one more pod does not fit."""

    level: str
    name: str
    pods: int
    nodes: tuple[str, ...]
    blocked: Blocked | None


class Largest(Struct, frozen=True):
    """The largest gangs of a model. `model` is the GPU label, "" for all models together."""

    model: str
    levels: tuple[ShapeLevel, ...]


class ShapeAnswer(Struct, frozen=True):
    """The answer. `starts`: a gang of `shape.pods` pods can start now, anywhere. `stranded` are free GPUs that no pod
    of the shape can use, None of an older scheduler."""

    shape: ShapeView
    starts: bool
    models: tuple[Largest, ...]
    stranded: StrandedGpus | None = None


def parse(text: str) -> ShapeView:
    """`8`, `8xH100`, `4x8xH100` (four pods of eight GPUs), `4x8`. Raises ShapeError."""
    match = _SHAPE.fullmatch(text)
    if match is None or int(match["gpus"]) > MAX_GPUS:
        raise ShapeError(
            f"{text!r} is not a shape: 8 is a pod with 8 GPUs, 8xH100 with 8 GPUs of a model, 4x8 and 4x8xH100 are "
            f"four such pods; a pod has at most {MAX_GPUS} GPUs"
        )
    return ShapeView(int(match["gpus"]), int(match["pods"] or 1), match["model"] or "")
