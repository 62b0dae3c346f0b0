# SPDX-License-Identifier: Apache-2.0
"""The error of descriptions of a node that contradict themselves."""

from __future__ import annotations


class Contradiction(Exception):
    """`field` names the place, `message` the fault and the valid values."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field = field
        self.message = message

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"
