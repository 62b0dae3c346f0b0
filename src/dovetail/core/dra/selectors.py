# SPDX-License-Identifier: Apache-2.0
"""The interface to an expression language: selectors that decide which devices match.

Rules: a selector is compiled once and evaluated on any device; its result depends on nothing but the device, its driver
and the expression. An expression that does not compile, and one that fails on a device, both raise
`kubecel.SelectorError` with a message for the user. `kubecel` is the implementation for CEL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dovetail.core.dra.types import Device
from kubecel import SelectorReads


class CompiledSelector(Protocol):
    """A compiled expression."""

    @property
    def reads(self) -> frozenset[SelectorReads] | None:
        """All that the result can depend on; None where it may be anything."""

    def matches(self, device: Device, driver: str) -> bool:
        """Whether the device of this driver matches. Raises SelectorError where the expression fails on it, or its
        result is not a bool, or it exceeds the cost limit of selectors."""


Compile = Callable[[str], CompiledSelector]
"""Compiles an expression to a selector. Raises SelectorError where it is not valid."""
