# SPDX-License-Identifier: Apache-2.0
"""The values that numpy and the kernel (`kernel.c`) share: units, the bits of a score, the sizes of tables, and the
order of rows and arrays.

Rules: each value is written here and nowhere else. Python imports it; `header` writes it for C, where the kernel is
compiled. The kernel runs only beside the text of this module that it was built from (`dovetail.__native__`). The module
imports nothing but the standard library, since setup.py loads it without the package.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Ids = NDArray[np.int32]
    Flags = NDArray[np.bool_]

# Units.
WHOLE_GPU_MILLI = 1000
PERMILLE = 1000

# The node table.
BLOCK = 128
"""The number of slots is a multiple of this: rows keep the best score of each block."""
PODS_ROW, CPU_ROW, MEMORY_ROW, GPU_ROW = range(4)
"""The resources that each node table has."""

# The rows of `shares.GpuFractions`.
TAKEN_ROW, LIMIT_ROW, OPENS_ROW, BASE_ROW, UNIT_ROW, FRACTION_ROWS = range(6)

# Scores.
INFEASIBLE = -(2**62)


class PackedAmount(NamedTuple):
    """How an amount that is left on a node is packed into one integer with others: shifted right by `unit_bits`, at
    most `largest`, shifted left by `place_bits`."""

    unit_bits: int
    largest: int
    place_bits: int


TIGHTEST = (
    PackedAmount(62, 0, 0),
    PackedAmount(4, 2**18 - 1, 18),
    PackedAmount(28, 2**18 - 1, 0),
    PackedAmount(0, 2**7 - 1, 36),
)
"""Pods, CPU, memory, GPUs, as in the node table."""
FIRST_BITS = 43
"""The place of the closeness of several GPUs, or of how the GPU of a share suits."""
EXPECTED_FILL = (
    PackedAmount(3, 2**11 - 1, 16),
    PackedAmount(7, 2**11 - 1, 5),
    PackedAmount(33, 2**5 - 1, 0),
)
"""GPU, CPU, memory."""
FILL_FIRST_BITS = 42
CHANGE_BITS = 27
"""The place of the change of the worth."""
FEWER_BITS = 10
"""Where something weighs more than worth, the last bits of the looseness make room for it."""
MOST_CHANGE = 2**24

# The tables of `worth.Worth`.
STEP_MILLI = 10
LEVELS = WHOLE_GPU_MILLI // STEP_MILLI + 1
UNIT_MILLI = 500
UNITS = 270
"""More cores than these units are not used by pods of one GPU."""
USE, FURTHER_USE, CORES, FURTHER_CORES, CELLS = range(5)
"""The cells of a table: what is used of a GPU and of the cores, and how much more of each with one more unit."""
MOST_CLASSES = 128
"""As many classes of pods are learned; there are no more sizes of shares than classes."""
MOST_BUSY = 16
PART_BITS = 10
MOST_GPUS = 64
"""As many GPUs of one node the kernel knows, where it works out what they are worth."""


class KernelArrays(NamedTuple):
    """The arrays of a row and of the node table that the kernel reads and writes. `parts` is None where the shape takes
    no part of a GPU, `opened` where it takes no MIG instance, `copies` where the number of pods is not kept."""

    need: Ints
    floor: Ints
    free: Ints
    suitable: Flags
    preference: Ints
    score: Ints
    tops: Ints
    stale: Flags
    refused: Ints
    books: Ints
    free_bits: Ints
    layout_ids: Ids
    gpu_parts: Ints
    gpu_whole: Ints
    parts: Ints | None
    opened: Ints | None
    copies: Ints | None


class IdleArrays(NamedTuple):
    """What is idle on each slot, of the node table."""

    idle_cpu: Ints
    idle_bits: Ints
    idle_parts: Ints
    whole_units: Ints


class LearnedArrays(NamedTuple):
    """The kind and the number of GPUs of each slot, then what `worth.Worth` has learned. In the kernel the arrays of
    `IdleArrays` come before these."""

    kinds: Ints
    node_gpus: Ints
    table: Ints
    prices: Ints
    sizes: Ints
    size_of: Ints
    class_cpu: Ints
    class_gpus: Ints
    chances: Ints


ITEM_BYTES = {"suitable": 1, "stale": 1, "layout_ids": 4}
"""The size of an item of those `KernelArrays` that are not of 8 bytes."""


def header() -> str:
    """The C header of all of this."""
    packed = {"TIGHTEST": TIGHTEST, "EXPECTED_FILL": EXPECTED_FILL}
    item_bytes = [ITEM_BYTES.get(array, 8) for array in KernelArrays._fields]
    return "\n".join(
        [
            "#include <stdint.h>",
            *(f"#define {name} ({value})" for name, value in globals().items() if type(value) is int),
            f"typedef struct {{ int64_t {', '.join(PackedAmount._fields)}; }} PackedAmount;",
            *(f"enum {{ {name}_AMOUNTS = {len(of)} }};" for name, of in packed.items()),
            *(
                f"static const PackedAmount {name}[] = {_braced(map(_braced, amounts))};"
                for name, amounts in packed.items()
            ),
            f"enum {_braced((*_names(KernelArrays), 'ARRAYS'))};",
            f"static const int64_t ITEM_BYTES[] = {_braced(item_bytes)};",
            f"enum {_braced((*_names(IdleArrays), *_names(LearnedArrays), 'WORTH_ARRAYS'))};",
            "",
        ]
    )


def _names(arrays: type[KernelArrays | IdleArrays | LearnedArrays]) -> list[str]:
    return [field.upper() for field in arrays._fields]


def _braced(values: Iterable[object]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"
