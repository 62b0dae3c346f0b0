# SPDX-License-Identifier: Apache-2.0
"""The namespaces of a node keep its files and processes to themselves."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.patience import PATIENCE_S
from tools.node.space import Space, SpaceFailed

Open = Callable[..., Space]


@pytest.fixture
def open_space(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as spaces:

        def open_one(own: list[Path], replaced: Mapping[Path, Path] | None = None) -> Space:
            # pytest keeps its folders; a space removes its own.
            space = Space(Path(mkdtemp(prefix="dovetail-space-")), [], tmp_path / "log")
            spaces.callback(space.close)
            space.open(own, replaced or {})
            return space

        yield open_one


def run(space: Space, script: str) -> str:
    process = space.start(["sh", "-c", script], os.environ, subprocess.PIPE)
    printed, error_output = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, error_output
    return printed.decode()


@pytest.mark.node
def test_a_directory_that_the_machine_lacks_is_there_inside_with_its_neighbours_and_not_made_outside(
    open_space: Open, tmp_path: Path
) -> None:
    (tmp_path / "neighbour").write_text("theirs")
    (tmp_path / "link").symlink_to("neighbour")
    mine = tmp_path / "deep" / "mine"
    space = open_space([mine])
    assert run(space, f"echo mine >{mine}/file; cat {tmp_path}/neighbour {tmp_path}/link") == "theirstheirs"
    assert space.outside(mine / "file").read_text() == "mine\n"
    assert not mine.exists()
    run(space, f"echo changed >{tmp_path}/neighbour")
    assert (tmp_path / "neighbour").read_text() == "changed\n"


@pytest.mark.node
def test_a_directory_that_the_machine_has_is_hidden_inside(open_space: Open, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "file").write_text("theirs")
    spaces = [open_space([theirs]) for _ in range(2)]
    for number, space in enumerate(spaces):
        assert run(space, f"ls {theirs}; echo {number} >{theirs}/file") == ""
    assert [space.outside(theirs / "file").read_text() for space in spaces] == ["0\n", "1\n"]
    assert (theirs / "file").read_text() == "theirs"


@pytest.mark.node
def test_a_file_of_the_machine_is_replaced_inside_alone(open_space: Open, tmp_path: Path) -> None:
    (tmp_path / "panic").write_text("10\n")
    panic = Path("/proc/sys/kernel/panic")
    before = panic.read_text()
    assert run(open_space([], {panic: tmp_path / "panic"}), f"cat {panic}; echo 7 >{panic}") == "10\n"
    assert (panic.read_text(), (tmp_path / "panic").read_text()) == (before, "7\n")


@pytest.mark.node
def test_processes_see_only_each_other_and_end_together(open_space: Open) -> None:
    space = open_space([])
    child = space.start(["sleep", "600"], os.environ, subprocess.DEVNULL)
    # The child is `nsenter` until it has entered the namespaces.
    seen = run(space, "until grep -qx sleep /proc/[0-9]*/comm; do :; done; cat /proc/[0-9]*/comm").split()
    assert len(seen) < 10
    orphan = run(space, "sleep 601 >/dev/null 2>&1 & echo $!").strip()
    run(space, f"until grep -qx sleep /proc/{orphan}/comm; do :; done")
    space.close()
    assert child.returncode == -9
    assert subprocess.run(["pgrep", "-f", "^sleep 601$"], capture_output=True, check=False).returncode == 1


@pytest.mark.node
def test_directories_that_cannot_be_covered_are_refused(open_space: Open, tmp_path: Path) -> None:
    with pytest.raises(SpaceFailed, match="/no-such-directory/x: only below a directory that exists"):
        open_space([Path("/no-such-directory/x")])
    with pytest.raises(ValueError, match="/etc/hosts is not in a directory of the node's own"):
        open_space([tmp_path]).outside("/etc/hosts")
