# SPDX-License-Identifier: Apache-2.0
"""Descriptions of a node that cannot be true."""

from __future__ import annotations


class Contradiction(Exception):
    """`field` says where, `message` what and what would be right."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field = field
        self.message = message

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"
