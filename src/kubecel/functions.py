# SPDX-License-Identifier: Apache-2.0
"""The implementation of a call, chosen by the overloads that it matches.

Rules: a call that matches one overload accepts only values of that overload's types. A call that matches several uses
the first whose types the values have. Values that no overload accepts are a CEL error, not an exception.
Source: cel-go v0.29.2, common/decls/decls.go.
"""

from __future__ import annotations

from collections.abc import Callable

from kubecel import arithmetic, formats, lists, network, quantity, regex, semver, text, times, types
from kubecel.declarations import FUNCTIONS, Overload
from kubecel.regex_syntax import RegexError
from kubecel.types import Type
from kubecel.values import NO_OVERLOAD, Err, Value, type_of

Function = Callable[..., Value]


def _matches(text_: Value, pattern: Value) -> Value:
    if type(text_) is not str or type(pattern) is not str:
        return NO_OVERLOAD
    try:
        return regex.compiled(pattern).matches(text_)
    except RegexError as error:
        return Err(str(error))


def _find(text_: str, pattern: str) -> Value:
    try:
        expression = regex.compiled(pattern)
    except RegexError as error:
        return Err(f"Illegal regex: {error}")
    found = expression.find(text_)
    return text_[found[0] : found[1]] if found else ""


def _find_all(text_: str, pattern: str, count: int = -1) -> Value:
    try:
        return regex.compiled(pattern).find_all(text_, count)
    except RegexError as error:
        return Err(f"Illegal regex: {error}")


SINGLE: dict[str, Function] = {**arithmetic.SINGLE, **lists.SINGLE, "matches": _matches}
"""Functions that check the types of their arguments themselves."""
_CONVERSIONS = {
    "bool": arithmetic.to_bool, "bytes": arithmetic.to_bytes, "double": arithmetic.to_double,
    "duration": arithmetic.to_duration, "int": arithmetic.to_int, "string": arithmetic.to_string,
    "timestamp": arithmetic.to_timestamp, "uint": arithmetic.to_uint,
}  # fmt: skip


def _part(function: str) -> Function:
    return lambda value, zone="UTC": times.part(function, value, zone)


_BOUND: dict[str, Function] = {
    **{one.id: convert for function, convert in _CONVERSIONS.items() for one in FUNCTIONS[function]},
    **{one.id: _part(function) for function, overloads in FUNCTIONS.items() for one in overloads
       if one.args and one.args[0] in (types.TIMESTAMP, types.DURATION) and function.startswith("get")},
    **text.OVERLOADS, **quantity.OVERLOADS, **semver.OVERLOADS, **network.OVERLOADS, **formats.OVERLOADS,
    **lists.OVERLOADS,
    "@mapInsert_map_key_value": arithmetic.inserted, "@mapInsert_map_map": arithmetic.merged,
    "string_find_string": _find, "string_find_all_string": _find_all, "string_find_all_string_int": _find_all,
}  # fmt: skip
_UNGUARDED = frozenset(("list_flatten", "list_flatten_int"))
_VARIADIC = frozenset(("string_format",))
"""Overloads of two arguments that stop at the first that fails, like those of three."""


def _takes_all(type_: Type) -> bool:
    return type_ == types.DYN or types.is_parameter(type_)


def takes(type_: Type, value: Value) -> bool:
    """Whether a value is of a declared type. For a list or map only the first element is checked."""
    if _takes_all(type_):
        return True
    if type_of(value).name != type_.name:
        return False
    if type_.name == types.LIST:
        return not value or takes(type_.params[0], value[0])
    if type_.name == types.MAP and value.entries:
        key, first = next(value.items())
        return takes(type_.params[0], key) and takes(type_.params[1], first)
    return True


def _all_taken(overload: Overload, args: tuple[Value, ...]) -> bool:
    return len(args) == len(overload.args) and all(map(takes, overload.args, args))


def _no_overload(function: str, args: tuple[Value, ...]) -> Err:
    return Err(f"no such overload: {function}({', '.join(type_of(arg).name for arg in args)})")


_EXACT: dict[Type, type] = {types.STRING: str, types.INT: int, types.BOOL: bool, types.QUANTITY: quantity.Quantity,
                            types.SEMVER: semver.Semver}  # fmt: skip


def _guarded(overload: Overload) -> Function:
    run, function = _BOUND[overload.id], overload.function
    if overload.id in _UNGUARDED or all(map(_takes_all, overload.args)):
        return run
    exact = [_EXACT.get(type_) for type_ in overload.args]
    if len(exact) == 1 and exact[0]:
        only = exact[0]
        return lambda one: run(one) if type(one) is only else _no_overload(function, (one,))
    if len(exact) == 2 and exact[0] and exact[1]:
        left, right = exact

        def both(one: Value, other: Value) -> Value:
            if type(one) is left and type(other) is right:
                return run(one, other)
            return _no_overload(function, (one, other))

        return both
    return lambda *args: run(*args) if _all_taken(overload, args) else _no_overload(function, args)


def bound(function: str, ids: tuple[str, ...]) -> tuple[Function, bool]:
    """The implementation, and whether it stops at the first argument that fails (else all are evaluated)."""
    if function in SINGLE:
        return SINGLE[function], False
    overloads = [overload for overload in FUNCTIONS[function] if overload.id in _BOUND]
    if len(ids) == 1 and ids[0] in _BOUND:
        chosen = next(overload for overload in overloads if overload.id == ids[0])
        return _guarded(chosen), len(chosen.args) > 2 or chosen.id in _VARIADIC
    if not overloads:
        return lambda *args: NO_OVERLOAD, False
    if len(overloads) == 1:
        return _guarded(overloads[0]), len(overloads[0].args) > 2

    def dispatched(*args: Value) -> Value:
        for overload in overloads:
            if _all_taken(overload, args):
                return _BOUND[overload.id](*args)
        return _no_overload(function, args)

    return dispatched, True
