# SPDX-License-Identifier: Apache-2.0
"""What the allocator needs of an expression language: selectors that say of a device whether it is meant.

Rules: a selector is compiled once and asked for any device; its answer depends on nothing but the device, its driver
and the expression. An expression that cannot be compiled and one that errs on a device both raise
`kubecel.SelectorError`, with a text that a person can act on. `kubecel` is the implementation for CEL.
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
        """Everything that the answer can depend on; None where that cannot be told, so that it may be anything."""

    def matches(self, device: Device, driver: str) -> bool:
        """Whether the device, which is one of the driver's, is meant. Raises SelectorError where the expression errs on
        it, or its answer is no truth value, or it costs more than a selector may."""


Compile = Callable[[str], CompiledSelector]
"""Makes a selector of an expression; raises SelectorError where it cannot be one."""
