# SPDX-License-Identifier: Apache-2.0
"""The cost of calls at run time, as upstream counts it. A selector may cost LIMIT.

Rules: most calls cost 1. Scanning a string costs a tenth of its length; a regular expression costs that times a quarter
of the length of the pattern. The cost depends on the overload that the checker chose, "" if several remain.
Source: k8s.io/apiserver/pkg/cel/library/cost.go (1.37); cel-go v0.29.2, interpreter/runtimecost.go, ext/lists.go and
ext/sets.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Final

from kubecel.declarations import FUNCTIONS, ORDERED
from kubecel.formats import Format
from kubecel.values import Abort, Map, Optional, UInt, Value, size

LIMIT: Final = 1_000_000
WORK: Final = 1_000_000
"""Limit of the elements that operations visit for which upstream charges little; more would delay the scheduler."""
_TEXT: Final = 16
"""Characters or bytes that take as long to scan as one element."""
LIST: Final = 10
MAP: Final = 30
Cost = int | Callable[[Sequence[Value], Value], int]
"""A constant, or a function of the arguments and (for those with `of_result`) the result."""


def _tenth(count: int) -> int:
    """A tenth, rounded up as upstream's doubles round."""
    return ceil(count * 0.1)


def _quarter(count: int) -> int:
    return ceil(count * 0.25)


def _of_first(args: Sequence[Value], result: Value) -> int:
    return _tenth(size(args[0]))


def _of_second(args: Sequence[Value], result: Value) -> int:
    return _tenth(size(args[1]))


def _twice_first(args: Sequence[Value], result: Value) -> int:
    return ceil(size(args[0]) * 2 * 0.1)


def _shorter(args: Sequence[Value], result: Value) -> int:
    return _tenth(min(size(args[0]), size(args[1])))


def _both(args: Sequence[Value], result: Value) -> int:
    return _tenth(size(args[0]) + size(args[1]))


def _pattern(args: Sequence[Value], result: Value) -> int:
    return _tenth(1 + size(args[0])) * _quarter(size(args[1]))


def _validated(args: Sequence[Value], result: Value) -> int:
    if type(args[0]) is not Format:
        return 1
    return _tenth(1 + size(args[1])) * _quarter(args[0].regex_size)


def _traversal(args: Sequence[Value], result: Value) -> int:
    """One visit of each element, with the cost of a scan for each text."""
    return _visited(args[0])


def _visited(value: Value) -> int:
    kind = type(value)
    if kind is str:
        return int((len(value) if value.isascii() else len(value.encode())) * 0.1)
    if kind is bytes:
        return int(len(value) * 0.1)
    if kind is list:
        return len(value) if {*map(type, value)} <= SCALARS else sum(map(_visited, value))
    if kind is Map:
        return sum(_visited(key) + _visited(one) for key, one in value.items())
    return 1


def _within(network: bool, text: bool) -> Callable[[Sequence[Value], Value], int]:
    """The cost of testing whether a network contains an address, or another `network`. A `text` must be parsed
    first."""

    def cost(args: Sequence[Value], result: Value) -> int:
        prefix = size(args[0])
        total = _tenth(2 * prefix) + (_tenth(prefix) + 1 if network else 0)
        return total + (_tenth(size(args[1])) if text else 0)

    return cost


def _list_of_result(args: Sequence[Value], result: Value) -> int:
    return size(result) + 1 + LIST


def _joined(args: Sequence[Value], result: Value) -> int:
    return ceil(size(result) * 2 * 0.1)


def of_result(cost: Cost) -> bool:
    """Whether the cost depends on the result. All other costs are charged before the call."""
    return cost is _list_of_result or cost is _joined


def _flattened(args: Sequence[Value], result: Value) -> int:
    depth = 1
    if len(args) == 2:
        if type(args[1]) is not int:
            raise Abort("internal error: interface conversion")
        depth = args[1] if args[1] >= 0 else 1
    return min(size(args[0]) * depth, 2 * LIMIT) + 1 + LIST


def _self_compared(at: int) -> Callable[[Sequence[Value], Value], int]:
    def cost(args: Sequence[Value], result: Value) -> int:
        values = args[at]
        if type(values) is not list:
            raise Abort("internal error: interface conversion")
        factor = 2.1 if values and type(values[0]) in (str, bytes) else 2.0
        return int(len(values) ** 2 * factor) + 1 + LIST

    return cost


def _sets(factor: int) -> Callable[[Sequence[Value], Value], int]:
    return lambda args, result: 1 + size(args[0]) * size(args[1]) * factor


_BY_OVERLOAD: dict[str, Cost] = {
    "list_slice": _list_of_result, "list_flatten": _flattened, "list_flatten_int": _flattened,
    "lists_range": _list_of_result, "list_reverse": _list_of_result, "list_distinct": _self_compared(0),
    "list_sets_contains_list": _sets(1), "list_sets_intersects_list": _sets(1), "list_sets_equivalent_list": _sets(2),
    **{f"list_{kind}_{call}": _self_compared(at) for call, at in (("sort", 0), ("sortByAssociatedKeys", 1))
       for kind in ORDERED},
}  # fmt: skip
_BY_FUNCTION: dict[str, Cost] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes"), _traversal),
    **dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim", "cidr", "isIP", "isCIDR", "quantity",
                     "isQuantity", "semver", "isSemver"), _of_first),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), _twice_first),
    "join": _joined,
    **dict.fromkeys(("find", "findAll"), _pattern),
    "validate": _validated,
}  # fmt: skip
_BY_FUNCTION_AND_OVERLOAD: dict[str, Cost] = {
    "string_to_ip": _of_first,
    "containsIP": _within(network=False, text=False), "cidr_contains_ip_string": _within(network=False, text=True),
    "containsCIDR": _within(network=True, text=False), "cidr_contains_cidr_string": _within(network=True, text=True),
    **dict.fromkeys(("starts_with_string", "ends_with_string"), _of_second),
    **dict.fromkeys(("string_to_bytes", "bytes_to_string", "strings_quote", "string_format"), _of_first),
    "in_list": lambda args, result: size(args[1]),
    **{f"{word}_{kind}_{kind}": _shorter for word in ("less", "less_equals", "greater", "greater_equals")
       for kind in ("string", "bytes")},
    **dict.fromkeys(("add_string", "add_bytes"), _both),
    **dict.fromkeys(("matches", "matches_string"), _pattern),
    "contains_string": lambda args, result: _tenth(size(args[0])) * _tenth(size(args[1])),
}  # fmt: skip


def of_call(function: str, ids: tuple[str, ...]) -> Cost:
    """The cost of a call that matches these overloads."""
    overload = ids[0] if len(ids) == 1 else ""
    for table, key in (
        (_BY_OVERLOAD, overload), (_BY_FUNCTION, function), (_BY_FUNCTION_AND_OVERLOAD, overload),
        (_BY_FUNCTION_AND_OVERLOAD, function if function.startswith("contains") else ""),
    ):  # fmt: skip
        if key in table:
            return table[key]
    return _of_first if function == "ip" and overload != "cidr_ip" else 1


SCALARS = frozenset((bool, int, UInt, float, type(None)))


_FEW: Final = 16
"""So many values are not searched for some that are there twice."""


def work_of(values: Iterable[Value], left: int) -> int:
    """The number of elements in the values, nested ones included. A part that occurs twice counts twice. The count
    stops soon after `left`.

    A few lists that contain each other twice have an exponential number of elements: see `_shared_work_of`.
    """
    work, level = 0, [one for one in values if type(one) not in SCALARS]
    while level and work <= left:
        if len(level) > _FEW and len({*map(id, level)}) < len(level):
            return work + _shared_work_of(level, left - work)
        inner: list[Value] = []
        for one in level:
            work += _opened(one, inner)
            if work > left:
                break
        level = inner
    return work


def _shared_work_of(values: list[Value], left: int) -> int:
    """As `work_of`, at most `left + 1`, where some objects occur more than once: each is examined once on each level
    of nesting, with the number of times that it occurs there."""
    work, level = 0, _counted({}, values, 1)
    while level and work <= left:
        inner: dict[int, tuple[Value, int]] = {}
        for one, times in level.values():
            held: list[Value] = []
            work += times * _opened(one, held)
            if work > left:
                return left + 1
            _counted(inner, held, times)
        level = inner
    return work


def _counted(level: dict[int, tuple[Value, int]], values: list[Value], times: int) -> dict[int, tuple[Value, int]]:
    """The level with these values, each so many times more. Its keys are the identities."""
    for one in values:
        seen = level.get(id(one))
        level[id(one)] = (one, times if seen is None else times + seen[1])
    return level


def _opened(value: Value, held: list[Value]) -> int:
    """The number of elements of a value that is no scalar, without those of its elements, which are added to
    `held`."""
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value) // _TEXT
    if kind is list:
        held += [one for one in value if type(one) not in SCALARS]
        return len(value)
    if kind is Map:
        held += [one for one in (*value.keys(), *value.entries.values()) if type(one) not in SCALARS]
        return len(value.entries)
    if kind is Optional:
        if type(value.value) not in SCALARS:
            held.append(value.value)
        return 1
    return int(getattr(value, "work", 0))


Work = Callable[[Sequence[Value], int], int]
"""The number of elements that a call visits, from its arguments and the work that is left."""


def _work_of_inserting(args: Sequence[Value], left: int) -> int:
    """The work of the last map. Its keys are looked up in the first, which no other code references."""
    return 4 * work_of(args[-1:], left)


def _work_of_pairs(args: Sequence[Value], left: int) -> int:
    """The work of comparing each element of the first list with each of the last."""
    return size(args[0]) * work_of(args[-1:], left)


_WORK: dict[str, Work | None] = {
    **dict.fromkeys(("size", "type", "dyn", "charAt", "first", "last", "slice", "reverse", "value", "hasValue",
                     "optional.of", "optional.ofNonZeroValue"), None),
    **dict.fromkeys(("distinct", "sets.contains", "sets.intersects", "sets.equivalent"), _work_of_pairs),
    "replace": work_of,
    "cel.@mapInsert": _work_of_inserting,
}  # fmt: skip
_WORK_BY_OVERLOAD: dict[str, None] = {"in_map": None, "@mapInsert_map_key_value": None}
_SHORT = frozenset(("bool", "int", "uint", "double", "google.protobuf.Duration", "google.protobuf.Timestamp",
                    "kubernetes.Quantity", "kubernetes.Semver", "net.IP", "net.CIDR",
                    "kubernetes.NamedFormat"))  # fmt: skip
_TEXTS = frozenset(("string", "bytes"))


def of_work(function: str, ids: tuple[str, ...], cost: Cost) -> Work | None:
    """The function that counts the work of a call. None if the work is small: the arguments are short, the time does
    not depend on them, or they are texts that upstream charges for."""
    overload = ids[0] if len(ids) == 1 else ""
    if overload in _WORK_BY_OVERLOAD:
        return None
    if function in _WORK:
        return _WORK[function]
    quick = _SHORT if isinstance(cost, int) else _SHORT | _TEXTS
    args = {arg.name for one in FUNCTIONS[function] if one.id in ids for arg in one.args}
    return None if args <= quick else work_of


def of_equality(one: Value, other: Value, opaque_is_one: bool) -> int:
    """The cost of `==` and `!=`. With `opaque_is_one`, as for `==`, values of Kubernetes types cost 1."""
    if opaque_is_one and hasattr(one, "equals"):
        return 1
    return _tenth(min(size(one), size(other)))
