# SPDX-License-Identifier: Apache-2.0
"""`dovetail topology` as its user sees it: both formats, the table, the JSON, the picture, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import fields

from dovetail.cli import cli
from dovetail.cli.topology_report import show
from dovetail.core.devices.layout import LayoutError
from dovetail.views.topology import topology
from dovetail.views.topology_plot import draw
from dovetail.views.topology_types import GpuSet, NicView, Topology, equal_sets, nearest, numa_groups
from tests.cli.answers import answer as checked
from tests.docs.pages import page
from tests.paths import WIRINGS
from tests.terminal import on_terminal

DGX1, DGX_H100, P4D = "dgx1-v100.txt", "dgx-h100-h200-8gpu-12nic.txt", "aws-p4d-24xl.xml"


def sample(name: str, product: str | None = None) -> Topology:
    return topology((WIRINGS / name).read_text(), product)


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["topology", *arguments], input=stdin)


def reported(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = checked(result.stdout, "Topology")
    return answer


def printed(found: Topology, width: int) -> str:
    return on_terminal(lambda console: show(found, console), width)


def many(count: int) -> str:
    """GPUs that are all linked, as nvidia-smi prints them."""
    lines = ["\t" + "\t".join(f"GPU{i}" for i in range(count))]
    lines += [f"GPU{i}\t" + "\t".join(" X " if i == j else "NV12" for j in range(count)) for i in range(count)]
    return "\n".join(lines)


def test_the_format_is_recognised_by_content() -> None:
    assert sample(DGX1).source == "nvidia-smi topo -m"
    assert sample(P4D).source == "NCCL XML"
    assert topology("\ufeff\n  " + (WIRINGS / P4D).read_text()) == sample(P4D)
    assert topology("\ufeff" + (WIRINGS / DGX1).read_text()) == sample(DGX1)


def test_what_is_not_known_is_none() -> None:
    found = sample("a100-custom-4gpu-nv4-4nic.txt")
    assert found.numa == (None,) * 4
    assert found.pcie[0] == (None,) * 4
    assert found.nics[0] == NicView(None, ("PXB", "SYS", "SYS", "SYS"), None, True)


def test_all_sets_of_two_four_and_eight_gpus_the_best_of_each_size_first() -> None:
    found = sample(DGX1)
    sizes = [len(each.gpus) for each in found.sets]
    assert [sizes.count(size) for size in (2, 4, 8)] == [28, 70, 1]
    assert found.sets[0] == GpuSet((0, 3), 40_000)
    assert found.sets[-1] == GpuSet(tuple(range(8)), 40_000)
    pairs = [each.mbps for each in found.sets if len(each.gpus) == 2]
    assert pairs == sorted(pairs, reverse=True)


def test_equal_sets_are_taken_together() -> None:
    groups = [(each.size, each.mbps, len(each.sets)) for each in equal_sets(sample(DGX1))]
    assert groups[:3] == [(2, 40_000, 8), (2, 20_000, 8), (2, 10_000, 12)]
    assert [(each.size, len(each.sets)) for each in equal_sets(sample(DGX_H100))] == [(2, 28), (4, 70), (8, 1)]


def test_more_gpus_than_sets_are_worked_out_for_are_shown_without_them() -> None:
    found = topology(many(17))
    assert found.sets == ()
    assert any("at most 16 GPUs, and there are 17" in note for note in found.notes)


def test_gpus_by_numa_node_and_the_nearest_of_a_nic() -> None:
    found = sample("dgx-a100-12nic.txt")
    assert numa_groups(found) == {1: [2, 3], 3: [0, 1], 5: [6, 7], 7: [4, 5]}
    assert nearest(found.nics[0]) == ("PXB", [0, 1])
    assert nearest(found.nics[4]) == ("SYS", list(range(8)))
    assert nearest(NicView(None, (None, None), None, True)) == (None, [])
    assert list(numa_groups(topology(many(2)))) == [None]


def test_the_table() -> None:
    text = printed(sample(DGX1), 120)
    assert "8 GPUs, 2 NUMA nodes, 4 NICs, from nvidia-smi topo -m. NVLink 20.0 GB/s per link" in text
    assert "attention: the text has no rates; assumed: NVLink 20000 MB/s per link" in " ".join(text.split())
    lines = [line.rstrip() for line in text.splitlines()]
    assert "GPU0  0     X     NV1   NV1   NV2   NV2   SYS   SYS   SYS" in lines
    assert "NIC0  0     ?       yes   PIX 0,1" in lines
    assert "2     40.0  8     0,3  0,4  1,2  1,5  2,3  4,7  5,6  6,7" in lines
    assert "8     40.0  1     all" in lines


def test_the_how_to_shows_what_is_printed() -> None:
    (block,) = [block for block in page("docs/how-to/topology-of-a-node.md").blocks if block.language == "text"]
    assert block.text.split() == printed(sample(DGX1), 80).split()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", sorted(path.name for path in WIRINGS.glob("*.txt") if "truncated" not in path.name))
def test_the_table_fits_the_terminal_and_loses_nothing(name: str, width: int) -> None:
    found = sample(name)
    text = printed(found, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    words = text.split()
    assert all(words.count(f"GPU{gpu}") >= 2 for gpu in range(len(found.numa)))
    assert all(f"NIC{nic}" in words for nic in range(len(found.nics)))


def test_a_wide_matrix_is_cut_into_blocks_of_columns() -> None:
    text = printed(topology(many(16)), 80)
    heads = [line.split() for line in text.splitlines() if line.split()[:1] == ["NUMA"]]
    assert [name for head in heads for name in head[1:]] == [f"GPU{i}" for i in range(16)]
    assert len(heads) == 2
    assert all(len(line) <= 80 for line in text.splitlines())


def test_sets_that_do_not_fit_a_line_are_counted() -> None:
    text = printed(sample(DGX1), 80)
    (line,) = [line for line in text.splitlines() if line.startswith("2     10.0")]
    shown, _, more = line.split(maxsplit=3)[3].rpartition("+")
    assert len(shown.split()) + int(more) == 12


def test_one_gpu_has_no_sets_and_no_links() -> None:
    text = printed(topology(" GPU0 CPU Affinity NUMA Affinity\nGPU0 X 0-7 0\n"), 80)
    assert text.startswith("1 GPU, 1 NUMA node, no NICs")
    assert "NVLink" not in text


def test_json_has_all_fields_of_the_reference() -> None:
    answer = reported(str(WIRINGS / DGX1))
    assert list(answer)[2:] == [field.name for field in fields(Topology)]
    assert answer["nvlinks"][0] == [0, 1, 1, 2, 2, 0, 0, 0]
    assert answer["pcie"][0] == [None, None, None, None, None, "SYS", "SYS", "SYS"]
    assert answer["sets"][0] == {"gpus": [0, 3], "mbps": 40_000}
    rows = page("docs/reference/cli.md").section("dovetail topology").rows("field")
    assert [span for row in rows for span in row.code[0]] == list(answer)[2:]


def test_a_product_gives_the_rates() -> None:
    answer = reported(str(WIRINGS / DGX_H100), "--product", "NVIDIA H100 80GB HBM3")
    assert (answer["nvlink_mbps"], answer["pcie_mbps"]) == (20_600, 48_000)
    assert answer["sets"][0]["mbps"] == 18 * 20_600


def test_nvlinks_that_a_file_does_not_speak_of_come_from_the_product_and_are_called_assumed() -> None:
    result = run(str(WIRINGS / P4D), "--product", "A100-SXM4-40GB")
    assert "(wiring assumed)" in " ".join(result.stdout.split())
    assert "NV12" in result.stdout
    assert "NV12" not in run(str(WIRINGS / P4D)).stdout


def test_stdin() -> None:
    result = run("-", stdin=(WIRINGS / DGX1).read_text())
    assert result.exit_code == 0
    assert "8 GPUs, 2 NUMA nodes" in result.stdout


@pytest.mark.parametrize("name", [DGX1, DGX_H100, P4D, "pcie-8gpu-plx-two-numa.txt", "a100-custom-4gpu-nv4-4nic.txt"])
@pytest.mark.slow
def test_a_picture(name: str, tmp_path: Path) -> None:
    picture, other = tmp_path / "a.png", tmp_path / "b.png"
    result = run(str(WIRINGS / name), "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert f"drawn: {picture}" in result.stderr.replace("\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    draw(topology(many(3)), other)
    assert picture.read_bytes() != other.read_bytes()


def test_nothing_is_known_and_it_is_drawn_all_the_same(tmp_path: Path) -> None:
    draw(topology(" GPU0 NIC0\nGPU0 X SYS\nNIC0 SYS X\n"), tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        pytest.param("", 1, "text: no line has the columns GPU0", id="empty"),
        pytest.param(" GPU0 GPU1\nGPU0 X PHB\nGPU1 SYS X\n", 1, "line 3, GPU1, column GPU0: is SYS", id="lopsided"),
        pytest.param("<system version='1'><cpu/></system>", 1, "line 1, <cpu numaid>: is missing", id="XML"),
    ],
)
def test_input_that_cannot_be_used_is_one_line_and_exit_code_1(text: str, code: int, message: str) -> None:
    result = run("-", stdin=text)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_other_bad_input(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"GPU0 \xff\xfe")
    assert "not UTF-8 text: invalid start byte at byte 5" in run(str(binary)).stderr
    assert "not a file, and not a valid name of a node" in run(str(tmp_path / "nothing")).stderr
    assert "not a file, and not a valid name of a node" in run(str(tmp_path)).stderr
    assert "'X9' is not known" in run(str(WIRINGS / DGX1), "--product", "X9").stderr
    assert "there is no folder" in run(str(WIRINGS / DGX1), "--plot", str(tmp_path / "no" / "a.png")).stderr
    (tmp_path / "folder.png").mkdir()
    assert run(str(WIRINGS / DGX1), "--plot", str(tmp_path / "folder.png")).exit_code == 2


def test_a_text_that_looks_like_neither_is_refused_as_text() -> None:
    with pytest.raises(LayoutError, match="is this what `nvidia-smi topo -m` prints"):
        topology("{}")
