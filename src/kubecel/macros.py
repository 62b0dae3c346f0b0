# SPDX-License-Identifier: Apache-2.0
"""Macros: has(), all(), map(), cel.bind() and the others are expanded to tests and loops.

Source: cel-go v0.29.2, parser/macro.go, ext/comprehensions.go (two variables), ext/bindings.go, ext/lists.go (sortBy)
and cel/library.go (optMap, optFlatMap).
"""

from __future__ import annotations

from collections.abc import Callable

from kubecel.syntax import Call, Fold, Ident, ListLiteral, Literal, MapLiteral, Node, Parser, Select

ACCU = "@result"
"""The accumulator variable of a macro. No expression can name it."""
_UNUSED = "#unused"
_SORTED = "@__sortBy_input__"


def expand(parser: Parser, at: int, function: str, target: Node | None, args: list[Node]) -> Node | None:
    """The expansion, or None if the call is not a macro. Raises SelectorError for invalid arguments of a macro."""
    if target is None:
        return _has(parser, at, args) if function == "has" and len(args) == 1 else None
    macro = MACROS.get((function, len(args)))
    return None if macro is None else macro(parser, at, target, args)


def _variable(parser: Parser, node: Node, reason: str) -> str:
    if not isinstance(node, Ident):
        raise parser.error(node.at, reason)
    if node.name == "__result__":
        raise parser.error(node.at, "iteration variable overwrites accumulator variable")
    return node.name


def _variables(parser: Parser, args: list[Node], count: int) -> tuple[str, str]:
    reason = "argument must be a simple name"
    names = [_variable(parser, node, reason) for node in args[:count]]
    if count == 2 and names[0] == names[1]:
        raise parser.error(args[1].at, f"duplicate variable name: {names[0]}")
    return names[0], names[1] if count == 2 else ""


def _accu(at: int) -> Ident:
    return Ident(at, ACCU)


def _true(at: int) -> Literal:
    return Literal(at, True)


def _fold(at: int, range_: Node, names: tuple[str, str], init: Node, cond: Node, step: Node, result: Node) -> Node:
    return Fold(at, range_, *names, ACCU, init, cond, step, result)


def _let(at: int, name: str, init: Node, body: Node) -> Node:
    """A local variable: a loop over an empty list, whose accumulator is the variable."""
    return Fold(at, ListLiteral(at, []), _UNUSED, "", name, init, Literal(at, False), Ident(at, name), body)


Macro = Callable[[Parser, int, Node, list[Node]], Node | None]


def _quantifier(kind: str, count: int) -> Macro:
    def macro(parser: Parser, at: int, target: Node, args: list[Node]) -> Node:
        names, predicate = _variables(parser, args, count), args[count]
        if kind == "one":
            step = Call(at, "_?_:_", [predicate, Call(at, "_+_", [_accu(at), Literal(at, 1)]), _accu(at)])
            result = Call(at, "_==_", [_accu(at), Literal(at, 1)])
            return _fold(at, target, names, Literal(at, 0), _true(at), step, result)
        undecided: Node = _accu(at) if kind == "all" else Call(at, "!_", [_accu(at)])
        step = Call(at, "_&&_" if kind == "all" else "_||_", [_accu(at), predicate])
        condition = Call(at, "@not_strictly_false", [undecided])
        return _fold(at, target, names, Literal(at, kind == "all"), condition, step, _accu(at))

    return macro


def _filtered(at: int, predicate: Node | None, step: Node) -> Node:
    return step if predicate is None else Call(at, "_?_:_", [predicate, step, _accu(at)])


def _listing(count: int, filters: bool) -> Macro:
    """map() and transformList(): a new list of the transformed elements (those that satisfy the predicate)."""

    def macro(parser: Parser, at: int, target: Node, args: list[Node]) -> Node:
        names = _variables(parser, args, count)
        step = Call(at, "_+_", [_accu(at), ListLiteral(at, [args[-1]])])
        step_or_skip = _filtered(at, args[count] if filters else None, step)
        return _fold(at, target, names, ListLiteral(at, []), _true(at), step_or_skip, _accu(at))

    return macro


def _filter(parser: Parser, at: int, target: Node, args: list[Node]) -> Node:
    names = _variables(parser, args, 1)
    step = Call(at, "_+_", [_accu(at), ListLiteral(at, [args[0]])])
    return _fold(at, target, names, ListLiteral(at, []), _true(at), _filtered(at, args[1], step), _accu(at))


def _mapping(entry: bool, filters: bool) -> Macro:
    """transformMap() and transformMapEntry(): a new map."""

    def macro(parser: Parser, at: int, target: Node, args: list[Node]) -> Node:
        names = _variables(parser, args, 2)
        inserted: list[Node] = [_accu(at), *([] if entry else [Ident(at, names[0])]), args[-1]]
        step = _filtered(at, args[2] if filters else None, Call(at, "cel.@mapInsert", inserted))
        return _fold(at, target, names, MapLiteral(at, []), _true(at), step, _accu(at))

    return macro


def _has(parser: Parser, at: int, args: list[Node]) -> Node:
    selected = args[0]
    if not isinstance(selected, Select) or selected.test:
        raise parser.error(selected.at, "invalid argument to has() macro")
    return Select(at, selected.operand, selected.field, test=True)


def _bind(parser: Parser, at: int, target: Node, args: list[Node]) -> Node | None:
    if not isinstance(target, Ident) or target.name != "cel":
        return None
    if not isinstance(args[0], Ident):
        raise parser.error(args[0].at, "cel.bind() variable names must be simple identifiers")
    return _let(at, args[0].name, args[1], args[2])


def _opt_map(flat: bool) -> Macro:
    def macro(parser: Parser, at: int, target: Node, args: list[Node]) -> Node:
        if not isinstance(args[0], Ident):
            name = "optFlatMap" if flat else "optMap"
            raise parser.error(args[0].at, f"{name}() variable name must be a simple identifier")
        # The target occurs twice in the tree. Code that walks the tree visits each node once.
        mapped = _let(at, args[0].name, Call(at, "value", [], target), args[1])
        some = mapped if flat else Call(at, "optional.of", [mapped])
        return Call(at, "_?_:_", [Call(at, "hasValue", [], target), some, Call(at, "optional.none", [])])

    return macro


def _sort_by(parser: Parser, at: int, target: Node, args: list[Node]) -> Node:
    if not isinstance(target, ListLiteral | Select | Ident | Fold | Call):
        raise parser.error(
            target.at, "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        )
    keys = _listing(1, filters=False)(parser, at, Ident(at, _SORTED), args)
    assert keys is not None
    return _let(at, _SORTED, target, Call(at, "@sortByAssociatedKeys", [keys], Ident(at, _SORTED)))


MACROS: dict[tuple[str, int], Macro] = {
    ("bind", 3): _bind,
    ("map", 2): _listing(1, filters=False), ("map", 3): _listing(1, filters=True),
    ("filter", 2): _filter,
    ("transformList", 3): _listing(2, filters=False), ("transformList", 4): _listing(2, filters=True),
    ("transformMap", 3): _mapping(False, False), ("transformMap", 4): _mapping(False, True),
    ("transformMapEntry", 3): _mapping(True, False), ("transformMapEntry", 4): _mapping(True, True),
    ("optMap", 2): _opt_map(flat=False), ("optFlatMap", 2): _opt_map(flat=True),
    ("sortBy", 2): _sort_by,
    **{(name, 1 + count): _quantifier(kind, count)
       for name, kind in (("all", "all"), ("exists", "exists"), ("exists_one", "one"), ("existsOne", "one"))
       for count in (1, 2)},
}  # fmt: skip
