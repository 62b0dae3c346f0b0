# SPDX-License-Identifier: Apache-2.0
"""What the allocator needs of an expression language: selectors that say of a device whether it is meant.

Rules: a selector is compiled once and asked for any device; its answer depends on nothing but the device, its driver
and the expression. An expression that cannot be compiled and one that errs on a device both raise SelectorError, with a
text that a person can act on. `core/dra/cel` is the implementation for CEL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from dovetail.core.dra.types import Device


class SelectorError(Exception):
    """The text says what is wrong: of an expression with the place, of a device in upstream's words."""


Kind = Literal["attributes", "capacity", "driver", "shareable"]


class SelectorReads(NamedTuple):
    """Something of a device that an expression looks at: `attributes` or `capacity` of a domain, or the device's
    `driver` or whether it is `shareable` (then domain and name are ""). `name` is "" where the expression looks at the
    whole map of the domain; then its value depends on all names of it."""

    kind: Kind
    domain: str
    name: str


class DeviceSelector(Protocol):
    """A compiled expression."""

    @property
    def reads(self) -> frozenset[SelectorReads] | None:
        """Everything that the answer can depend on; None where that cannot be told, so that it may be anything."""

    def matches(self, device: Device, driver: str) -> bool:
        """Whether the device, which is one of the driver's, is meant. Raises SelectorError where the expression errs on
        it, or its answer is no truth value, or it costs more than a selector may."""


Compile = Callable[[str], DeviceSelector]
"""Makes a selector of an expression; raises SelectorError where it cannot be one."""
