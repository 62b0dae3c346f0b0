# SPDX-License-Identifier: Apache-2.0
"""What `kernel.c` offers; its comments say more."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

SOURCE: str
"""The digest of the C source that it was built from."""

def expected_use(
    fitting: NDArray[np.int64], steps: NDArray[np.int64], use: NDArray[np.int64], cores: NDArray[np.int64]
) -> None: ...

class Kernel:
    def __new__(
        cls,
        arrays: tuple[NDArray[Any] | None, ...],
        tables: tuple[NDArray[Any] | None, ...],
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
