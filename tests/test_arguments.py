# SPDX-License-Identifier: Apache-2.0
"""No function below `dovetail` has more arguments than a reader can hold: what belongs together is passed as one
record.

click gives a command each of its options as an argument of its own; so commands may have more.
"""

import ast
import inspect
from collections.abc import Iterator
from types import CodeType

import pytest

from tests.paths import ROOT

SOURCE = ROOT / "src" / "dovetail"
MOST = 8
"""What a caller may give, so without `self`; `*more` and `**more` count as one each."""


def long_signatures(source: str) -> Iterator[tuple[str, int]]:
    """The functions with more than MOST arguments, by their names with those of their classes."""
    # Python's compiler counts them too, with `self` and those of commands, and its answer is had in half the time.
    if _most(compile(source, "", "exec", dont_inherit=True)) > MOST:
        yield from _below(ast.parse(source), "")


def _most(code: CodeType) -> int:
    """The most arguments of one function in it."""
    flags = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    inside = (_most(one) for one in code.co_consts if isinstance(one, CodeType))
    return max(code.co_argcount + code.co_kwonlyargcount + flags, *inside, 0)


def _below(node: ast.AST, inside: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{inside}{child.name}"
            if not isinstance(child, ast.ClassDef) and not any(map(_makes_a_command, child.decorator_list)):
                count = _arguments(child.args) - (isinstance(node, ast.ClassDef) and not _is_static(child))
                if count > MOST:
                    yield name, count
            yield from _below(child, f"{name}.")
        else:
            if isinstance(child, ast.Lambda) and _arguments(child.args) > MOST:
                yield f"{inside}lambda", _arguments(child.args)
            yield from _below(child, inside)


def _arguments(arguments: ast.arguments) -> int:
    named = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    return named + (arguments.vararg is not None) + (arguments.kwarg is not None)


def _is_static(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in function.decorator_list)


def _makes_a_command(decorator: ast.expr) -> bool:
    """`@click.command()`, or `@group.command()` of a group."""
    made = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(made, ast.Attribute) and made.attr in ("command", "group")


@pytest.mark.slow
def test_no_function_has_more_arguments_than_it_may() -> None:
    found = {
        f"{path.relative_to(SOURCE).as_posix()}:{name}": count
        for path in SOURCE.rglob("*.py")
        for name, count in long_signatures(path.read_text())
    }
    assert found == {}


NINE = "a, b, c, d, e, f, g, h, i"


def test_long_signatures_are_found() -> None:
    source = f"""
import click

def right(a, b, c, d, e, f, g, h): ...

def wrong({NINE}): ...

class Place:
    def __init__(self, a, b, /, c, *d, e, f, g, h, **i): ...
    @staticmethod
    def at({NINE}): ...
    async def go(self, a, b, c, d, e, f, g, h):
        def inner(a, b, c, d, e, *, f, g, h, i): ...

short = lambda a: lambda {NINE}: a

@click.command(name="x")
@click.option("--a")
def command({NINE}): ...

@kept({NINE})
def kept({NINE}, j): ...
"""
    assert sorted(long_signatures(source)) == [
        ("Place.__init__", 9),
        ("Place.at", 9),
        ("Place.go.inner", 9),
        ("kept", 10),
        ("lambda", 9),
        ("wrong", 9),
    ]
