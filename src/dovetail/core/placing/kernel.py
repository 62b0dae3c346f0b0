# SPDX-License-Identifier: Apache-2.0
"""The native kernel of a row of scores (`kernel.c`), where it is built, enabled, and supports the shape.

Rules: the kernel reads and writes the row's own arrays and finds what `score_cache` finds with numpy, bit for bit; so
it is optional. It supports plain amounts, parts of one GPU, the closeness of several GPUs, refusals by kubelets, and
the worth of idle room; it reads the cards that a MIG instance opens from an array. It does not support devices by claim
and several replicas of shared GPUs: numpy handles those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.core.cluster.columns import Ids, Mask
from dovetail.core.cluster.nodes import Amounts, Nodes
from dovetail.core.cluster.shapes import Shape
from dovetail.core.cluster.shares import GpuFractions
from dovetail.core.devices.choose import PERMILLE, choices
from dovetail.core.model import CPU, WHOLE_GPU_MILLI
from dovetail.core.placing import links
from dovetail.core.placing.layout import MOST_GPUS, IdleArrays, KernelArrays, LearnedArrays
from dovetail.core.placing.scores import Scores

if TYPE_CHECKING:
    from dovetail.core.placing._kernel import Kernel, Worth

try:
    from dovetail.core.placing import _kernel
except ImportError:
    BUILT = False
else:
    BUILT = True


class RowArrays(NamedTuple):
    """The arrays of a row (`score_cache.ScoreRow`) that the kernel reads and writes. `tops` are the best scores of the
    blocks of slots, `stale` marks the blocks to be computed again; `copies` is None until they are asked for."""

    score: Scores
    tops: Scores
    stale: Mask
    suitable: Mask
    preference: Scores
    refused: NDArray[np.int64]
    copies: NDArray[np.int64] | None


def over(
    nodes: Nodes,
    shape: Shape,
    parts: GpuFractions | None,
    opened: NDArray[np.int64] | None,
    worth: Worth | None,
    own: RowArrays,
    tallies: tuple[tuple[Ids, NDArray[np.int64]], ...],
) -> Kernel | None:
    """The kernel over these arrays of a row, and over what a scoring has learned; None where it does not support the
    shape. It must be made again when an array is replaced, or when there are more layouts. `tallies` are the copies
    summed by domain, each with the domains of the slots."""
    several = shape.gpus > 1
    replicas = parts is not None and (max(shape.gpus, shape.shared) > 1 and (nodes.divided or not shape.fraction))
    if not BUILT or shape.wants or shape.stand_ins is not None or replicas or shape.request.gpu_asleep_mib:
        return None
    arrays = KernelArrays(
        need=shape.need, floor=shape.floor, free=nodes.free, suitable=own.suitable, preference=own.preference,
        score=own.score, tops=own.tops, stale=own.stale, refused=own.refused, books=nodes.book_numbers,
        free_bits=nodes.gpu_free_bits, layout_ids=nodes.layout_ids, gpu_parts=nodes.gpu_parts,
        gpu_whole=nodes.gpu_whole, parts=None if parts is None else parts.rows, opened=opened, copies=own.copies,
    )  # fmt: skip
    unknown = links.TOO_FAR if shape.needs_links else PERMILLE
    tables = tuple(_table(nodes, layout_id, shape) for layout_id in range(len(nodes.layouts))) if several else ()
    ranked = (parts is not None or opened is not None) and not (worth is not None and shape.fraction)
    request, share = shape.request, shape.fraction and not shape.gpus
    milli, memory = (request.gpu_milli, request.gpu_memory_mib * WHOLE_GPU_MILLI) if share else (0, 0)
    return _kernel.Kernel(arrays, tables, tallies, worth, unknown, several, ranked, shape.gpus, milli, memory)


def worth(nodes: Nodes, learned: LearnedArrays) -> Worth | None:
    """What was learned, over the idle amounts; None where there is no kernel, or a node has too many GPUs. It must be
    made again when there are more slots. Raises ValueError for arrays that do not match."""
    if not BUILT or len(nodes.gpu_parts) > MOST_GPUS:
        return None
    idle = IdleArrays(
        idle_cpu=nodes.free[nodes.resources[CPU]], idle_bits=nodes.gpu_free_bits, idle_parts=nodes.gpu_parts,
        whole_units=nodes.gpu_whole,
    )  # fmt: skip
    return _kernel.Worth((*idle, *learned))


def fill(fitting: Amounts, level_of: Amounts, units_of: Amounts, rates: Amounts) -> Amounts:
    """The same as `expected_use.filled`. Raises ValueError for arrays that do not match."""
    found = np.empty((2, *fitting.shape[1:]), dtype=np.int64)
    _kernel.fill(fitting, level_of, units_of, rates, found)
    return found


def arrange(
    copies: NDArray[np.int64], score: Scores, scope: NDArray[np.int64] | None, count: int, levels: tuple[Ids, ...]
) -> dict[int, int]:
    """The same as `arrangement.arrange`. Raises ValueError for arrays that do not match, IndexError for a scope that
    reaches beyond them."""
    return _kernel.arrange(copies, score, scope, count, levels)


def _table(nodes: Nodes, layout_id: int, shape: Shape) -> NDArray[np.int16] | None:
    """The closeness of the shape's GPUs on nodes of a layout, by the free GPUs; None where the layout is unknown."""
    layout = nodes.layouts[layout_id]
    if layout is None or shape.gpus > layout.gpus:
        return None
    table = choices(layout, shape.request.nvlink_required, shape.request.near_nics).closeness
    closeness: NDArray[np.int16] = table[shape.gpus]
    return closeness
