# SPDX-License-Identifier: Apache-2.0
"""What `defrag` is asked, and its answers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from dovetail.views.asked_types import MOST_ASKED
from dovetail.views.forecast_types import ForecastPlace
from dovetail.views.shape_types import ShapeView


class PodMove(Struct, frozen=True):
    """A move. `gpus` are the indices of the GPUs that are free for the pod on `target` by then; empty if they are not
    known. `count` is more than 1 of pods that are shown as one."""

    pod: str
    source: str
    target: str
    gpus: tuple[int, ...]
    count: int = 1


class MoveStepView(Struct, frozen=True):
    """Pods of `job` that move at the same time. `lost_gpu_minutes` is the work that must be repeated."""

    job: str
    queue: str
    moves: tuple[PodMove, ...]
    lost_gpu_minutes: float


class Defrag(Struct, frozen=True):
    """Room for `job` ("" for a `shape`). `room`: there is room after the `steps`, which are empty if it fits without
    moves; `places` are the nodes of its pods then. Without room, `why` is the reason, and `proven` is true if no moves
    can help. `notes` are what an operator must know or do besides."""

    job: str
    shape: ShapeView | None
    room: bool
    steps: tuple[MoveStepView, ...]
    lost_gpu_minutes: float
    places: tuple[ForecastPlace, ...]
    why: str
    proven: bool
    notes: tuple[str, ...]


class DefragQuestion(Struct, frozen=True, rename="camel"):
    """What room is asked for: for the `job` NAMESPACE/NAME, or for a `shape` such as 4x8xH100 with CPU and memory."""

    job: str = ""
    shape: str = ""
    cpu_milli: Annotated[int, Meta(ge=0, le=MOST_ASKED)] = 0
    memory_bytes: Annotated[int, Meta(ge=0, le=MOST_ASKED)] = 0
