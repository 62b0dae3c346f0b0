# SPDX-License-Identifier: Apache-2.0
"""The syntax tree and the parser.

Rules: `? :` binds weakest, then `||`, `&&`, the relations and `in`, `+ -`, `* / %`, unary `! -`, and member access.
All binary operators are left associative. A chain of `&&` or `||` is one node with all its terms. The parser expands
macro calls immediately (see macros). At most NESTING expressions may be nested, so that the parser does not overflow
the stack (upstream: about 250).
Source: cel-go v0.29.2, parser/gen/CEL.g4 and parser/parser.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kubecel import lexer
from kubecel.errors import SelectorError
from kubecel.lexer import Token
from kubecel.types import Type
from kubecel.values import MAX_INT, MAX_UINT, MIN_INT, UInt, Value

NESTING = 60
_RESERVED = frozenset(
    ("as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
     "namespace", "return", "var", "void", "while")
)  # fmt: skip
_RELATIONS = frozenset(("<", "<=", ">=", ">", "==", "!=", "in"))
_SUMS = frozenset("+-")
_PRODUCTS = frozenset("*/%")


@dataclass(slots=True, eq=False)
class Node:
    """`at` is the offset in the expression. The checker sets `type`."""

    at: int
    type: Type | None = field(default=None, init=False)


@dataclass(slots=True, eq=False)
class Literal(Node):
    value: Value


@dataclass(slots=True, eq=False)
class Ident(Node):
    """`slot` is the index of a variable at run time; None for the name of a type."""

    name: str
    slot: int | None = field(default=None, init=False)


@dataclass(slots=True, eq=False)
class Select(Node):
    """A field selection. `test`: has() tests only whether the field exists."""

    operand: Node
    field: str
    test: bool = False
    resolved: Ident | None = None
    """The type name, if the checker resolved the whole selection to one."""


@dataclass(slots=True, eq=False)
class Call(Node):
    """A call of a function or operator. `overloads` are the ids of the overloads that it matches."""

    function: str
    args: list[Node]
    target: Node | None = None
    overloads: tuple[str, ...] = field(default=(), init=False)


@dataclass(slots=True, eq=False)
class ListLiteral(Node):
    elements: list[Node]
    optional: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class MapLiteral(Node):
    """(key, value, whether the entry is optional)"""

    entries: list[tuple[Node, Node, bool]]


@dataclass(slots=True, eq=False)
class Fold(Node):
    """A loop. `accu` starts as `init`. While `condition` is not false, `step` computes the next `accu` for each element
    of `range` (`var`, or `var` and `var2` for key and value). `result` can use only `accu`."""

    range: Node
    var: str
    var2: str
    accu: str
    init: Node
    condition: Node
    step: Node
    result: Node
    slots: tuple[int, int, int] = field(default=(0, 0, 0), init=False)
    """The slots of accu, var and var2."""


Expand = Callable[["Parser", int, str, Node | None, list[Node]], Node | None]
"""Expands a macro call (parser, offset, function, target, args). Returns None if the call is not a macro."""


class Parser:
    """Parses one expression. `expand` expands the macros."""

    def __init__(self, expression: str, expand: Expand) -> None:
        self.expression = expression
        self._expand = expand
        self._tokens = lexer.tokens(expression)
        self._next = 0
        self._depth = 0

    def parse(self) -> Node:
        """The tree of the whole expression. Raises SelectorError with the position."""
        node = self._ternary()
        if self._token.kind != "end":
            raise self._unexpected()
        return node

    def error(self, at: int, reason: str) -> SelectorError:
        return lexer.syntax_error(self.expression, at, reason)

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _unexpected(self) -> SelectorError:
        token = self._token
        return self.error(token.at, f"Syntax error: unexpected '{token.text}'")

    def _take(self, *kinds: str) -> Token | None:
        token = self._tokens[self._next]
        if token.kind not in kinds:
            return None
        self._next += 1
        return token

    def _expect(self, kind: str) -> Token:
        token = self._take(kind)
        if token is None:
            found = self._token
            raise self.error(found.at, f"Syntax error: unexpected '{found.text}', expecting '{kind}'")
        return token

    def _ternary(self) -> Node:
        self._depth += 1
        if self._depth > NESTING:
            raise self.error(self._token.at, f"expression recursion limit exceeded: {NESTING}")
        node = self._terms("||", "&&")
        if token := self._take("?"):
            truthy = self._terms("||", "&&")
            self._expect(":")
            node = Call(token.at, "_?_:_", [node, truthy, self._ternary()])
        self._depth -= 1
        return node

    def _terms(self, operator: str, tighter: str = "") -> Node:
        """Terms joined by a logical operator."""
        terms = [self._terms(tighter) if tighter else self._binary(_RELATIONS)]
        first = self._token
        while self._take(operator):
            terms.append(self._terms(tighter) if tighter else self._binary(_RELATIONS))
        return terms[0] if len(terms) == 1 else Call(first.at, f"_{operator}_", terms)

    def _binary(self, operators: frozenset[str]) -> Node:
        tighter = _SUMS if operators is _RELATIONS else _PRODUCTS if operators is _SUMS else None
        node = self._binary(tighter) if tighter else self._unary()
        while token := self._take(*operators):
            right = self._binary(tighter) if tighter else self._unary()
            node = Call(token.at, "@in" if token.kind == "in" else f"_{token.kind}_", [node, right])
        return node

    def _unary(self) -> Node:
        first = self._token
        count = 0
        while self._take(first.kind) if first.kind in ("!", "-") else None:
            count += 1
            if first.kind == "-" and self._token.kind in ("int", "double") and count % 2:
                # The minus is part of the number, which may be the minimum int.
                return self._member(self._number(self._take("int", "double"), "-", first.at))
        node = self._member(self._primary())
        return node if count % 2 == 0 else Call(first.at, f"{first.kind}_", [node])

    def _member(self, node: Node) -> Node:
        while token := self._take(".", "["):
            optional = self._take("?") is not None
            if token.kind == "[":
                index = self._ternary()
                self._expect("]")
                node = Call(token.at, "_[?_]" if optional else "_[_]", [node, index])
                continue
            name = self._take("name", "quoted")
            if name is None:
                raise self._unexpected()
            if optional:
                node = Call(token.at, "_?._", [node, Literal(name.at, name.text)])
            elif name.kind == "name" and (opened := self._take("(")):
                node = self._called(opened.at, name.text, node)
            else:
                node = Select(token.at, node, name.text)
        return node

    def _called(self, at: int, function: str, target: Node | None) -> Node:
        args = []
        if not self._take(")"):
            args.append(self._ternary())
            while self._take(","):
                args.append(self._ternary())
            self._expect(")")
        expanded = self._expand(self, at, function, target, args)
        return Call(at, function, args, target) if expanded is None else expanded

    def _primary(self) -> Node:
        token = self._token
        self._next += 1
        match token.kind:
            case "(":
                node = self._ternary()
                self._expect(")")
                return node
            case "[":
                return self._list(token.at)
            case "{":
                return self._map(token.at)
            case "true" | "false":
                return Literal(token.at, token.kind == "true")
            case "null":
                return Literal(token.at, None)
            case "string" | "bytes":
                try:
                    value: Value = (lexer.string_value if token.kind == "string" else lexer.bytes_value)(token.text)
                except ValueError as error:
                    raise self.error(token.at, str(error)) from None
                return Literal(token.at, value)
            case "int" | "uint" | "double":
                return self._number(token, "", token.at)
            case "." | "name":
                name = token if token.kind == "name" else self._expect("name")
                return self._named(name, "." if token.kind == "." else "")
        self._next -= 1
        raise self._unexpected()

    def _named(self, name: Token, dot: str) -> Node:
        if self._is_message():
            raise self.error(name.at, f"undeclared reference to '{name.text}' (in container ''): no messages here")
        if name.text in _RESERVED:
            raise self.error(name.at, f"reserved identifier: {name.text}")
        if opened := self._take("("):
            return self._called(opened.at, dot + name.text, None)
        return Ident(name.at, dot + name.text)

    def _is_message(self) -> bool:
        """Whether a (dotted) name is followed by a brace, as in `google.type.Date{year: 2020}`."""
        at = self._next
        while self._tokens[at].kind == "." and self._tokens[at + 1].kind == "name":
            at += 2
        return self._tokens[at].kind == "{"

    def _list(self, at: int) -> Node:
        elements: list[Node] = []
        optional: set[int] = set()
        while not self._take("]"):
            if not elements and self._take(","):
                self._expect("]")
                break
            if self._take("?"):
                optional.add(len(elements))
            elements.append(self._ternary())
            if not self._take(","):
                self._expect("]")
                break
        return ListLiteral(at, elements, frozenset(optional))

    def _map(self, at: int) -> Node:
        entries: list[tuple[Node, Node, bool]] = []
        while not self._take("}"):
            if not entries and self._take(","):
                self._expect("}")
                break
            optional = self._take("?") is not None
            key = self._ternary()
            self._expect(":")
            entries.append((key, self._ternary(), optional))
            if not self._take(","):
                self._expect("}")
                break
        return MapLiteral(at, entries)

    def _number(self, token: Token | None, sign: str, at: int) -> Literal:
        assert token is not None
        text = token.text
        if token.kind == "double":
            value: Value = float(sign + text)
            if value in (float("inf"), float("-inf")):
                raise self.error(at, "invalid double literal")
            return Literal(at, value)
        digits = text.rstrip("uU")
        if len(digits) > 40:
            raise self.error(at, f"invalid {token.kind} literal")
        number = int(sign + digits.removeprefix("0x"), 16 if digits.startswith("0x") else 10)
        if token.kind == "uint":
            if number > MAX_UINT:
                raise self.error(at, "invalid uint literal")
            return Literal(at, UInt(number))
        if not MIN_INT <= number <= MAX_INT:
            raise self.error(at, "invalid int literal")
        return Literal(at, number)
