# SPDX-License-Identifier: Apache-2.0
"""The error of an expression."""


class SelectorError(Exception):
    """The text says what is wrong: of an expression with the place, of a device in upstream's words."""
