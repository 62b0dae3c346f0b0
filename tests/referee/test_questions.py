# SPDX-License-Identifier: Apache-2.0
"""What the referee answers to cases that it cannot decide, and what its Python side reports when the program fails."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from shutil import copytree

import pytest
from msgspec.structs import replace

from tests.paths import ROOT
from tests.referee.handmade import Case, case, node, pod
from tools.controlplane import binaries, referee

BAD: dict[str, tuple[Callable[[Case], object], str]] = {
    "no question": (lambda case: case.pop("question"), 'question: "" is not known'),
    "an unknown question": (lambda case: case.update(question="why"), 'question: "why" is not known'),
    "no pod": (lambda case: case.pop("pod"), "pod: the pod to place is missing"),
    "an unknown field of a case": (lambda case: case.update(nods=[]), 'unknown field "nods"'),
    "an unknown field of an object": (
        lambda case: case["nodes"][0]["spec"].update(taint=[]), 'nodes[0]: unknown field "spec.taint"',
    ),
    "a wrong type": (
        lambda case: case["pod"]["spec"]["containers"][0].update(image=1),
        "pod.spec.containers[0].image: json: cannot unmarshal number",
    ),
    "a wrong quantity": (
        lambda case: case["nodes"][0]["status"]["allocatable"].update(cpu="2cores"),
        "nodes[0].status.allocatable.cpu: quantities must match",
    ),
    "a wrong time": (
        lambda case: case["pods"][0]["metadata"].update(deletionTimestamp="soon"),
        "pods[0].metadata.deletionTimestamp: parsing time",
    ),
    "no name": (lambda case: case["nodes"][0]["metadata"].pop("name"), "nodes[0].metadata.name: missing"),
    "a name twice": (
        lambda case: case["nodes"].append(node("n0")), 'nodes[1].metadata.name: "/n0" is also nodes[0]',
    ),
    "the pod to place among the others": (
        lambda case: case["pods"].append(case["pod"]), "pods[1]: is the pod to place",
    ),
    "a pod without uid": (lambda case: case["pods"][0]["metadata"].pop("uid"), "pods[0]: "),
    "objects that are no list": (lambda case: case.update(nodes={}), "json: cannot unmarshal object"),
}  # fmt: skip


@pytest.mark.plane
@pytest.mark.parametrize("what", BAD)
def test_a_bad_case_is_reported_by_field_and_the_next_one_is_answered(program: Path, what: str) -> None:
    change, stated = BAD[what]
    bad = case(pods=[pod("old", "n0")]) | {"id": "bad"}
    change(bad)
    answers = {answer["id"]: answer for answer in referee.answers(program, [bad, case()], workers=1)}
    assert stated in answers["bad"]["error"]
    assert answers["example"]["nodes"]["n0"]["accepted"]


@pytest.mark.plane
def test_lines_that_are_no_cases_are_answered_too(program: Path) -> None:
    lines = "nonsense\n\n[1]\n" + json.dumps(case() | {"id": 7})
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["id"] for answer in answers] == ["", "", ""]
    assert all("the line is no case: " in answer["error"] for answer in answers)


@pytest.mark.plane
def test_the_shell_command_answers(program: Path) -> None:
    argv = [sys.executable, "-m", "tools.controlplane", "referee"]
    done = subprocess.run(argv, input=json.dumps(case()), capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout)["nodes"]["n0"] == {"accepted": True, "refusals": []}


@pytest.mark.plane
def test_no_case_is_part_of_another(program: Path) -> None:
    crowded = case(pods=[pod(f"old-{i}", "n0") for i in range(9)]) | {"id": "crowded"}
    alternating = [found | {"id": f"{i}-{found['id']}"} for i in range(50) for found in (crowded, case())]
    for answer in referee.answers(program, alternating, workers=2):
        assert answer["nodes"]["n0"]["accepted"] == ("crowded" not in answer["id"]), answer


@pytest.mark.parametrize(
    ("script", "stated"),
    [
        ("exit 3", "0 of 1 cases answered, exit status 3: "),
        ("cat >/dev/null; echo oh no >&2", "0 of 1 cases answered, exit status 0: oh no"),
    ],
)
def test_a_program_that_fails_is_reported(tmp_path: Path, script: str, stated: str) -> None:
    program = tmp_path / "referee"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(referee.RefereeFailed, match=stated):
        list(referee.answers(program, [case()]))


@pytest.mark.plane
def test_what_goes_wrong_while_cases_are_made_is_raised(program: Path) -> None:
    def cases() -> Iterator[Case]:
        yield case()
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        list(referee.answers(program, cases()))


@pytest.mark.plane
def test_answers_may_be_left_untaken(program: Path) -> None:
    endless = (case() | {"id": str(number)} for number in count())
    assert next(referee.answers(program, endless))["nodes"]["n0"]["accepted"]


def test_editing_the_referee_rebuilds_it_and_not_the_control_plane(tmp_path: Path) -> None:
    copy = replace(binaries.KUBERNETES, folder=copytree(binaries.MODULE_DIR, tmp_path / "module"))
    before = binaries.binaries_dir(module=copy), binaries.binaries_dir(referee.PACKAGES, copy)
    source = next((tmp_path / "module" / "referee").glob("*.go"))
    source.write_text(source.read_text() + "// edited\n")
    assert binaries.binaries_dir(module=copy) == before[0]
    assert binaries.binaries_dir(referee.PACKAGES, copy) != before[1]
