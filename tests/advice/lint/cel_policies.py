# SPDX-License-Identifier: Apache-2.0
"""Admission policies evaluated without an API server, by kubecel, on objects as they are written."""

from __future__ import annotations

from functools import cache
from typing import Any

import kubecel
from dovetail.advice.lint import cel
from dovetail.advice.lint.cel import Cel
from dovetail.advice.lint.rule import Facts
from kubecel import macros
from kubecel.checker import Checker
from kubecel.paths import Frame, Run
from kubecel.program import Planner
from kubecel.syntax import Ident, Parser
from kubecel.types import DYN, Type
from kubecel.values import Abort, Err, Map

_NOTHING_KNOWN = Facts()
_ROOTS = ("variables", "object", "namespaceObject")


class PolicyFailed(Exception):
    """The expression cannot be compiled, or fails on an object."""


class _Checker(Checker):
    """Of expressions with the variables of admission policies, of unknown types."""

    def __init__(self, expression: str) -> None:
        super().__init__(expression)
        self.slots += len(_ROOTS)

    def _ident(self, node: Ident, name: str) -> Type:
        if name in _ROOTS and not any(name in scope for scope in self._scopes):
            node.slot = 1 + _ROOTS.index(name)
            return DYN
        return super()._ident(node, name)


@cache
def _compiled(expression: str) -> tuple[Run, int]:
    try:
        # The checker takes only selectors: expressions of a bool, or of an unknown type.
        unknown = f"dyn({expression})"
        root = Parser(unknown, macros.expand).parse()
        checker = _Checker(unknown)
        checker.check(root)
        return Planner(unknown).plan(root), checker.slots
    except (kubecel.SelectorError, Abort) as error:
        raise PolicyFailed(f"{error}\n{expression}") from None


def _evaluated(expression: str, roots: dict[str, Any]) -> tuple[Any, int]:
    run, slots = _compiled(expression)
    frame = Frame([None] * slots)
    for at, name in enumerate(_ROOTS):
        frame.slots[1 + at] = roots[name]
    try:
        value = run(frame)
        frame.pay(0)
    except Abort as error:
        raise PolicyFailed(str(error)) from None
    if type(value) is Err:
        raise PolicyFailed(f"{value.text}: {expression[:2000]}")
    return value, frame.cost


def policy_findings(
    policy: Cel, whole: dict[str, Any], namespace: dict[str, Any] | None = None, facts: Facts = _NOTHING_KNOWN
) -> list[str]:
    """The texts of all findings. Raises PolicyFailed."""
    expression = cel.found(policy, facts)
    known: dict[str, Any] = {}
    roots = {"object": _value(whole), "namespaceObject": _value(namespace), "variables": Map(known, named=True)}
    for name, each in cel.variables(expression).items():
        known[name], _ = _evaluated(each, roots)
    value, _ = _evaluated(expression, roots)
    return value.split("\n") if value else []


def _value(value: Any) -> Any:
    """A value of CEL. The API server drops nulls."""
    if isinstance(value, dict):
        return Map({str(key): _value(one) for key, one in value.items() if one is not None}, named=True)
    if isinstance(value, list):
        return [_value(one) for one in value]
    return value
