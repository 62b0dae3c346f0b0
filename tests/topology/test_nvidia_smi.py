# SPDX-License-Identifier: Apache-2.0
"""What `nvidia-smi topo -m` prints becomes a layout, in all styles; what cannot be read in full is refused by line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.devices.layout import BOARD, NODE, PHB, PIX, PXB, SYS, UNKNOWN, LayoutError
from dovetail.topology import nvidia_smi
from dovetail.topology.nvidia_smi import parse, read
from tests.paths import WIRINGS

HALVES = (0, 0, 0, 0, 1, 1, 1, 1)
NOTHING = (UNKNOWN,) * 4


def sample(name: str) -> str:
    return (WIRINGS / f"{name}.txt").read_text()


def matrix(*rows: str, columns: str = "") -> str:
    """The text for GPUs alone."""
    devices = " ".join(f"GPU{i}" for i in range(len(rows)))
    return "\n".join([f"  {devices} {columns}", *(f"GPU{i} {row}" for i, row in enumerate(rows))]) + "\n"


@pytest.mark.parametrize(
    ("name", "numa", "links", "pcie", "nics"),
    [
        ("4gpu-four-numa-nps4", (3, 2, 0, 1), 0, SYS, 1),
        ("a100-custom-4gpu-nv4-4nic", NOTHING, 4, UNKNOWN, 4),
        ("a100-pcie-4gpu-one-bridge", (0, 0, 1, 1), 12, UNKNOWN, 2),
        ("a6000-class-4gpu-nv4-pairs-nic", (0, 0, 1, 1), 4, UNKNOWN, 1),
        ("aws-p4d-a100-8gpu", HALVES, 12, UNKNOWN, 0),
        ("dgx-a100-12nic", (3, 3, 1, 1, 7, 7, 5, 5), 12, UNKNOWN, 12),
        ("dgx-h100-h200-8gpu-12nic", HALVES, 18, UNKNOWN, 12),
        ("dgx1-v100", HALVES, 1, UNKNOWN, 4),
        ("gb200-4gpu-8nic", (0, 0, 1, 1), 18, UNKNOWN, 8),
        ("h100-4gpu-vm-phb", (0, 0, 0, 0), 18, UNKNOWN, 1),
        ("l40s-4gpu-two-numa", (0, 0, 1, 1), 0, NODE, 2),
        ("mixed-5gpu-two-numa-no-nvlink", (1, 0, 0, 0, 0), 0, SYS, 0),
        ("pcie-8gpu-plx-two-numa", HALVES, 0, PIX, 1),
        ("rtx4090-8gpu-two-numa-all-sys", HALVES, 0, SYS, 2),
        ("v100-sxm2-8gpu-1nic", HALVES, 1, UNKNOWN, 1),
    ],
)
def test_published_samples(name: str, numa: tuple[int, ...], links: int, pcie: int, nics: int) -> None:
    """Links and level are those between GPU0 and GPU1."""
    layout = parse(sample(name))
    assert layout.numa == numa
    assert (layout.nvlinks[0][1], layout.pcie[0][1], len(layout.nics)) == (links, pcie, nics)
    assert not layout.assumed


def test_every_sample_is_in_the_table_above() -> None:
    (table,) = [mark for mark in test_published_samples.pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    named = {f"{row[0]}.txt" for row in table.args[1]}
    assert {path.name for path in WIRINGS.glob("*.txt") if not path.name.startswith("truncated")} == named


def test_nvlinks_hide_the_pcie_level_and_the_others_show_it() -> None:
    layout = parse(sample("dgx1-v100"))
    assert layout.nvlinks[0] == (0, 1, 1, 2, 2, 0, 0, 0)
    assert layout.pcie[0] == (BOARD, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, SYS, SYS, SYS)
    plx = parse(sample("pcie-8gpu-plx-two-numa"))
    assert plx.pcie[0] == (BOARD, PIX, PXB, PXB, SYS, SYS, SYS, SYS)


def test_nics_keep_the_order_of_their_columns_and_take_the_numa_node_of_near_gpus() -> None:
    layout = parse(sample("dgx1-v100"))
    assert [nic.levels[0] for nic in layout.nics] == [PIX, SYS, PHB, SYS]
    assert [nic.numa for nic in layout.nics] == [0, 1, 0, 1]
    assert all(nic.rdma and nic.speed_mbps == 0 for nic in layout.nics)
    storage = parse(sample("dgx-a100-12nic")).nics[4]
    assert (storage.levels, storage.numa) == ((SYS,) * 8, UNKNOWN)


def test_a_nic_near_gpus_of_two_numa_nodes_is_in_neither() -> None:
    text = " GPU0 GPU1 NIC0 CPU Affinity NUMA Affinity\nGPU0 X SYS PHB 0-3 0\nGPU1 SYS X PHB 4-7 1\nNIC0 PHB PHB X\n"
    assert parse(text).nics[0].numa == UNKNOWN


@pytest.mark.parametrize(
    ("affinity", "node"),
    [("0", 0), ("3", 3), ("0,2-17", 0), ("1,18-33", 1), ("63", 63), ("0-1", UNKNOWN), ("N/A", UNKNOWN)],
)
def test_the_numa_node_is_the_first_that_stands_alone(affinity: str, node: int) -> None:
    text = f"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-71\t{affinity}\t\tN/A\n"
    assert parse(text).numa == (node,)
    assert parse(text.replace("\t", "   ")).numa == (node,)


def test_a_gpu_with_a_numa_node_of_its_own_belongs_to_the_first_of_the_range() -> None:
    assert parse(" GPU0 CPU Affinity NUMA Affinity GPU NUMA ID\nGPU0 X 0-71 0-8 1\n").numa == (0,)


def test_blank_affinities_between_tabs_are_unknown() -> None:
    head = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    text = f"{head}GPU0\t X \tPHB\t\t\t\tN/A\nGPU1\tPHB\t X \t\t1\t\tN/A\n"
    reading = read(text)
    assert reading.layout.numa == (UNKNOWN, 1)
    assert "the text has no NUMA node of GPU0" in reading.notes
    assert parse(text.replace("\t\t1\t\t", "\t\t\t\t").expandtabs()).numa == (UNKNOWN, UNKNOWN)


def test_colours_comments_legend_and_what_stands_before_do_not_count() -> None:
    plain = sample("a100-pcie-4gpu-one-bridge")
    head, _, rows = plain.partition("\n")
    dressed = (
        f"# ours\n$ nvidia-smi topo -m\n\n\x1b[4m{head}\x1b[0m\n{rows}\nLegend:\n\n  X    = Self\n  NV#  = links\n"
    )
    assert parse(dressed.replace("\n", "\r\n")) == parse(plain)
    assert parse(dressed.replace("\x1b", "")) == parse(plain)


def test_soc_is_the_old_word_for_sys_and_psb_is_one_board() -> None:
    layout = parse(matrix("X PSB SOC", "PSB X SOC", "SOC SOC X"))
    assert layout.pcie == ((BOARD, BOARD, SYS), (BOARD, BOARD, SYS), (SYS, SYS, BOARD))


def test_rows_may_stand_in_any_order() -> None:
    lines = sample("dgx1-v100").splitlines()
    assert parse("\n".join([lines[0], *reversed(lines[1:])])) == parse("\n".join(lines))


class TestNumaFromCpuAffinity:
    def numa(self, *cpus: str, between: str = "SYS", inside: str = "PHB") -> tuple[int, ...]:
        cells = [
            ["X" if i == j else inside if a == b else between for j, b in enumerate(cpus)] for i, a in enumerate(cpus)
        ]
        rows = [f"{' '.join(row)} {own}" for row, own in zip(cells, cpus, strict=True)]
        return parse(matrix(*rows, columns="CPU Affinity")).numa

    def test_lists_that_share_no_cpu_and_leave_none_out_are_numa_nodes(self) -> None:
        assert self.numa("0-19,40-59", "0-19,40-59", "20-39,60-79") == (0, 0, 1)
        assert self.numa("4-7", "0-3") == (1, 0)

    @pytest.mark.parametrize(
        "cpus",
        [
            pytest.param(("0-7", "0-7"), id="one list may be all that there is"),
            pytest.param(("0-7", "8-15", "4-11"), id="overlap"),
            pytest.param(("16-31", "48-63"), id="CPUs between them belong to other nodes"),
            pytest.param(("0-7", "N/A"), id="one is not known"),
        ],
    )
    def test_what_is_not_certain_is_unknown(self, cpus: tuple[str, ...]) -> None:
        assert set(self.numa(*cpus)) == {UNKNOWN}

    def test_the_matrix_must_agree(self) -> None:
        assert set(self.numa("0-3", "4-7", between="NODE")) == {UNKNOWN}
        assert set(self.numa("0-3", "0-3", "4-7", inside="SYS")) == {UNKNOWN}

    def test_the_reader_gets_notes(self) -> None:
        assert "the text has no NUMA nodes: they follow from the CPU affinities" in read(sample("dgx1-v100")).notes
        assert any("do not follow" in note for note in read(matrix("X PHB", "PHB X")).notes)


def test_rates_are_those_of_the_product() -> None:
    layout = parse(sample("dgx-h100-h200-8gpu-12nic"), "NVIDIA H100 80GB HBM3")
    assert (layout.nvlink_mbps, layout.pcie_mbps) == (20_600, 48_000)
    assert read(sample("dgx-h100-h200-8gpu-12nic"), "NVIDIA-H100-80GB-HBM3").notes == ()


def test_without_a_product_assumptions_are_noted() -> None:
    reading = read(sample("dgx1-v100"))
    assert (reading.layout.nvlink_mbps, reading.layout.pcie_mbps) == (20_000, 12_000)
    rates = "NVLink 20000 MB/s per link, PCIe 12000 MB/s per GPU, 10000 MB/s between NUMA nodes"
    assert f"the text has no rates; assumed: {rates}" in reading.notes


@pytest.mark.parametrize(
    ("product", "message"), [("X9000", "'X9000' is not known"), ("L40S", "has 0 NVLinks, and the node reports 2")]
)
def test_a_product_that_is_unknown_or_cannot_be_is_refused(product: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message) as caught:
        parse(sample("dgx1-v100"), product)
    assert caught.value.field == "product"


BAD = [
    pytest.param("", "text", "no line has the columns GPU0", id="empty"),
    pytest.param("GPU0 X PHB\nGPU1 PHB X\n", "text", "no line has the columns", id="no head"),
    pytest.param(
        matrix("X PHB", "SYS X"), "line 3, GPU1, column GPU0", "is SYS, and PHB the other way, in line 2", id="lop"
    ),
    pytest.param(
        matrix("X PHB", "NV2 X"), "line 3, GPU1, column GPU0", "is NV2, and PHB the other way", id="lop nvlink"
    ),
    pytest.param(
        matrix("X FOO", "FOO X"), "line 2, GPU0, column GPU1", "'FOO' is not one of X, NV1 to NV36, PSB", id="word"
    ),
    pytest.param(matrix("X NV0", "NV0 X"), "line 2, GPU0, column GPU1", "'NV0' is not one of", id="no links"),
    pytest.param(matrix("X NV37", "NV37 X"), "line 2, GPU0, column GPU1", "'NV37' is not one of", id="too many links"),
    pytest.param(matrix("X OK", "OK X"), "line 2, GPU0, column GPU1", "'OK' is not one of", id="topo -p2p"),
    pytest.param(matrix("X X", "PHB X"), "line 2, GPU0, column GPU1", "X stands where a device meets itself", id="x"),
    pytest.param(matrix("PHB PHB", "PHB X"), "line 2, GPU0, column GPU0", "X stands where a device", id="no x"),
    pytest.param(matrix("X PHB", "PHB"), "line 3, GPU1", "has 1 of 2 cells", id="cell missing"),
    pytest.param(
        matrix("X PHB PHB", "PHB X"), "line 2, GPU0", "has 1 cells after its devices: PHB; line 1 has 0", id="more"
    ),
    pytest.param(
        " GPU0 NIC0\nGPU0 X PHB\nNIC0 PHB X 0-7\n", "line 3, NIC0", "has '0-7' after its 2 cells", id="nic more"
    ),
    pytest.param(
        " GPU0 NIC0\nGPU0 X NV4\nNIC0 NV4 X\n", "line 2, GPU0, column NIC0", "NV4 is between GPUs", id="nic nv"
    ),
    pytest.param(
        " GPU0 GPU1\nGPU0 X PHB\n", "after line 2", "the text ends where rows are missing: GPU1", id="row missing"
    ),
    pytest.param(
        " GPU0 GPU1\nGPU0 X PHB\nLegend:\n",
        "after line 2",
        "line 3 is 'Legend:' where rows are missing",
        id="legend early",
    ),
    pytest.param(" GPU0\n", "after line 1", "the text ends where rows are missing: GPU0", id="head alone"),
    pytest.param(
        " GPU0 GPU1\nGPU0 X PHB\nGPU0 X PHB\n", "line 3", "a second row of GPU0, after line 2", id="row twice"
    ),
    pytest.param(" GPU0 GPU2\nGPU0 X PHB\nGPU2 PHB X\n", "line 1", "GPU0, GPU1 and so on, without a gap", id="gap"),
    pytest.param(" GPU0 NIC0 GPU1\n", "line 1", "must begin with GPU0, GPU1", id="nic between"),
    pytest.param(" GPU0 NIC0 NIC0\n", "line 1", "a device has two columns", id="nic twice"),
    pytest.param(" GPU0 CPU Affinity Colour\nGPU0 X 0-7 red\n", "line 1", "Colour is not expected", id="column"),
    pytest.param(
        matrix("X 0-7 64", columns="CPU Affinity NUMA Affinity"),
        "line 2, GPU0, column NUMA Affinity",
        "NUMA node 64 is not from 0 to 63",
        id="numa",
    ),
    pytest.param(
        matrix("X 0-7 -1", columns="CPU Affinity NUMA Affinity"),
        "line 2, GPU0, column NUMA Affinity",
        "'-1' is no list of numbers",
        id="numa sign",
    ),
    pytest.param(
        matrix("X 7-0", columns="CPU Affinity"), "line 2, GPU0, column CPU Affinity", "'7-0' is no list", id="backwards"
    ),
    pytest.param(
        matrix("X 0", columns="CPU Affinity NUMA Affinity"),
        "line 2, GPU0",
        "has 1 cells after its devices: 0; line 1 has 2",
        id="which column is it",
    ),
    pytest.param(
        matrix("X PIX", "PIX X") + "Legend:\n X = Self\n SYS = a\n PIX = b\n", "legend", "topo -mp", id="topo -mp"
    ),
]


@pytest.mark.parametrize(("text", "field", "message"), BAD)
def test_what_cannot_be_read_in_full_is_refused_with_its_place(text: str, field: str, message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        parse(text)
    assert caught.value.field == field
    assert message in caught.value.message


def test_the_truncated_sample_names_the_rows_that_are_missing() -> None:
    with pytest.raises(LayoutError, match="GPU4, GPU5, GPU6, GPU7, NIC0") as caught:
        parse(sample("truncated-xeon-8gpu-pix-phb-1nic"))
    assert caught.value.field == "after line 5"


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_text_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([path.read_text() for path in sorted(WIRINGS.glob("*.txt"))]))
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 12))
    text = text[:at] + data.draw(st.text("\t\n X019-,NVGPUSYBH#\u0661", max_size=6)) + text[at + cut :]
    try:
        layout = nvidia_smi.parse(text)
    except LayoutError:
        return
    assert layout.gpus >= 1
