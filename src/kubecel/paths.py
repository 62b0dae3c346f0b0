# SPDX-License-Identifier: Apache-2.0
"""Chains of selections and indices: their root and the evaluation of their links.

Rules: a chain is one path. An optional link makes all later links optional, and a missing key is then no error. A link
costs 1, even if it fails, except an optional link whose key is missing. The path as a whole costs 1, except in has(),
after `? :` and as an index.
Source: cel-go v0.29.2, interpreter/{attributes,runtimecost}.go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from kubecel import costs
from kubecel.values import (
    MISSING,
    NO_OVERLOAD,
    NONE,
    Abort,
    Err,
    Map,
    Optional,
    UInt,
    Value,
    number,
    shown,
)

KEYS = frozenset((str, int, UInt, bool, float))
"""The types of valid keys."""


class Frame:
    """One evaluation: the variables by slot, the cost so far, and the work so far that upstream does not charge for."""

    __slots__ = ("cost", "slots", "work")

    def __init__(self, slots: list[Value]) -> None:
        self.slots = slots
        self.cost = 0
        self.work = 0

    def weigh(self, values: Sequence[Value], work: costs.Work = costs.work_of) -> None:
        """Add the elements and texts in the values to `work`. Raises Abort above costs.WORK."""
        self.work += work(values, costs.WORK - self.work)
        if self.work > costs.WORK:
            raise Abort("operation cancelled: too many elements were examined")

    def pay(self, cost: int) -> None:
        """Add to the cost. Raises Abort above costs.LIMIT."""
        self.cost += cost
        # Upstream's cost is unsigned: a negative number is a very large one.
        if not 0 <= self.cost <= costs.LIMIT:
            raise Abort("operation cancelled: actual cost limit exceeded")


Run = Callable[[Frame], Value]


class Link(Struct, frozen=True):
    """A step of a path with a constant `key` or the result of `run` as key. `test`: has() tests whether it exists."""

    key: Value
    run: Run | None = None
    optional: bool = False
    test: bool = False


class Path(Struct, frozen=True):
    """A root and the links from there. `before` are the links from the device to the root, None if the root is not part
    of the device."""

    root: Run
    links: tuple[Link, ...] = ()
    before: tuple[Link, ...] | None = None


class Fork(Struct, frozen=True):
    """`? :` as a path: links after it apply to the chosen branch. `test`: the last link is that of has()."""

    condition: Run
    truthy: Path | Fork
    falsy: Path | Fork
    test: bool = False


def is_plain(link: Link) -> bool:
    return link.run is None and not link.optional and not link.test


def is_test(step: Path | Fork) -> bool:
    if isinstance(step, Fork):
        return step.test
    return bool(step.links) and step.links[-1].test


def linked(path: Path | Fork, link: Link) -> Path | Fork:
    if isinstance(path, Fork):
        return Fork(path.condition, linked(path.truthy, link), linked(path.falsy, link), link.test)
    return Path(path.root, (*path.links, link), path.before)


def observed(resolve: Run, cost: int) -> Run:
    if not cost:
        return resolve

    def evaluate(frame: Frame) -> Value:
        value = resolve(frame)
        frame.cost += cost
        return value

    return evaluate


def tested(resolve: Run, cost: int) -> Run:
    """The result of has(). For an optional: whether it has a value."""

    def evaluate(frame: Frame) -> Value:
        value = resolve(frame)
        frame.pay(cost)
        return value is not NONE if type(value) is Optional else value

    return evaluate


def forked(condition: Run, truthy: Run, falsy: Run) -> Run:
    def evaluate(frame: Frame) -> Value:
        value = condition(frame)
        if value is True:
            return truthy(frame)
        if value is False:
            return falsy(frame)
        return value if type(value) is Err else NO_OVERLOAD

    return evaluate


def followed(path: Path) -> Run:
    root, links = path.root, path.links
    if not links:
        return root
    if all(map(is_plain, links)):
        keys = tuple(link.key for link in links)

        def plain(frame: Frame) -> Value:
            value = root(frame)
            if type(value) is Err:
                return value
            if type(value) is Optional:
                return _optionally(frame, value, links)
            for key in keys:
                frame.cost += 1
                value = value.find(key) if type(value) is Map else _qualified(value, key)
                if value is MISSING:
                    return Err(f"no such key: {shown(key)}")
                if type(value) is Err:
                    return value
            return value

        return plain

    def evaluate(frame: Frame) -> Value:
        value = root(frame)
        return value if type(value) is Err else _optionally(frame, value, links)

    return evaluate


def _optionally(frame: Frame, value: Value, links: Sequence[Link]) -> Value:
    """The value behind the links. From the first optional link on, a missing key is no error."""
    optional = type(value) is Optional
    if optional:
        if value is NONE:
            return NONE
        value = value.value
    for link in links:
        optional = optional or link.optional
        key = link.key
        if link.run is not None:
            key = link.run(frame)
            key = key if type(key) in KEYS or type(key) is Err else Err("invalid qualifier type")
        found = key if type(key) is Err else _qualified(value, key, missing=optional or link.test)
        if link.test and not optional:
            frame.cost += 1
            return found if type(found) is Err else found is not MISSING
        if optional:
            if type(found) is Err:
                return found
            if found is MISSING:
                return NONE
            frame.cost += 1
        else:
            frame.cost += 1
            if found is MISSING:
                return Err(f"no such key: {shown(key)}")
            if type(found) is Err:
                return found
        value = found
    if links and links[-1].test:
        return True
    return Optional(value) if optional else value


def _qualified(value: Value, key: Value, missing: bool = False) -> Value:
    """The value under a key or index, MISSING, or an error. `missing`: an index out of bounds is no error."""
    if type(value) is Map:
        return value.find(key)
    if type(value) is not list:
        return MISSING
    index = number(key) if type(key) is not bool else None
    if index is None:
        return Err("unsupported index type in list")
    if not float(index).is_integer():
        return Err(f"unsupported index value {shown(key)} in list")
    if 0 <= index < len(value):
        return value[int(index)]
    return MISSING if missing else Err(f"index out of bounds: {shown(key)}")
