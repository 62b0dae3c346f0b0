# SPDX-License-Identifier: Apache-2.0
"""The error of a trace: one line that states the place, the problem and the fix."""

from __future__ import annotations


class TraceError(Exception):
    """`file`, `line` (from 1; 0 is the whole file) and `field` are the place; `message` is the problem and the fix."""

    def __init__(self, message: str, file: str = "", line: int = 0, field: str = "") -> None:
        super().__init__(message, file, line, field)
        self.message = message
        self.file = file
        self.line = line
        self.field = field

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.field, self.message) if part)
