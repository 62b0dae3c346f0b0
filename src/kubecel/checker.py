# SPDX-License-Identifier: Apache-2.0
"""The static check: every call matches an overload by the types of its arguments, and every name is declared.

Rules: values of unknown type (attributes) match every type. The elements of a list or map literal have one type. The
result of the expression is a bool or of unknown type. The checker writes types, overload ids and the slots of variables
into the tree.
Source: cel-go v0.29.2, checker/checker.go and cel/validator.go; k8s.io/dynamic-resource-allocation/cel/compile.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kubecel import lexer, regex, text, types
from kubecel.declarations import DEVICE, FIELDS, FUNCTIONS, TYPE_NAMES, Overload
from kubecel.errors import SelectorError
from kubecel.regex_syntax import RegexError
from kubecel.syntax import Call, Fold, Ident, ListLiteral, Literal, MapLiteral, Node, Select
from kubecel.types import BOOL, DYN, ERROR, Bindings, Type, list_of, map_of, optional_of
from kubecel.values import type_of

DEPTH: Final = 120
"""Limit of the depth of a tree, so that neither the checker nor the evaluation overflows the stack (upstream: about
250)."""
DEVICE_SLOT: Final = 0


class Checker:
    """Checks one expression. `slots` is the number of its variables after the check."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._bindings = Bindings()
        self._scopes: list[dict[str, tuple[Type, int]]] = []
        self._errors: list[tuple[int, str]] = []
        self._depth = 0
        self._checked: list[Node] = []
        self.slots = 1

    def check(self, root: Node) -> None:
        """Check the tree. Raises SelectorError with all errors."""
        self._check(root)
        self._raise()
        for node in self._checked:
            node.type = self._bindings.resolved(_type(node), free_is_dyn=True)
        exempt = {id(part) for node in self._checked if _is_format(node) for part in _parts(node)}
        for node in self._checked:
            if id(node) not in exempt:
                self._validate_literal(node)
            self._validate_call(node)
        self._raise()
        if root.type not in (BOOL, DYN):
            raise SelectorError(f"must evaluate to bool or the unknown type, not {root.type}")

    def _raise(self) -> None:
        if self._errors:
            lines = (f"ERROR: {lexer.position(self._expression, at)}: {reason}" for at, reason in self._errors)
            raise SelectorError(f"compilation failed: {chr(10).join(lines)}")

    def _error(self, node: Node, reason: str) -> Type:
        self._errors.append((node.at, reason))
        return ERROR

    def _check(self, node: Node) -> Type:
        if node.type is not None:
            return node.type
        self._depth += 1
        if self._depth > DEPTH:
            raise lexer.syntax_error(self._expression, node.at, f"expression recursion limit exceeded: {DEPTH}")
        match node:
            case Literal():
                type_ = type_of(node.value)
            case Ident():
                type_ = self._ident(node, node.name)
            case Select():
                type_ = self._select(node)
            case Call():
                type_ = self._call(node)
            case ListLiteral():
                type_ = self._list(node)
            case MapLiteral():
                type_ = self._map(node)
            case _:
                assert isinstance(node, Fold)
                type_ = self._fold(node)
        self._depth -= 1
        node.type = type_
        self._checked.append(node)
        return type_

    def _resolved(self, type_: Type) -> Type:
        return self._bindings.resolved(type_)

    def _agrees(self, actual: Type, asked: Type) -> bool:
        return self._bindings.assignable([(actual, asked)])

    def _ident(self, node: Ident, name: str) -> Type:
        if not name.startswith("."):
            for scope in reversed(self._scopes):
                if name in scope:
                    type_, node.slot = scope[name]
                    return type_
        name = name.removeprefix(".")
        if name == "device":
            node.slot = DEVICE_SLOT
            return DEVICE
        if name in TYPE_NAMES:
            node.name = name
            return Type(types.TYPE.name, (TYPE_NAMES[name],))
        return self._error(node, f"undeclared reference to '{name}' (in container '')")

    def _select(self, node: Select) -> Type:
        name = None if node.test else _dotted(node)
        first = (name or "").split(".")[0]
        if name and name.removeprefix(".") in TYPE_NAMES and not any(first in scope for scope in self._scopes):
            node.resolved = Ident(node.at, name)
            return self._check(node.resolved)
        type_ = self._field(node, node.operand, node.field, optional=False)
        return BOOL if node.test else self._resolved(type_)

    def _field(self, node: Node, operand: Node, field: str, optional: bool) -> Type:
        of = self._resolved(self._check(operand))
        is_optional = of.name == types.OPTIONAL
        if is_optional:
            of = self._resolved(of.params[0])
        if of.name == types.MAP:
            type_ = of.params[1]
        elif of == DEVICE:
            type_ = FIELDS.get(field) or self._error(node, f"undefined field '{field}'")
        elif types.is_struct(of):
            type_ = self._error(node, f"unexpected failed resolution of '{of}'")
        else:
            if types.is_parameter(of):
                self._agrees(DYN, of)
            elif of not in (DYN, ERROR):
                self._error(node, f"type '{of}' does not support field selection")
            type_ = DYN
        return optional_of(type_) if is_optional or optional else type_

    def _call(self, node: Call) -> Type:
        if node.function == "_?._":
            operand, field = node.args
            assert isinstance(field, Literal)
            self._check(field)
            node.overloads = ("select_optional_field",)
            return self._resolved(self._field(node, operand, str(field.value), optional=True))
        for arg in node.args:
            self._check(arg)
        if node.target is not None:
            namespace = _dotted(node.target)
            qualified = f"{namespace.removeprefix('.')}.{node.function}" if namespace else ""
            if qualified in FUNCTIONS:
                node.function, node.target = qualified, None
            else:
                self._check(node.target)
        node.function = node.function.removeprefix(".")
        overloads = FUNCTIONS.get(node.function)
        if overloads is None:
            return self._error(node, f"undeclared reference to '{node.function}' (in container '')")
        return self._overload(node, overloads)

    def _overload(self, node: Call, overloads: Sequence[Overload]) -> Type:
        args = node.args if node.target is None else [node.target, *node.args]
        actual = [_type(arg) for arg in args]
        if node.function in ("_&&_", "_||_"):
            for arg, type_ in zip(args, actual, strict=True):
                if not self._agrees(type_, BOOL):
                    self._mismatch(arg, BOOL, type_)
            node.overloads = (overloads[0].id,)
            return BOOL
        result: Type | None = None
        found: list[str] = []
        for overload in overloads:
            if overload.member != (node.target is not None) or len(overload.args) != len(actual):
                continue
            *asked, returned = self._instance(overload)
            if self._bindings.assignable(list(zip(actual, asked, strict=True))):
                found.append(overload.id)
                returned = self._resolved(returned)
                if result is None:
                    result = returned
                elif result not in (DYN, returned):
                    result = DYN
        if result is None:
            shown = [str(self._bindings.resolved(type_, free_is_dyn=True)) for type_ in actual]
            target = f"{shown.pop(0)}." if node.target is not None else ""
            applied = f"{target}({', '.join(shown)})"
            return self._error(node, f"found no matching overload for '{node.function}' applied to '{applied}'")
        node.overloads = tuple(found)
        return result

    def _instance(self, overload: Overload) -> list[Type]:
        """The argument types and the result type with fresh type parameters."""
        fresh: dict[Type, Type] = {}

        def instance(type_: Type) -> Type:
            if types.is_parameter(type_):
                if type_ not in fresh:
                    fresh[type_] = self._bindings.fresh()
                return fresh[type_]
            return Type(type_.name, tuple(map(instance, type_.params))) if type_.params else type_

        return [instance(type_) for type_ in (*overload.args, overload.result)]

    def _mismatch(self, node: Node, expected: Type, found: Type) -> Type:
        resolved = [self._bindings.resolved(type_, free_is_dyn=True) for type_ in (expected, found)]
        return self._error(node, f"expected type '{resolved[0]}' but found '{resolved[1]}'")

    def _joined(self, before: Type | None, type_: Type) -> Type:
        if before is None:
            return type_
        if self._agrees(before, type_):
            return types.more_general(before, type_)
        return DYN

    def _unwrapped(self, node: Node, type_: Type) -> Type:
        """The type inside the optional for an optional element or entry."""
        if type_.name == types.OPTIONAL:
            return type_.params[0]
        if type_ == DYN:
            return self._error(node, "an optional element must be of an optional type")
        return self._mismatch(node, optional_of(type_), type_)

    def _list(self, node: ListLiteral) -> Type:
        joined: Type | None = None
        for i, element in enumerate(node.elements):
            type_ = self._check(element)
            joined = self._joined(joined, self._unwrapped(element, type_) if i in node.optional else type_)
        return list_of(self._bindings.fresh() if joined is None else joined)

    def _map(self, node: MapLiteral) -> Type:
        keys: Type | None = None
        values: Type | None = None
        for key, value, optional in node.entries:
            keys = self._joined(keys, self._check(key))
            type_ = self._check(value)
            values = self._joined(values, self._unwrapped(value, type_) if optional else type_)
        if keys is None or values is None:
            keys, values = self._bindings.fresh(), self._bindings.fresh()
        return map_of(keys, values)

    def _fold(self, node: Fold) -> Type:
        self._check(node.range)
        accu = self._check(node.init)
        element = self._resolved(_type(node.range))
        if element.name == types.LIST:
            one, two = element.params[0], element.params[0]
            one = types.INT if node.var2 else one
        elif element.name == types.MAP:
            one, two = element.params
        elif element in (DYN, ERROR) or types.is_parameter(element):
            self._agrees(DYN, element)
            one = two = DYN
        else:
            reason = f"expression of type '{element}' cannot be range of a comprehension"
            one = two = self._error(node.range, f"{reason} (must be list, map, or dynamic)")
        node.slots = (self.slots, self.slots + 1, self.slots + 2)
        self.slots += 3
        self._scopes.append({node.accu: (accu, node.slots[0])})
        self._scopes.append({node.var: (one, node.slots[1])})
        if node.var2:
            self._scopes[-1][node.var2] = (two, node.slots[2])
        self._check(node.condition)
        if not self._agrees(BOOL, _type(node.condition)):
            self._mismatch(node.condition, BOOL, _type(node.condition))
        self._check(node.step)
        if not self._agrees(accu, _type(node.step)):
            self._mismatch(node.step, accu, _type(node.step))
        self._scopes.pop()
        result = self._check(node.result)
        self._scopes.pop()
        return self._resolved(result)

    def _validate_call(self, node: Node) -> None:
        if isinstance(node, Call):
            if node.function == "format" and isinstance(node.target, Literal) and isinstance(node.args[0], ListLiteral):
                self._validate_format(node, str(node.target.value), node.args[0].elements)
            elif node.function == "matches" and isinstance(node.args[0], Literal) and type(node.args[0].value) is str:
                try:
                    regex.compiled(node.args[0].value)
                except RegexError as error:
                    self._error(node.args[0], f"invalid matches argument: {error}")

    def _validate_literal(self, node: Node) -> None:
        """Check that the elements of a literal have one type, except in the arguments of format()."""
        if isinstance(node, ListLiteral):
            found = [_unwrapped(_type(one), i in node.optional) for i, one in enumerate(node.elements)]
            self._validate_same(node.elements, found)
        elif isinstance(node, MapLiteral):
            self._validate_same([key for key, _, _ in node.entries], [_type(key) for key, _, _ in node.entries])
            values = [_unwrapped(_type(value), optional) for _, value, optional in node.entries]
            self._validate_same([value for _, value, _ in node.entries], values)

    def _validate_same(self, nodes: Sequence[Node], found: Sequence[Type]) -> None:
        for node, type_ in zip(nodes, found, strict=True):
            if type_ != found[0]:
                self._error(node, f"expected type '{found[0]}' but found '{type_}'")
                break

    def _validate_format(self, node: Call, format_: str, elements: Sequence[Node]) -> None:
        asked = 0

        def check(argument: int, clause: str, _precision: int | None) -> str:
            nonlocal asked
            asked += 1
            kinds, reason = text.CLAUSES[clause]
            for type_ in _written_types(elements[argument]) if clause == "s" else [_type(elements[argument])]:
                if type_ != DYN and type_.name not in kinds:
                    raise text.FormatError(f"error during formatting: {reason}, was given {type_.name}")
            return ""

        try:
            text.formatted(format_, len(elements), check)
        except text.FormatError as error:
            self._error(node, str(error))
            return
        if len(elements) > asked:
            reason = f"too many arguments supplied to string.format (expected {asked}, got {len(elements)})"
            self._error(node, reason)


def _type(node: Node) -> Type:
    assert node.type is not None
    return node.type


def _is_format(node: Node) -> bool:
    return isinstance(node, Call) and node.function == "format"


def _parts(node: Node) -> Iterator[Node]:
    """All descendants of a node."""
    inside: list[Node | None] = []
    match node:
        case Select():
            inside = [node.operand]
        case Call():
            inside = [node.target, *node.args]
        case ListLiteral():
            inside = [*node.elements]
        case MapLiteral():
            inside = [part for key, value, _ in node.entries for part in (key, value)]
        case Fold():
            inside = [node.range, node.init, node.condition, node.step, node.result]
    for part in inside:
        if part is not None:
            yield part
            yield from _parts(part)


def _written_types(node: Node) -> list[Type]:
    """The types of a literal and of its elements."""
    inside: list[Node] = []
    if isinstance(node, ListLiteral):
        inside = node.elements
    elif isinstance(node, MapLiteral):
        inside = [part for key, value, _ in node.entries for part in (key, value)]
    return [_type(node), *(type_ for one in inside for type_ in _written_types(one))]


def _unwrapped(type_: Type, optional: bool) -> Type:
    return type_.params[0] if optional else type_


def _dotted(node: Node) -> str | None:
    """The dotted name `a.b.c` of a tree of selections, None if it is not a name."""
    names = []
    while isinstance(node, Select) and not node.test:
        names.append(node.field)
        node = node.operand
    return ".".join([node.name, *reversed(names)]) if isinstance(node, Ident) else None
