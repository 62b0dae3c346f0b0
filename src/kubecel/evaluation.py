# SPDX-License-Identifier: Apache-2.0
"""The closures for operators, calls and literals.

Rules: an operator evaluates both sides, and the first error is its value. `&&` and `||` discard an error if another
term decides the result. A call of three arguments stops at the first that fails, and then costs nothing.
Source: cel-go v0.29.2, interpreter/{interpretable,runtimecost}.go, cel/library.go (or, orValue).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat

from kubecel import costs, functions
from kubecel.paths import Frame, Run
from kubecel.values import (
    MISSING,
    NO_OVERLOAD,
    NONE,
    Err,
    Map,
    Optional,
    Value,
    equal,
    equal_keys,
    key_of,
    number,
    shown,
    type_of,
)


def logical(terms: list[Run], decides: bool) -> Run:
    def evaluate(frame: Frame) -> Value:
        error = None
        for term in terms:
            value = term(frame)
            if value is decides:
                return decides
            if error is None and type(value) is not bool:
                error = value if type(value) is Err else NO_OVERLOAD
        return not decides if error is None else error

    return evaluate


def equality(left: Run, right: Run, wanted: bool) -> Run:
    def evaluate(frame: Frame) -> Value:
        one, other = left(frame), right(frame)
        frame.cost += costs.of_equality(one, other, wanted)
        if type(one) is not str and type(one) not in costs.SCALARS:
            frame.weigh((one,))
        if type(one) is Err:
            return one
        if type(other) is Err:
            return other
        result = equal(one, other)
        return result if wanted else result is not True

    return evaluate


def alternative(left: Run, right: Run, unwraps: bool) -> Run:
    """or() and orValue(): the other side is evaluated only if this one has no value."""

    def evaluate(frame: Frame) -> Value:
        value = left(frame)
        if type(value) is Err:
            return value
        if type(value) is not Optional:
            return NO_OVERLOAD
        if value is NONE:
            return right(frame)
        return value.value if unwraps else value

    return evaluate


def undecided(arg: Run) -> Run:
    def evaluate(frame: Frame) -> Value:
        value = arg(frame)
        frame.cost += 1
        return value is not False

    return evaluate


def collected(run: functions.Function, accu: Run, arg: Run, cost: costs.Cost) -> Run:
    """`accu + [x]` of a macro. No other code references the list, so it grows in place."""

    def evaluate(frame: Frame) -> Value:
        so_far, value = accu(frame), arg(frame)
        result: Value = so_far
        if type(so_far) is list and type(value) is list:
            so_far += value
        elif type(so_far) is not Err:
            result = value if type(value) is Err else run(so_far, value)
        frame.cost += cost if isinstance(cost, int) else cost((so_far, value), result)
        return result

    return evaluate


def call(run: functions.Function, args: list[Run], cost: costs.Cost, stops: bool, work: costs.Work | None) -> Run:
    if not isinstance(cost, int) or len(args) > 2 or stops or work:
        return _long_call(run, args, cost, stops, work)
    if len(args) == 2:
        left, right = args

        def binary(frame: Frame) -> Value:
            one, other = left(frame), right(frame)
            frame.cost += cost
            if type(one) is Err:
                return one
            return other if type(other) is Err else run(one, other)

        return binary
    if args:
        only = args[0]

        def unary(frame: Frame) -> Value:
            value = only(frame)
            frame.cost += cost
            return value if type(value) is Err else run(value)

        return unary

    def nullary(frame: Frame) -> Value:
        frame.cost += cost
        return run()

    return nullary


def _long_call(run: functions.Function, args: list[Run], cost: costs.Cost, stops: bool, work: costs.Work | None) -> Run:
    last = len(args) - 1
    late = costs.of_result(cost)
    price: Callable[[list[Value], Value], int] = (lambda values, result: cost) if isinstance(cost, int) else cost

    def evaluate(frame: Frame) -> Value:
        values: list[Value] = []
        error: Value = None
        for i, arg in enumerate(args):
            value = arg(frame)
            values.append(value)
            if error is None and type(value) is Err:
                error = value
                if stops and i < last:
                    # A call with unevaluated arguments costs nothing.
                    return error
        if work is not None and error is None:
            frame.weigh(values, work)
        if late:
            result: Value = run(*values) if error is None else error
            frame.pay(price(values, result))
            return result
        frame.pay(price(values, None))
        if error is not None:
            return error
        result = run(*values)
        if work is not None and type(result) is str:
            frame.weigh((result,))
        return result

    return evaluate


def list_literal(elements: list[Run], optional: frozenset[int]) -> Run:
    def evaluate(frame: Frame) -> Value:
        values: list[Value] = []
        frame.cost += costs.LIST
        for i, element in enumerate(elements):
            value = element(frame)
            if type(value) is Err:
                return value
            if i in optional:
                if type(value) is not Optional:
                    return Err(f"cannot initialize optional list element from non-optional value {shown(value)}")
                if value is NONE:
                    continue
                value = value.value
            values.append(value)
        return values

    return evaluate


def map_literal(entries: list[tuple[Run, Run, bool]]) -> Run:
    def evaluate(frame: Frame) -> Value:
        frame.cost += costs.MAP
        values: dict[Value, Value] = {}
        for key_run, value_run, optional in entries:
            key = key_run(frame)
            if type(key) is Err:
                return key
            value = value_run(frame)
            if type(value) is Err:
                return value
            hashed = key_of(key)
            if optional:
                if type(value) is not Optional:
                    return Err(f"cannot initialize optional entry '{shown(key)}' from non-optional value")
                if value is NONE:
                    values.pop(hashed, None)
                    continue
                value = value.value
            values[hashed] = value
        return Map(values)

    return evaluate


def equal_members(value: Value) -> list[Value]:
    """The value and the numbers of other types that upstream treats as equal."""
    found = [value]
    whole = number(value)
    if whole is not None:
        found += [float(whole), *equal_keys(value)]
    return [key_of(one) for one in found]


def own(value: Value) -> Value:
    """A copy of an empty list or map, because the accumulator of a macro changes in place."""
    if type(value) is list and not value:
        return []
    return Map({}) if type(value) is Map and not value.entries and value.default is MISSING else value


def pairs(values: Value, two: bool) -> Iterable[tuple[Value, Value]] | Err:
    if type(values) is list:
        return enumerate(values) if two else zip(values, repeat(None))
    if type(values) is Map:
        return values.items()
    kind = type_of(values).name
    return Err(f"unsupported comprehension range type: {kind}" if two else f"got '{kind}', expected iterable type")
