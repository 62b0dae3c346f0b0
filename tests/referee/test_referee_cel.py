# SPDX-License-Identifier: Apache-2.0
"""Thousands of random device selectors, asked of upstream's CEL and of ours: what compiles, what matches, what errs and
what it costs agree."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kubecel
from dovetail.core import quantities
from dovetail.core.dra.types import Capacity, Device, Value, Version
from kubecel import SelectorError
from tests.kubecel.cel_expressions import DRIVER, Expressions, device
from tools.controlplane import referee

pytestmark = pytest.mark.plane

CHUNKS, PER_CHUNK, DEVICES = 12, 400, 4
TOO_COSTLY = "actual cost limit exceeded"


def qualified(name: str) -> str:
    return name if "/" in name else f"{DRIVER}/{name}"


def value(attribute: dict[str, Any]) -> Value:
    ((kind, content),) = attribute.items()
    if kind in ("version", "versions"):
        return Version(content) if kind == "version" else tuple(map(Version, content))
    return tuple(content) if isinstance(content, list) else content


def ours(raw: dict[str, Any]) -> Device:
    return Device(
        raw["name"],
        attributes=tuple(sorted((qualified(name), value(one)) for name, one in raw["attributes"].items())),
        capacity=tuple(
            sorted((qualified(name), Capacity(quantities.milli(one["value"]))) for name, one in raw["capacity"].items())
        ),
        shareable=raw.get("allowMultipleAllocations", False),
    )


def answer(selector: kubecel.Selector, asked: Device) -> tuple[str, int | None]:
    try:
        matches, cost = selector.evaluate(asked, DRIVER)
    except SelectorError as error:
        return ("too costly" if TOO_COSTLY in str(error) else "error"), None
    return str(matches), cost


def upstream(match: dict[str, Any]) -> tuple[str, int | None]:
    if "runtimeError" in match:
        return ("too costly" if TOO_COSTLY in match["runtimeError"] else "error"), None
    return str(match["match"]), match.get("cost")


def expressions(chunk: int) -> list[str]:
    stream = Expressions(chunk)
    return [stream.one() for _ in range(PER_CHUNK)]


def asked(program: Path, drawn: list[str], raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    case = {"id": "cel", "question": "cel", "expressions": drawn,
            "devices": [{"driver": DRIVER, "device": one} for one in raw]}  # fmt: skip
    (found,) = referee.answers(program, [case], workers=1)
    assert "error" not in found, found["error"]
    results: list[dict[str, Any]] = found["results"]
    return results


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_selectors_compile_match_err_and_cost_as_upstream(program: Path, chunk: int) -> None:
    drawn = expressions(chunk)
    raw = [device(chunk * DEVICES + i) for i in range(DEVICES)]
    devices = list(map(ours, raw))
    differences = []
    for expression, result in zip(drawn, asked(program, drawn, raw), strict=True):
        try:
            selector = kubecel.compile(expression)
        except SelectorError as error:
            if "compileError" not in result:
                differences.append((expression, f"does not compile: {error}"))
            continue
        if "compileError" in result:
            differences.append((expression, f"compiles, upstream: {result['compileError']}"))
            continue
        for one, match in zip(devices, result["devices"], strict=True):
            if answer(selector, one) != upstream(match):
                differences.append((expression, f"{one.name}: {answer(selector, one)}, upstream: {match}"))
    assert differences == []


def test_the_expressions_compile_match_and_err_often(program: Path) -> None:
    seen: Counter[str] = Counter()
    for chunk in range(4):
        for result in asked(program, expressions(chunk), [device(chunk)]):
            seen["broken" if "compileError" in result else upstream(result["devices"][0])[0]] += 1
    total = sum(seen.values())
    for outcome in ("broken", "True", "False", "error"):
        assert total / 20 < seen[outcome] < total * 3 / 4, seen
