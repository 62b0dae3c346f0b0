# SPDX-License-Identifier: Apache-2.0
"""What runs from `start` to `stop`: a plane, a node, or a program beside them."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Started(ABC):
    """Not started yet when it is made. As a context manager it is started inside, and stopped at the end."""

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
