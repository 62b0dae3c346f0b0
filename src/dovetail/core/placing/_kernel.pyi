# SPDX-License-Identifier: Apache-2.0
"""The interface of `kernel.c`, `worth.h` and `arrange.h`, which document it."""

from typing import Any

from numpy.typing import NDArray

SOURCE: str
"""The digest of the C source at build time."""

class Worth:
    def __new__(cls, arrays: tuple[NDArray[Any], ...]) -> Worth: ...
    def share_gpu(self, slot: int, share: int) -> int: ...

class Kernel:
    def __new__(
        cls,
        arrays: tuple[NDArray[Any] | None, ...],
        tables: tuple[NDArray[Any] | None, ...],
        tallies: tuple[tuple[NDArray[Any], NDArray[Any]], ...],
        worth: Worth | None,
        unknown: int,
        several: bool,
        ranked: bool,
        gpus: int,
        milli: int,
        memory: int,
    ) -> Kernel: ...
    def redo(self, slots: list[int], start: int, books: bool) -> None: ...
    def redo_all(self, used: int, books: bool) -> None: ...
    def best(self) -> int: ...

def arrange(
    copies: NDArray[Any], score: NDArray[Any], scope: NDArray[Any] | None, count: int, levels: tuple[NDArray[Any], ...]
) -> dict[int, int]: ...
def fill(
    fitting: NDArray[Any], level_of: NDArray[Any], units_of: NDArray[Any], rates: NDArray[Any], found: NDArray[Any]
) -> None: ...
