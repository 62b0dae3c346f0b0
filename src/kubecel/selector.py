# SPDX-License-Identifier: Apache-2.0
"""Device selectors: CEL expressions, compiled once and evaluated on any device.

Rules: `device` has driver, attributes and capacity by domain and name, and allowMultipleAllocations. A missing domain
is an empty map. A missing name is an error, and an error fails the whole claim.
Source: k8s.io/dynamic-resource-allocation/cel/compile.go (1.37).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from kubecel import macros, quantity, semver
from kubecel.checker import DEVICE_SLOT, Checker
from kubecel.errors import SelectorError
from kubecel.paths import Frame, Link, Run
from kubecel.program import Planner
from kubecel.syntax import Parser
from kubecel.values import Abort, Err, Map, Value, type_of

MAX_LENGTH: Final = 10 * 1024
"""The API's limit of the length of an expression in bytes."""
_TOO_DEEP: Final = "operation cancelled: lists, maps or optionals are nested too deeply in each other"
_NOTHING: Final = Map({}, named=True)


class Version(Protocol):
    """The text of a semantic version attribute."""

    @property
    def text(self) -> str: ...


class Capacity(Protocol):
    """An amount in thousandths of the quantity's unit, as a quantity may be a fraction of one."""

    @property
    def milli(self) -> int: ...


Scalar = bool | int | str | Version
Attribute = Scalar | tuple[Scalar, ...]
"""A tuple is a list of values of one type."""


class Device(Protocol):
    """The fields of a device that an expression can read. `attributes` and `capacity` are by qualified name
    ("domain/name"). `shareable` is `allowMultipleAllocations`."""

    @property
    def attributes(self) -> Sequence[tuple[str, Attribute]]: ...

    @property
    def capacity(self) -> Sequence[tuple[str, Capacity]]: ...

    @property
    def shareable(self) -> bool: ...


Kind = Literal["attributes", "capacity", "driver", "shareable"]


class SelectorReads(NamedTuple):
    """A part of a device that an expression reads: `attributes` or `capacity` of a domain, or `driver` or `shareable`
    (then domain and name are ""). `name` is "" if the expression reads the whole map of the domain and so depends on
    all its names."""

    kind: Kind
    domain: str
    name: str


class Selector:
    """A compiled selector. `reads` lists all parts of a device that the result can depend on; None if unknown, so the
    result may depend on any part."""

    __slots__ = ("_run", "_slots", "expression", "reads")

    def __init__(self, expression: str, run: Run, slots: int, reads: frozenset[SelectorReads] | None) -> None:
        self.expression = expression
        self.reads = reads
        self._run = run
        self._slots = slots

    def matches(self, device: Device, driver: str) -> bool:
        """Whether the selector matches the device of the driver. Raises SelectorError."""
        return self.evaluate(device, driver)[0]

    def evaluate(self, device: Device, driver: str) -> tuple[bool, int]:
        """Whether the selector matches the device, and the cost of the evaluation. Raises SelectorError."""
        frame = Frame([None] * self._slots)
        frame.slots[DEVICE_SLOT] = _device(device, driver)
        try:
            value = self._run(frame)
            frame.pay(0)
        except Abort as error:
            raise SelectorError(str(error)) from None
        except RecursionError:
            raise SelectorError(_TOO_DEEP) from None
        if type(value) is bool:
            return value, frame.cost
        if type(value) is Err:
            raise SelectorError(value.text)
        raise SelectorError(f"CEL result of type {type_of(value).name} could not be converted to bool")


def compile(expression: str) -> Selector:
    """The selector of an expression. Raises SelectorError with the position and the reason for an invalid one."""
    length = len(expression.encode("utf-8", "replace"))
    if length > MAX_LENGTH:
        raise SelectorError(f"the expression has {length} bytes: at most {MAX_LENGTH} are allowed")
    root = Parser(expression, macros.expand).parse()
    checker = Checker(expression)
    planner = Planner(expression)
    try:
        checker.check(root)
        run = planner.plan(root)
    except Abort as error:
        raise SelectorError(f"program instantiation failed: {error}") from None
    except RecursionError:
        raise SelectorError(_TOO_DEEP) from None
    return Selector(expression, run, checker.slots, _reads(planner.reads))


def _reads(paths: Iterable[tuple[Link, ...]]) -> frozenset[SelectorReads] | None:
    found: set[SelectorReads] = set()
    for links in paths:
        keys = [link.key if link.run is None and type(link.key) is str else None for link in links[:3]]
        field, domain, name = (*keys, "", "")[:3] if keys else (None, None, None)
        if field == "driver":
            found.add(SelectorReads("driver", "", ""))
        elif field == "allowMultipleAllocations":
            found.add(SelectorReads("shareable", "", ""))
        elif field == "attributes" and domain:
            found.add(SelectorReads("attributes", domain, name or ""))
        elif field == "capacity" and domain:
            found.add(SelectorReads("capacity", domain, name or ""))
        else:
            return None
    return frozenset(found)


def _device(device: Device, driver: str) -> Map:
    attributes = [(name, _attribute(value)) for name, value in device.attributes]
    capacity = [(name, quantity.of_milli(value.milli)) for name, value in device.capacity]
    return Map({
        "driver": driver,
        "allowMultipleAllocations": device.shareable,
        "attributes": _by_domain(attributes),
        "capacity": _by_domain(capacity),
    }, named=True)  # fmt: skip


def _by_domain(named: Iterable[tuple[str, Value]]) -> Map:
    domains: dict[Value, Value] = {}
    for qualified, value in named:
        domain, _, name = qualified.partition("/")
        if domain not in domains:
            domains[domain] = Map({}, named=True)
        domains[domain].entries[name] = value
    return Map(domains, default=_NOTHING, named=True)


def _attribute(value: Attribute) -> Value:
    if isinstance(value, tuple):
        return [_attribute(one) for one in value]
    if isinstance(value, (int, str)):
        return value
    version = semver.of_text(value.text)
    if isinstance(version, Err):
        raise SelectorError(f"attribute: parse semantic version: {version.text}")
    return version
