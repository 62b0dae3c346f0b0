# SPDX-License-Identifier: Apache-2.0
"""NCCL's topology XML becomes a layout and comes back from one; what it cannot express, or has wrong, is refused."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.core.devices.layout import BOARD, NODE, PHB, PIX, PXB, SYS, UNKNOWN, Layout, LayoutError, Nic
from dovetail.core.devices.products import assumed_layout
from dovetail.topology import nvidia_smi
from dovetail.topology.nccl_xml import parse, read
from dovetail.topology.nccl_xml_write import coarse, write
from tests.paths import WIRINGS

CLASS = 'class="0x030200"'


def sample(name: str) -> str:
    return (WIRINGS / f"{name}.xml").read_text()


def system(*cpus: str) -> str:
    return f'<system version="1">{"".join(cpus)}</system>'


def cpu(numa: int, *inside: str, make: str = "") -> str:
    return f'<cpu numaid="{numa}" {make}>{"".join(inside)}</cpu>'


def bridge(number: int, *inside: str) -> str:
    return f'<pci busid="ffff:ff:{number:02x}.0" class="0x060400">{"".join(inside)}</pci>'


def gpu(bus: int, inside: str = "", more: str = "") -> str:
    return f'<pci busid="0000:{bus:02x}:00.0" {CLASS} {more}>{inside}</pci>'


def nic(bus: int, nets: str = "", more: str = 'class="0x020000"') -> str:
    return f'<pci busid="0001:{bus:02x}:00.0" {more}><nic>{nets}</nic></pci>'


@pytest.mark.parametrize(
    ("name", "numa", "first_row", "nics", "rates"),
    [
        ("aws-p4d-24xl", (0, 0, 0, 0, 1, 1, 1, 1), (BOARD, PIX, PHB, PHB, SYS, SYS, SYS, SYS), 4, (12_000, 10_000)),
        ("aws-p4de-24xl", (0, 0, 0, 0, 1, 1, 1, 1), (BOARD, PIX, PHB, PHB, SYS, SYS, SYS, SYS), 4, (12_000, 10_000)),
        ("azure-ndv2", (0, 0, 0, 0, 1, 1, 1, 1), (BOARD, PHB, PHB, PHB, SYS, SYS, SYS, SYS), 1, (24_000, 10_000)),
        ("azure-ndv4", (1, 1, 0, 0, 3, 3, 2, 2), (BOARD, PIX, SYS, SYS, SYS, SYS, SYS, SYS), 8, (24_000, 16_000)),
        ("azure-ndv5", (0, 0, 0, 0, 1, 1, 1, 1), (BOARD, PHB, PHB, PHB, SYS, SYS, SYS, SYS), 8, (48_000, 22_000)),
        ("azure-ncv4", (0, 1, 2, 3), (BOARD, SYS, SYS, SYS), 1, (12_000, 24_000)),
    ],
)
def test_published_files(
    name: str, numa: tuple[int, ...], first_row: tuple[int, ...], nics: int, rates: tuple[int, int]
) -> None:
    layout = parse(sample(name))
    assert (layout.numa, layout.pcie[0], len(layout.nics)) == (numa, first_row, nics)
    assert (layout.pcie_mbps, layout.socket_mbps) == rates
    assert parse(write(layout)) == layout


def test_a_file_without_device_kinds_is_refused() -> None:
    with pytest.raises(LayoutError, match="names no GPU: 9 <pci> have neither a class nor a <gpu>"):
        parse(sample("aws-g5.48xl"))


def test_levels_follow_the_tree() -> None:
    layout = parse(
        system(
            cpu(0, bridge(1, bridge(2, gpu(1), gpu(2)), bridge(3, gpu(3), nic(1)), gpu(4)), gpu(5)),
            cpu(1, gpu(6), nic(2)),
        )
    )
    assert layout.pcie[0] == (BOARD, PIX, PXB, PXB, PHB, SYS)
    assert [nic.levels for nic in layout.nics] == [(PXB, PXB, PIX, PXB, PHB, SYS), (SYS, SYS, SYS, SYS, SYS, PHB)]
    assert [nic.numa for nic in layout.nics] == [0, 1]


def test_an_unknown_numa_node_is_minus_one() -> None:
    assert parse(system(cpu(-1, gpu(1)))).numa == (UNKNOWN,)


def test_gpus_are_numbered_by_dev_else_by_bus_id() -> None:
    by_bus = system(cpu(0, gpu(9)), cpu(1, gpu(2)))
    assert parse(by_bus).numa == (1, 0)
    by_dev = system(cpu(0, gpu(9, '<gpu dev="0" sm="80"/>')), cpu(1, gpu(2, '<gpu dev="1" sm="80"/>')))
    assert parse(by_dev).numa == (0, 1)


def test_each_net_is_a_nic_with_its_speed() -> None:
    nets = '<net dev="1" speed="200000" gdr="1"/><net dev="0" speed="-1" gdr="0"/>'
    virtual = '<nic><net dev="2" speed="100000" gdr="0"/></nic>'
    layout = parse(system(cpu(0, gpu(1), nic(1, nets), virtual)))
    assert [(nic.speed_mbps, nic.rdma) for nic in layout.nics] == [(0, False), (25_000, True), (12_500, False)]
    assert {nic.levels for nic in layout.nics} == {(PHB,)}


def test_nets_that_are_merged_into_another_do_not_count() -> None:
    merged = '<net dev="0" net="0" speed="100000"/>'
    virtual = '<nic><net dev="2" net="1" speed="200000" gdr="1"/></nic>'
    (found,) = parse(system(cpu(0, gpu(1), nic(1, merged), nic(2, merged.replace('"0" n', '"1" n')), virtual))).nics
    assert found.speed_mbps == 25_000


@pytest.mark.parametrize(
    ("attributes", "rdma"),
    [
        ('class="0x020700"', True),
        ('class="0x020000"', False),
        ('class="0x020000" vendor="0x15b3"', True),
        ('class="0x020000" vendor="0x1d0f" device="0xefa1"', True),
        ('class="0x020000" vendor="0x1d0f" device="0xec20"', False),
    ],
)
def test_a_nic_speaks_rdma_by_its_class_or_make(attributes: str, rdma: bool) -> None:
    (found,) = parse(system(cpu(0, gpu(1), nic(1, more=attributes)))).nics
    assert found.rdma is rdma


class TestNvlinks:
    def pair(self, first: str, second: str) -> str:
        inside = (f'<gpu dev="{dev}" sm="90">{links}</gpu>' for dev, links in enumerate((first, second)))
        return system(cpu(0, *(gpu(bus, each) for bus, each in enumerate(inside, 1))))

    def link(self, target: str, count: int, kind: str = "0x030200") -> str:
        return f'<nvlink target="{target}" count="{count}" tclass="{kind}"/>'

    def test_direct_links_are_counted(self) -> None:
        layout = parse(self.pair(self.link("0000:02:00.0", 4), self.link("0000:01:00.0", 4)))
        assert (layout.nvlinks, layout.nvlink_mbps) == (((0, 4), (4, 0)), 20_600)

    def test_links_to_switches_are_added_up_and_the_lesser_sum_counts(self) -> None:
        two = self.link("0000:c8:00.0", 6, "0x068000") + self.link("0000:c9:00.0", 6, "0x068000")
        layout = parse(self.pair(two, self.link("0000:c8:00.0", 10, "0x068000")))
        assert layout.nvlinks == ((0, 10), (10, 0))

    def test_links_that_join_no_two_gpus_are_left_out_and_named(self) -> None:
        reading = read(self.pair(self.link("0000:01:00.0", 12), self.link("0000:77:00.0", 3)))
        assert reading.layout.nvlinks == ((0, 0), (0, 0))
        assert "NVLinks that lead to the GPU itself are not counted: GPU0" in reading.notes
        assert "NVLinks that lead to no GPU of the file are not counted: GPU1" in reading.notes

    def test_both_ends_must_agree(self) -> None:
        with pytest.raises(LayoutError, match="GPU0 has 4 to GPU1, and GPU1 2 to GPU0"):
            parse(self.pair(self.link("0000:02:00.0", 4), self.link("0000:01:00.0", 2)))

    def test_an_unknown_kind_of_target_is_refused(self) -> None:
        with pytest.raises(LayoutError, match="'0x010802' is neither a GPU"):
            parse(self.pair(self.link("0000:02:00.0", 4, "0x010802"), ""))

    def test_a_file_that_does_not_speak_of_them_takes_them_from_the_product(self) -> None:
        reading = read(sample("aws-p4d-24xl"), "A100-SXM4-40GB")
        assert reading.layout.nvlinks[0] == (0, *(12,) * 7)
        assert reading.layout.assumed
        assert "the file does not speak of NVLinks: what A100-SXM4-40GB has is assumed" in reading.notes

    def test_without_a_product_there_are_no_rates_and_a_note(self) -> None:
        reading = read(sample("aws-p4d-24xl"))
        assert not any(map(any, reading.layout.nvlinks))
        assert not reading.layout.assumed
        assert any("no product is named: none are assumed" in note for note in reading.notes)

    def test_the_file_overrides_the_product(self) -> None:
        text = self.pair(self.link("0000:02:00.0", 4), self.link("0000:01:00.0", 4))
        assert parse(text, "H200-NVL").nvlinks == ((0, 4), (4, 0))
        with pytest.raises(LayoutError, match="a GPU of L40S has 0 NVLinks"):
            parse(text, "L40S")


@pytest.mark.parametrize(
    ("slot", "mbps"),
    [
        ('link_speed="8 GT/s" link_width="16"', 12_000),
        ('link_speed="32.0 GT/s PCIe" link_width="16"', 48_000),
        ('link_speed="16.0 GT/s PCIe" link_width="8"', 12_000),
        ('link_speed="64.0 GT/s PCIe" link_width="0"', 96_000),
        ('link_speed="2.5 GT/s" link_width="1"', 187),
    ],
)
def test_slots(slot: str, mbps: int) -> None:
    assert parse(system(cpu(0, gpu(1, more=slot)))).pcie_mbps == mbps


@pytest.mark.parametrize("speed", ["", "Unknown", "Unknown speed"])
def test_a_slot_of_unknown_speed_has_the_product_s_or_an_assumed_one(speed: str) -> None:
    text = system(cpu(0, gpu(1, more=f'link_speed="{speed}" link_width="0"')))
    assert read(text).notes[-1] == "not in the file, so assumed: PCIe 12000 MB/s per GPU"
    assert parse(text, "H100-SXM5").pcie_mbps == 48_000


def test_the_slowest_slot_counts_with_a_note() -> None:
    slots = (f'link_speed="{speed} GT/s" link_width="16"' for speed in (16, 8))
    reading = read(system(cpu(0, *(gpu(bus, more=slot) for bus, slot in enumerate(slots, 1)))))
    assert reading.layout.pcie_mbps == 12_000
    assert "slots differ, from 12000 to 24000 MB/s: the slowest counts for all" in reading.notes


@pytest.mark.parametrize(
    ("make", "mbps"),
    [
        (("GenuineIntel", 6, 79), 6_000),
        (("GenuineIntel", 6, 85), 10_000),
        (("GenuineIntel", 6, 143), 22_000),
        (("GenuineIntel", 6, 173), 40_000),
        (("GenuineIntel", 6, 207), 40_000),
        (("AuthenticAMD", 23, 49), 16_000),
        (("AuthenticAMD", 25, 17), 24_000),
        (("AuthenticAMD", 175, 1), 24_000),
        (("AuthenticAMD", 26, 2), 32_000),
        (("CentaurHauls", 7, 1), 6_000),
        (("  Shanghai  ", 7, 91), 9_000),
    ],
)
def test_sockets_by_the_make_of_the_cpu(make: tuple[str, int, int], mbps: int) -> None:
    attributes = f'arch="x86_64" vendor="{make[0]}" familyid="{make[1]}" modelid="{make[2]}"'
    assert parse(system(cpu(0, gpu(1), make=attributes))).socket_mbps == mbps


def test_sockets_of_other_architectures_and_of_no_make() -> None:
    assert parse(system(cpu(0, gpu(1), make='arch="arm64"'))).socket_mbps == 6_000
    assert parse(system(cpu(0, gpu(1), make='arch="ppc64"'))).socket_mbps == 32_000
    notes = read(system(cpu(0, gpu(1)), cpu(1))).notes
    assert notes[-1].endswith("10000 MB/s between NUMA nodes")


def test_what_is_not_known_is_named() -> None:
    assert "<quantum> is not known and not read" in read(system(cpu(0, gpu(1), "<quantum/>"))).notes


BOMB = '<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]><system version="1">&c;</system>'
BAD = [
    pytest.param("", "line 1", "is not XML: no element found", id="empty"),
    pytest.param('<system version="1">\n<cpu></system>', "line 2", "is not XML: mismatched tag", id="not XML"),
    pytest.param(BOMB, "line 1", "declares a document type", id="entities"),
    pytest.param("<a>" * 40, "line 1", "nested more than 32 deep", id="deep"),
    pytest.param("<graphs version='1'/>", "line 1", "is not <system version='1'>", id="another file of NCCL"),
    pytest.param("<system version='2'/>", "line 1", "is not <system version='1'>", id="version"),
    pytest.param(system(), "system", "names no GPU: no <pci> has a <gpu>", id="nothing"),
    pytest.param(system(cpu(0, nic(1))), "system", "names no GPU", id="no GPU"),
    pytest.param(system(cpu(64, gpu(1))), "line 1, <cpu numaid>", "64 is not from -1 to 63", id="numa"),
    pytest.param(system(f"<cpu>{gpu(1)}</cpu>"), "line 1, <cpu numaid>", "is missing", id="no numa"),
    pytest.param(
        system('<cpu numaid="zero"/>'), "line 1, <cpu numaid>", "'zero' is not a whole number", id="numa is a word"
    ),
    pytest.param(system(cpu(0, gpu(1)), cpu(0)), "line 1, <cpu numaid>", "0 is that of line 1 too", id="numa twice"),
    pytest.param(
        system(cpu(0, make='host_hash="0x1"'), cpu(1, make='host_hash="0x2"')), "system", "of several hosts", id="hosts"
    ),
    pytest.param(system(cpu(0, gpu(1), gpu(1))), "line 1", "0000:01:00.0 is that of line 1 too", id="bus id twice"),
    pytest.param(
        system(cpu(0, gpu(1, '<gpu dev="0" sm="80"/>'), gpu(2, '<gpu dev="0" sm="80"/>'))),
        "line 1",
        "0 is that of",
        id="dev",
    ),
    pytest.param(
        system(cpu(0, f'<pci busid="3b:0" {CLASS}/>')), "line 1, <pci busid>", "'3b:0' is not such as", id="bus id"
    ),
    pytest.param(
        system(cpu(0, gpu(1, more='link_speed="9 GT/s"'))),
        "line 1, <pci link_speed>",
        "'9 GT/s' is not one of",
        id="speed",
    ),
    pytest.param(
        system(cpu(0, gpu(1, more='link_speed="8 GT/s" link_width="x16"'))),
        "line 1, <pci link_width>",
        "'x16' is not a whole number",
        id="width",
    ),
    pytest.param(
        system(cpu(0, gpu(1, '<gpu dev="0"/><gpu dev="1"/>'))), "line 1", "several <gpu> (MLOPart)", id="two in one"
    ),
]


@pytest.mark.parametrize(("text", "field", "message"), BAD)
def test_what_is_wrong_is_refused_with_its_place(text: str, field: str, message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        parse(text)
    assert caught.value.field == field
    assert message in caught.value.message


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Layouts that the XML can express: devices in a random tree, links direct or through switches, NCCL's rates."""
    gpus, nics = draw(st.integers(1, 8)), draw(st.integers(0, 5))
    place = st.tuples(st.integers(-1, 3), st.integers(0, 3), st.integers(0, 2))
    places = draw(st.lists(place, min_size=gpus + nics, max_size=gpus + nics))

    def level(a: int, b: int) -> int:
        (numa, tree, group), (other_numa, other_tree, other_group) = places[a], places[b]
        if numa != other_numa:
            return SYS
        # Tree 0 stands for the CPU itself.
        if tree != other_tree or not tree:
            return PHB
        return PIX if group == other_group else PXB

    links = [[0] * gpus for _ in range(gpus)]
    ends = [draw(st.sampled_from([0, 12, 18])) for _ in range(gpus)] if draw(st.booleans()) else []
    for i, j in combinations(range(gpus), 2):
        links[i][j] = links[j][i] = min(ends[i], ends[j]) if ends else draw(st.integers(0, 2))
    return Layout(
        numa=tuple(numa for numa, _, _ in places[:gpus]),
        pcie=tuple(tuple(BOARD if i == j else level(i, j) for j in range(gpus)) for i in range(gpus)),
        nvlinks=tuple(map(tuple, links)),
        nics=tuple(
            Nic(
                tuple(level(gpus + at, i) for i in range(gpus)),
                places[gpus + at][0],
                draw(st.sampled_from([0, 1_250, 50_000])),
                draw(st.booleans()),
            )
            for at in range(nics)
        ),
        nvlink_mbps=draw(st.sampled_from([18_000, 20_000, 12_000, 20_600, 40_100])),
        pcie_mbps=draw(st.sampled_from([750, 6_000, 12_000, 24_000, 48_000, 96_000])),
        socket_mbps=draw(st.sampled_from([6_000, 9_000, 10_000, 16_000, 22_000, 24_000, 32_000, 40_000])),
    )


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(layouts())
def test_what_is_written_is_read_back(layout: Layout) -> None:
    assert parse(write(layout)) == layout
    assert coarse(layout) == layout


@pytest.mark.parametrize(
    "name",
    sorted(
        path.stem
        for path in WIRINGS.glob("*.txt")
        # One has SYS inside of a NUMA node, one knows no NUMA nodes, one is cut off.
        if not path.stem.startswith(("rtx4090", "a100-custom", "truncated"))
    ),
)
def test_a_layout_from_nvidia_smi_survives_as_far_as_nccl_distinguishes_levels(name: str) -> None:
    layout = coarse(nvidia_smi.parse((WIRINGS / f"{name}.txt").read_text()))
    assert parse(write(layout)) == layout


def test_coarse_takes_unknown_levels_from_third_devices_and_numa_nodes() -> None:
    layout = coarse(nvidia_smi.parse((WIRINGS / "dgx-a100-12nic.txt").read_text()))
    assert layout.pcie[0][:3] == (BOARD, PXB, SYS)
    assert {level for row in layout.pcie for level in row} == {BOARD, PXB, SYS}
    flat = Layout(
        (0, 0, 1), ((BOARD, NODE, UNKNOWN), (NODE, BOARD, UNKNOWN), (UNKNOWN, UNKNOWN, BOARD)), ((0,) * 3,) * 3
    )
    assert coarse(flat).pcie == ((BOARD, PHB, SYS), (PHB, BOARD, SYS), (SYS, SYS, BOARD))


PAIR = Layout((0, 0), ((BOARD, PHB), (PHB, BOARD)), ((0, 4), (4, 0)))


def of_levels(*levels: int) -> Layout:
    """Four GPUs of one NUMA node with these levels between 0-1, 0-2, 0-3, 1-2, 1-3, 2-3."""
    matrix = [[BOARD] * 4 for _ in range(4)]
    for (i, j), level in zip(combinations(range(4), 2), levels, strict=True):
        matrix[i][j] = matrix[j][i] = level
    return Layout((0,) * 4, tuple(map(tuple, matrix)), ((0,) * 4,) * 4)


@pytest.mark.parametrize(
    ("layout", "field", "message"),
    [
        pytest.param(of_levels(NODE, PHB, PHB, PHB, PHB, PHB), "pcie[0][1]", "is NODE; the other", id="NODE"),
        pytest.param(of_levels(UNKNOWN, PHB, PHB, PHB, PHB, PHB), "pcie[0][1]", "is UNKNOWN; the other", id="UNKNOWN"),
        pytest.param(of_levels(BOARD, PHB, PHB, PHB, PHB, PHB), "pcie[0][1]", "is BOARD; the other", id="BOARD"),
        pytest.param(of_levels(SYS, PHB, PHB, PHB, PHB, PHB), "pcie[0][1]", "is SYS; the other", id="SYS inside"),
        pytest.param(of_levels(PIX, PIX, PHB, PHB, PHB, PHB), "pcie[1][2]", "imply PIX", id="no tree"),
        pytest.param(replace(PAIR, assumed=True), "layout", "was assumed", id="assumed"),
        pytest.param(Layout((), (), ()), "layout", "has no GPU", id="empty"),
        pytest.param(replace(PAIR, nvlink_mbps=19_000), "nvlink_mbps", "19000 is none of NCCL's", id="nvlink rate"),
        pytest.param(replace(PAIR, pcie_mbps=7_000), "pcie_mbps", "7000 is no PCIe rate", id="pcie rate"),
        pytest.param(replace(PAIR, socket_mbps=7_000), "socket_mbps", "7000 is none of NCCL's", id="socket rate"),
        pytest.param(
            replace(of_levels(*(PHB,) * 6), nvlinks=((0, 18, 0, 1), (18, 0, 1, 0), (0, 1, 0, 18), (1, 0, 18, 0))),
            "nvlinks[0][2]",
            "0 links: too many in all without switches",
            id="two switches",
        ),
    ],
)
def test_a_layout_that_the_xml_cannot_express_is_refused(layout: Layout, field: str, message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        write(layout)
    assert caught.value.field == field
    assert message in caught.value.message


def test_a_file_for_nccl_has_the_bus_ids_of_the_node_and_the_product_s_capability() -> None:
    nics = (Nic((PHB, PHB), 0, 25_000),)
    text = write(replace(PAIR, nics=nics), "V100-SXM2", ("0000:3B:00.0", "0000:5e:00.0"), ("0000:5f:00.0",))
    assert all(f'busid="0000:{bus}:00.0"' in text for bus in ("3b", "5e", "5f"))
    assert 'sm="70"' in text
    assert 'sm="80"' in write(PAIR)


def test_grace_is_written_as_arm() -> None:
    assumed = assumed_layout("NVIDIA-GB200", 4)
    assert assumed is not None
    layout = replace(coarse(assumed), assumed=False)
    text = write(layout, "GB200")
    assert 'arch="arm64"' in text
    assert parse(text) == layout


@pytest.mark.parametrize(
    ("bus_ids", "message"),
    [
        (("0000:3b:00.0",), "must be 2 different ones"),
        (("0000:3b:00.0",) * 2, "must be 2 different ones"),
        (("0000:3b:00.0", '"/>'), "is not such as"),
    ],
)
def test_wrong_bus_ids_are_refused(bus_ids: tuple[str, ...], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        write(PAIR, gpu_bus_ids=bus_ids)


def test_nics_are_named_one_by_one() -> None:
    layout = replace(PAIR, nics=(Nic((PHB, PHB), 0), Nic((PHB, PHB), 0)))
    assert re.findall(r'<net name="(\w+)"', write(layout, nic_names=("mlx5_0", "mlx5_9"))) == ["mlx5_0", "mlx5_9"]
    with pytest.raises(LayoutError, match="nic_names: names 1 NICs of 2"):
        write(layout, nic_names=("mlx5_0",))


def test_a_product_with_other_nvlinks_is_refused() -> None:
    with pytest.raises(LayoutError, match="20000 is not what H100-SXM5 has"):
        write(PAIR, "H100-SXM5")


@settings(max_examples=300, deadline=None)
@given(st.data())
@pytest.mark.slow
def test_a_damaged_file_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([path.read_text() for path in sorted(WIRINGS.glob("*.xml"))]))
    at, cut = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 12))
    text = text[:at] + data.draw(st.text('<>/="x 019ab.:-\u0661', max_size=6)) + text[at + cut :]
    try:
        layout = parse(text)
    except LayoutError:
        return
    assert layout.gpus >= 1
