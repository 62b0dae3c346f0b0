# SPDX-License-Identifier: Apache-2.0
"""Planner: turns a checked tree into Python closures that evaluate it and count the cost.

Rules: constant parts are computed once and cost nothing. `in` with a constant list is a set lookup and costs nothing
either. A local variable is computed at its first use.
Source: cel-go v0.29.2, interpreter/{planner,decorators}.go.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kubecel import costs, evaluation, functions, regex
from kubecel.checker import DEVICE_SLOT
from kubecel.declarations import TYPE_NAMES
from kubecel.lexer import syntax_error
from kubecel.macros import ACCU
from kubecel.paths import (
    KEYS,
    Fork,
    Frame,
    Link,
    Path,
    Run,
    followed,
    forked,
    is_plain,
    is_test,
    linked,
    observed,
    tested,
)
from kubecel.regex_syntax import RegexError
from kubecel.syntax import Call, Fold, Ident, ListLiteral, Literal, MapLiteral, Node, Select
from kubecel.types import TYPE, Type
from kubecel.values import Err, Value, key_of

_UNSET: Final = object()
"""The value of a local variable that is not computed yet."""
_FOLDED = frozenset(("bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"))
_PATTERNS = frozenset(("matches", "find", "findAll"))


class Constant(Struct, frozen=True):
    value: Value


class Code(Struct, frozen=True):
    run: Run


Step = Constant | Path | Fork | Code


class Planner:
    """Plans one expression. `reads` are the links from the device to all parts that the expression reads."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._lazy: dict[int, Run] = {}
        self._names: dict[int, tuple[Link, ...]] = {}
        """Local variables that are aliases of a part of the device: reads of the variable are reads of that part."""
        self._planned: dict[int, Step] = {}
        self.reads: list[tuple[Link, ...]] = []

    def plan(self, node: Node) -> Run:
        """The closure that evaluates the tree. Raises SelectorError if a constant part fails."""
        return self._run(self._step(node))

    def _run(self, step: Step) -> Run:
        match step:
            case Constant(value):
                return lambda frame: value
            case Code(run):
                return run
            case Path() | Fork():
                cost = 1 if isinstance(step, Path) else 0
                if is_test(step):
                    return tested(self._resolve(step), cost - 1)
                return observed(self._resolve(step), cost)

    def _resolve(self, step: Path | Fork) -> Run:
        if isinstance(step, Fork):
            return forked(step.condition, self._resolve(step.truthy), self._resolve(step.falsy))
        if step.before is not None:
            self.reads.append(step.before + step.links)
        return followed(step)

    def _step(self, node: Node) -> Step:
        # A target that a macro duplicated is planned once.
        if id(node) not in self._planned:
            self._planned[id(node)] = self._new_step(node)
        return self._planned[id(node)]

    def _new_step(self, node: Node) -> Step:
        match node:
            case Literal():
                return Constant(node.value)
            case Ident():
                return self._ident(node)
            case Select():
                if node.resolved is not None:
                    return self._ident(node.resolved)
                return linked(self._path(node.operand), Link(node.field, test=node.test))
            case Call():
                return self._call(node)
            case ListLiteral():
                return self._list(node)
            case MapLiteral():
                return self._map(node)
            case _:
                assert isinstance(node, Fold)
                return Code(self._fold(node))

    def _ident(self, node: Ident) -> Step:
        slot = node.slot
        if slot is None:
            return Constant(Type(TYPE_NAMES[node.name.removeprefix(".")].name))
        self._refuse_type(node.name, node)
        init = self._lazy.get(slot)
        if init is None:
            return Path(lambda frame: frame.slots[slot], before=() if slot == DEVICE_SLOT else None)

        def first_use(frame: Frame) -> Value:
            value = frame.slots[slot]
            if value is _UNSET:
                value = frame.slots[slot] = evaluation.own(init(frame))
            return value

        return Path(first_use, before=self._names.get(slot))

    def _path(self, node: Node) -> Path | Fork:
        step = self._step(node)
        return step if isinstance(step, Path | Fork) else Path(self._run(step))

    def _call(self, node: Call) -> Step:
        args = node.args if node.target is None else [node.target, *node.args]
        steps = [self._step(arg) for arg in args]
        match node.function:
            case "_&&_" | "_||_":
                return Code(evaluation.logical([self._run(step) for step in steps], node.function == "_||_"))
            case "_?_:_":
                condition = self._run(steps[0])
                truthy, falsy = (step if isinstance(step, Path | Fork) else Path(self._run(step)) for step in steps[1:])
                return Fork(condition, truthy, falsy)
            case "_==_" | "_!=_":
                return Code(evaluation.equality(self._run(steps[0]), self._run(steps[1]), node.function == "_==_"))
            case "_[_]" | "_[?_]" | "_?._":
                return self._indexed(node, steps, optional=node.function != "_[_]")
            case "or" | "orValue":
                unwraps = node.function == "orValue"
                return Code(evaluation.alternative(self._run(steps[0]), self._run(steps[1]), unwraps))
            case "@not_strictly_false":
                return Code(evaluation.undecided(self._run(steps[0])))
            case "@in" if node.overloads == ("in_list",) and isinstance(steps[1], Constant):
                return self._member(node, steps[0], steps[1].value)
        return self._function(node, steps)

    def _indexed(self, node: Call, steps: list[Step], optional: bool) -> Step:
        base = steps[0] if isinstance(steps[0], Path | Fork) else Path(self._run(steps[0]))
        index = steps[1]
        if isinstance(index, Constant):
            if type(index.value) not in KEYS:
                raise syntax_error(self._expression, node.at, "program instantiation failed: invalid qualifier type")
            return linked(base, Link(index.value, optional=optional))
        run = self._resolve(index) if isinstance(index, Path | Fork) else self._run(index)
        return linked(base, Link(None, run, optional))

    def _member(self, node: Call, element: Step, values: list[Value]) -> Step:
        """`in` with a constant list: a set lookup if all elements are hashable."""
        if not values:
            return Constant(False)
        if any(type(value) not in KEYS for value in values):
            return self._function(node, [element, Constant(values)])
        members = frozenset(one for value in values for one in evaluation.equal_members(value))
        run = self._run(element)

        def member(frame: Frame) -> Value:
            value = run(frame)
            return value if type(value) is Err else key_of(value) in members

        return Code(member)

    def _function(self, node: Call, steps: list[Step]) -> Step:
        run, stops = functions.bound(node.function, node.overloads)
        cost = costs.of_call(node.function, node.overloads)
        args = [self._run(step) for step in steps]
        if node.function in _FOLDED and len(steps) == 1 and isinstance(steps[0], Constant):
            value = run(steps[0].value)
            if type(value) is Err:
                raise syntax_error(self._expression, node.at, f"program instantiation failed: {value.text}")
            return Constant(value)
        if node.function in _PATTERNS and isinstance(steps[1], Constant) and type(steps[1].value) is str:
            try:
                regex.compiled(steps[1].value)
            except RegexError as error:
                raise syntax_error(self._expression, node.at, f"program instantiation failed: {error}") from None
            stops = True
        if node.function == "_+_" and isinstance(node.args[0], Ident) and node.args[0].name == ACCU:
            return Code(evaluation.collected(run, args[0], args[1], cost))
        work = costs.of_work(node.function, node.overloads, cost)
        return Code(evaluation.call(run, args, cost, stops, work))

    def _list(self, node: ListLiteral) -> Step:
        steps = [self._step(element) for element in node.elements]
        elements = [self._run(step) for step in steps]
        run = evaluation.list_literal(elements, node.optional)
        if not all(isinstance(step, Constant) for step in steps):
            return Code(run)
        value = run(Frame([]))
        return Constant(value) if type(value) is not Err else Code(lambda frame: value)

    def _map(self, node: MapLiteral) -> Step:
        steps = [(self._step(key), self._step(value), optional) for key, value, optional in node.entries]
        run = evaluation.map_literal([(self._run(key), self._run(value), optional) for key, value, optional in steps])
        if not all(isinstance(key, Constant) and isinstance(value, Constant) for key, value, _ in steps):
            return Code(run)
        value = run(Frame([]))
        return Constant(value) if type(value) is not Err else Code(lambda frame: value)

    def _refuse_type(self, name: str, node: Node) -> None:
        """Upstream resolves a variable whose value is a type as a type name, which does not exist."""
        if node.type is not None and node.type.name == TYPE.name:
            reason = f"program instantiation failed: reference to undefined type: {name}"
            raise syntax_error(self._expression, node.at, reason)

    def _init(self, slot: int, node: Node) -> Run:
        step = self._step(node)
        if isinstance(step, Path) and step.before is not None and all(is_plain(link) for link in step.links):
            self._names[slot] = step.before + step.links
            return observed(followed(step), 1)
        return self._run(step)

    def _fold(self, node: Fold) -> Run:
        accu, var, var2 = node.slots
        self._lazy[accu] = self._init(accu, node.init)
        if isinstance(node.range, ListLiteral) and not node.range.elements:
            self._refuse_type(node.accu, node.init)
            body = self.plan(node.result)

            def local(frame: Frame) -> Value:
                frame.slots[accu] = _UNSET
                return body(frame)

            return local
        range_, condition, step, result = map(self.plan, (node.range, node.condition, node.step, node.result))
        two = bool(node.var2)

        def fold(frame: Frame) -> Value:
            values = range_(frame)
            if type(values) is Err:
                return values
            pairs = evaluation.pairs(values, two)
            if isinstance(pairs, Err):
                return pairs
            slots = frame.slots
            slots[accu] = _UNSET
            for pair in pairs:
                slots[var], slots[var2] = pair
                if condition(frame) is False:
                    break
                slots[accu] = step(frame)
                frame.pay(0)
            return result(frame)

        return fold
