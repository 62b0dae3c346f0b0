# SPDX-License-Identifier: Apache-2.0
"""The extras of the package (`pip install 'dovetail[agent]'`), and what a command answers where one is missing."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click

EXTRAS = {
    "agent": ("grpc", "google.protobuf", "pynvml"),
    "dashboard": ("sse_starlette", "starlette", "uvicorn"),
    "mcp": ("mcp",),
    "plots": ("matplotlib",),
    "views": ("cryptography",),
}
"""What is imported of each, beside what every installation has."""
F = TypeVar("F", bound=Callable[..., Any])


class MissingExtra(click.ClickException):
    """A command, or one of its options, needs packages that are not installed."""

    exit_code = 2


def needs(extra: str) -> None:
    """Raises MissingExtra where a package of the extra is not installed."""
    if missing := [module for module in EXTRAS[extra] if not _installed(module)]:
        raise MissingExtra(f"this needs {', '.join(missing)}: pip install 'dovetail[{extra}]'")


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def plot_option(help_text: str, metavar: str | None = None) -> Callable[[F], F]:
    """The option `--plot`, which needs the extra `plots`; its value is a Path, or None."""

    def checked(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Path | None:
        if value is not None:
            needs("plots")
        return value

    path = click.Path(dir_okay=False, path_type=Path)
    return click.option("--plot", type=path, metavar=metavar, callback=checked, help=help_text)
