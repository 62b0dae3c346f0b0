# SPDX-License-Identifier: Apache-2.0
"""The error of an expression."""


class SelectorError(Exception):
    """An invalid expression (the message has the position) or a failed evaluation (upstream's message)."""
