# SPDX-License-Identifier: Apache-2.0
"""The statements of a Python module, for tests that read all sources: imports, classes and functions are statements,
and most of a tree are expressions."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(text: str) -> Iterator[ast.stmt]:
    """All of them, also those inside others. Raises SyntaxError."""
    ahead: list[ast.stmt] = list(ast.parse(text).body)
    while ahead:
        statement = ahead.pop()
        yield statement
        for field in ("body", "orelse", "finalbody"):
            ahead += getattr(statement, field, ())
        for field in ("handlers", "cases"):
            for part in getattr(statement, field, ()):
                ahead += part.body
