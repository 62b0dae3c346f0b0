# SPDX-License-Identifier: Apache-2.0
"""The static types of CEL and their assignability.

Rules: `dyn` matches every type. A type parameter (its name begins with "?") is bound to the first type that it matches,
and later to the more general of the two. Null is assignable to opaque, struct, duration and timestamp types.
Source: cel-go v0.29.2, checker/types.go.
"""

from __future__ import annotations

from typing import NamedTuple

PARAMETER = "?"


class Type(NamedTuple):
    """A type. `name` is the run-time name: at run time a type has no parameters."""

    name: str
    params: tuple[Type, ...] = ()

    def __str__(self) -> str:
        name = _SHORT.get(self.name, self.name.removeprefix(PARAMETER))
        return f"{name}({', '.join(map(str, self.params))})" if self.params else name


BOOL, BYTES, DOUBLE, INT, STRING, UINT = map(Type, ("bool", "bytes", "double", "int", "string", "uint"))
DYN, ERROR, NULL, TYPE = Type("dyn"), Type("!error!"), Type("null_type"), Type("type")
TIMESTAMP, DURATION = Type("google.protobuf.Timestamp"), Type("google.protobuf.Duration")
QUANTITY, SEMVER, URL = Type("kubernetes.Quantity"), Type("kubernetes.Semver"), Type("kubernetes.URL")
FORMAT, IP, CIDR = Type("kubernetes.NamedFormat"), Type("net.IP"), Type("net.CIDR")
LIST, MAP, OPTIONAL = "list", "map", "optional_type"
_SHORT = {NULL.name: "null", TIMESTAMP.name: "timestamp", DURATION.name: "duration"}
_OPAQUE = frozenset((OPTIONAL, IP.name, CIDR.name))
_WITH_PARAMS = _OPAQUE | {LIST, MAP}


def list_of(element: Type) -> Type:
    return Type(LIST, (element,))


def map_of(key: Type, value: Type) -> Type:
    return Type(MAP, (key, value))


def optional_of(value: Type) -> Type:
    return Type(OPTIONAL, (value,))


def is_parameter(type_: Type) -> bool:
    return type_.name[0] == PARAMETER


def is_struct(type_: Type) -> bool:
    return type_.name.startswith("kubernetes.")


def _nullable(type_: Type) -> bool:
    return type_ in (NULL, TIMESTAMP, DURATION) or type_.name in _OPAQUE or is_struct(type_)


class Bindings:
    """The current bindings of the type parameters of an expression."""

    def __init__(self) -> None:
        self._bound: dict[Type, Type] = {}
        self._undo: list[tuple[Type, Type | None]] = []
        self._fresh = 0

    def fresh(self) -> Type:
        """A new unbound type parameter."""
        self._fresh += 1
        return Type(f"{PARAMETER}_var{self._fresh}")

    def assignable(self, pairs: list[tuple[Type, Type]]) -> bool:
        """Whether each first type is assignable to the second. Binds parameters only if all are."""
        self._undo.clear()
        if all(self._assignable(actual, asked) for actual, asked in pairs):
            return True
        for parameter, before in reversed(self._undo):
            if before is None:
                del self._bound[parameter]
            else:
                self._bound[parameter] = before
        return False

    def resolved(self, type_: Type, free_is_dyn: bool = False) -> Type:
        """The type with its parameters replaced by their bindings."""
        bound = self._bound.get(type_)
        if bound is not None:
            return self.resolved(bound, free_is_dyn)
        if is_parameter(type_):
            return DYN if free_is_dyn else type_
        if not type_.params:
            return type_
        return Type(type_.name, tuple(self.resolved(one, free_is_dyn) for one in type_.params))

    def _assignable(self, actual: Type, asked: Type) -> bool:
        if is_parameter(asked):
            agreed = self._binds(actual, asked)
            if agreed or asked in self._bound:
                return agreed
        if is_parameter(actual):
            return self._binds(asked, actual)
        if actual in (DYN, ERROR) or asked in (DYN, ERROR):
            return True
        if actual == NULL or asked == NULL:
            return _nullable(asked if actual == NULL else actual)
        if actual.name != asked.name:
            return False
        if actual.name not in _WITH_PARAMS:
            return True
        return len(actual.params) == len(asked.params) and all(map(self._assignable, actual.params, asked.params))

    def _binds(self, type_: Type, parameter: Type) -> bool:
        """Whether the parameter can be bound to the type; binds it if so."""
        if type_ == parameter:
            return True
        bound = self._bound.get(parameter)
        if bound is None:
            if self._occurs(parameter, type_):
                return False
            self._bind(parameter, type_)
            return True
        if type_ == bound:
            return True
        if not self._assignable(type_, bound):
            return False
        general = more_general(type_, bound)
        if not self._occurs(parameter, general):
            self._bind(parameter, general)
        return True

    def _bind(self, parameter: Type, type_: Type) -> None:
        self._undo.append((parameter, self._bound.get(parameter)))
        self._bound[parameter] = type_

    def _occurs(self, parameter: Type, within: Type) -> bool:
        if within == parameter:
            return True
        if is_parameter(within):
            bound = self._bound.get(within)
            return bound is not None and self._occurs(parameter, bound)
        return any(self._occurs(parameter, one) for one in within.params)


def more_general(one: Type, other: Type) -> Type:
    """The less specific of two matching types."""
    return one if _covers(one, other) else other


def _covers(one: Type, other: Type) -> bool:
    if one == DYN or is_parameter(one):
        return True
    if other == DYN or is_parameter(other) or one.name != other.name or len(one.params) != len(other.params):
        return False
    return one.name == TYPE.name or all(map(_covers, one.params, other.params))
