# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a trace, as one line that a person can act on."""

from __future__ import annotations


class TraceError(Exception):
    """`file`, `line` (from 1, 0: the file as a whole) and `field` say where, `message` what and what to do."""

    def __init__(self, message: str, file: str = "", line: int = 0, field: str = "") -> None:
        super().__init__(message, file, line, field)
        self.message = message
        self.file = file
        self.line = line
        self.field = field

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.field, self.message) if part)
