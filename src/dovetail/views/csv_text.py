# SPDX-License-Identifier: Apache-2.0
"""Texts in cells of CSV that a spreadsheet opens."""

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that a spreadsheet would run. Source: OWASP, CSV Injection."""


def csv_text(text: str) -> str:
    """The text; with a ' before it where a spreadsheet would run it as a formula."""
    return f"'{text}" if text.startswith(FORMULAS) else text
