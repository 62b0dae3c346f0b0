# SPDX-License-Identifier: Apache-2.0
"""The functions on lists and sets, and those on optionals.

Source: cel-go v0.29.2, ext/{lists,sets}.go and cel/library.go; k8s.io/apiserver/pkg/cel/library/lists.go (1.37).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cmp_to_key
from itertools import pairwise
from typing import Final

from kubecel import arithmetic
from kubecel.declarations import ORDERED
from kubecel.values import (
    NO_OVERLOAD,
    NONE,
    Duration,
    Err,
    Optional,
    UInt,
    Value,
    compare,
    equal,
    is_ordered,
    type_of,
)  # fmt: skip

_LARGEST_RANGE: Final = 1_000_000


def _is_sorted(values: list[Value]) -> Value:
    for value in values:
        if not is_ordered(value):
            return NO_OVERLOAD
    return all(compare(one, other) != 1 for one, other in pairwise(values))


def _sum(zero: Value) -> Callable[[list[Value]], Value]:
    def total(values: list[Value]) -> Value:
        result = zero
        for value in values:
            result = arithmetic.add(result, value)
            if type(result) is Err:
                return NO_OVERLOAD
        return result

    return total


def _most(name: str, worse: int) -> Callable[[list[Value]], Value]:
    def most(values: list[Value]) -> Value:
        if not values:
            return Err(f"{name} called on empty list")
        if not all(map(is_ordered, values)):
            return NO_OVERLOAD
        result = values[0]
        for value in values[1:]:
            if compare(result, value) == worse:
                result = value
        return result

    return most


def _index_of(values: list[Value], value: Value) -> int:
    return next((i for i, one in enumerate(values) if _same(one, value)), -1)


def _last_index_of(values: list[Value], value: Value) -> int:
    return next((i for i in range(len(values) - 1, -1, -1) if _same(values[i], value)), -1)


def _same(one: Value, other: Value) -> bool:
    return equal(one, other) is True


def _includes(target: Value, value: Value) -> bool:
    """Whether a list contains the element, or a single value equals it. Attributes may be either."""
    if type(target) is list:
        return any(equal(one, value) is True for one in target)
    return _same(target, value)


def _slice(values: list[Value], start: int, end: int) -> Value:
    if start < 0 or end < 0:
        return Err(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        return Err(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if len(values) < end:
        return Err(f"cannot slice({start}, {end}), list is length {len(values)}")
    return values[start:end]


def _flatten(values: Value, depth: Value = 1) -> Value:
    if type(values) is not list or type(depth) is not int:
        return Err("no such overload: flatten()")
    if depth < 0:
        return Err("level must be non-negative")
    return list(_leaves(values, depth))


def _leaves(values: list[Value], depth: int) -> Iterator[Value]:
    for one in values:
        if depth and type(one) is list:
            yield from _leaves(one, depth - 1)
        else:
            yield one


def sort_by(values: Value, keys: Value) -> Value:
    if type(values) is not list or type(keys) is not list:
        return NO_OVERLOAD
    if len(values) != len(keys):
        return Err("@sortByAssociatedKeys() expected a list of the same size as the associated keys list")
    if not values:
        return values
    if not is_ordered(keys[0]):
        return Err("list elements must be comparable")
    if any(type(key) is not type(keys[0]) for key in keys):
        return Err("list elements must have the same type")

    def by_key(i: int, j: int) -> int:
        order = compare(keys[i], keys[j])
        return 0 if isinstance(order, Err) else order

    order = sorted(range(len(keys)), key=cmp_to_key(by_key))
    return [values[i] for i in order]


def _range(count: int) -> Value:
    if count < 0:
        return Err(f"lists.range: size must be non-negative, got {count}")
    if count > _LARGEST_RANGE:
        return Err(f"lists.range: size {count} exceeds maximum allowed ({_LARGEST_RANGE})")
    return list(range(count))


def _distinct(values: list[Value]) -> list[Value]:
    found: list[Value] = []
    for value in values:
        if not any(_same(value, one) for one in found):
            found.append(value)
    return found


def _set_contains(values: list[Value], part: list[Value]) -> bool:
    return all(arithmetic.contained(one, values) for one in part)


def _set_intersects(values: list[Value], other: list[Value]) -> bool:
    return any(arithmetic.contained(one, other) for one in values)


def _unwrapped(values: list[Value]) -> Value:
    for value in values:
        if type(value) is not Optional:
            return Err(f"value of type {type_of(value).name} is not optional")
    return [value.value for value in values if value is not NONE]


def _value(optional: Optional) -> Value:
    return Err("optional.none() dereference") if optional is NONE else optional.value


_ZEROS = {"int": 0, "uint": UInt(0), "double": 0.0, "duration": Duration(0)}
OVERLOADS: dict[str, Callable[..., Value]] = {
    **{f"list_{kind}_is_sorted_bool": _is_sorted for kind in ORDERED},
    **{f"list_{kind}_max_{kind}": _most("max", -1) for kind in ORDERED},
    **{f"list_{kind}_min_{kind}": _most("min", 1) for kind in ORDERED},
    **{f"list_{kind}_sum_{kind}": _sum(zero) for kind, zero in _ZEROS.items()},
    "list_a_index_of_int": _index_of,
    "list_a_last_index_of_int": _last_index_of,
    "list_includes_dyn_dyn": _includes,
    "list_slice": _slice,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "lists_range": _range,
    "list_reverse": lambda values: values[::-1],
    "list_distinct": _distinct,
    "list_sets_contains_list": _set_contains,
    "list_sets_equivalent_list": lambda one, other: _set_contains(one, other) and _set_contains(other, one),
    "list_sets_intersects_list": _set_intersects,
    "list_first": lambda values: Optional(values[0]) if values else NONE,
    "list_last": lambda values: Optional(values[-1]) if values else NONE,
    "optional_of": Optional,
    "optional_ofNonZeroValue": lambda value: NONE if arithmetic.zero(value) else Optional(value),
    "optional_none": lambda: NONE,
    "optional_value": _value,
    "optional_hasValue": lambda optional: optional is not NONE,
    "optional_unwrap": _unwrapped,
    "optional_unwrapOpt": _unwrapped,
}
SINGLE: dict[str, Callable[..., Value]] = {"sort": lambda values: sort_by(values, values),
                                          "@sortByAssociatedKeys": sort_by}  # fmt: skip
