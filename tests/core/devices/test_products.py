# SPDX-License-Identifier: Apache-2.0
"""Products are found by their names, have NCCL's rates, and a node of them has its likely wiring, or none."""

from __future__ import annotations

import pytest

from dovetail.core.devices.layout import BOARD, NODE, PIX, PXB, SYS, UNKNOWN, LayoutError
from dovetail.core.devices.products import PRODUCTS, LinkRates, assumed_layout, find, rates
from dovetail.topology import nccl_xml, nvidia_smi
from tests.paths import WIRINGS

HALVES = (0, 0, 0, 0, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100-SXM5"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "H100-SXM5"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100-SXM4-40GB"),
        ("Tesla-V100-SXM2-32GB", "V100-SXM2"),
        ("Tesla T4", "T4"),
        ("H100-NVL", "H100-NVL"),
    ],
)
def test_a_product_goes_by_its_model_its_label_and_its_name(name: str, model: str) -> None:
    found = find(name)
    assert found is not None
    assert found.model == model


@pytest.mark.parametrize("name", ["", "H100", "NVIDIA-H100-80GB-HBM3e", "MI300X"])
def test_similar_names_are_not_known(name: str) -> None:
    assert find(name) is None


def test_no_two_products_share_a_name() -> None:
    names = [name.casefold() for product in PRODUCTS for name in {product.model, *product.names}]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("product", "nvlink_mbps", "pcie_mbps"),
    [
        ("P100-SXM2", 18_000, 12_000),
        ("V100-SXM2", 20_000, 12_000),
        ("A100-SXM4-80GB", 20_000, 24_000),
        ("A40", 12_000, 24_000),
        ("H200-SXM5", 20_600, 48_000),
        ("B200", 40_100, 48_000),
        ("GB300", 40_100, 96_000),
        ("A2", 12_000, 12_000),
    ],
)
def test_rates(product: str, nvlink_mbps: int, pcie_mbps: int) -> None:
    assert rates(product, 0) == LinkRates(nvlink_mbps, pcie_mbps)


def test_rates_without_a_product_state_that_they_are_assumed() -> None:
    assert rates(None, 4).assumed == ("NVLink 20000 MB/s per link", "PCIe 12000 MB/s per GPU")
    assert rates(None, 0).assumed == ("PCIe 12000 MB/s per GPU",)


def test_more_nvlinks_than_a_gpu_has_are_another_product() -> None:
    with pytest.raises(LayoutError, match="a GPU of A100-SXM4-80GB has 12 NVLinks, and the node reports 18"):
        rates("A100-SXM4-80GB", 18)


def links(product: str, gpus: int) -> tuple[int, ...]:
    """The NVLinks of GPU0 in the assumed layout."""
    layout = assumed_layout(product, gpus)
    assert layout is not None
    assert layout.assumed
    return layout.nvlinks[0]


@pytest.mark.parametrize(
    ("product", "gpus", "count"),
    [
        ("NVIDIA-H100-80GB-HBM3", 8, 18),
        ("NVIDIA-H100-80GB-HBM3", 7, 18),
        ("NVIDIA-A100-SXM4-40GB", 16, 12),
        ("Tesla-V100-SXM3-32GB", 16, 6),
        ("NVIDIA-H800", 8, 8),
        ("NVIDIA-B200", 8, 18),
        ("NVIDIA-GB200", 4, 18),
        ("NVIDIA-GB300", 2, 18),
        ("NVIDIA-A100-SXM4-40GB", 4, 4),
        ("NVIDIA-H100-80GB-HBM3", 4, 6),
        ("NVIDIA-H100-NVL", 4, 0),
        ("NVIDIA-L40S", 8, 0),
    ],
)
def test_all_pairs_have_the_links_of_the_product(product: str, gpus: int, count: int) -> None:
    assert links(product, gpus) == (0, *(count,) * (gpus - 1))


def test_the_cube_mesh_is_that_of_a_dgx_1() -> None:
    real = nvidia_smi.parse((WIRINGS / "dgx1-v100.txt").read_text())
    layout = assumed_layout("Tesla-V100-SXM2-16GB", 8)
    assert layout is not None
    assert (layout.nvlinks, layout.numa) == (real.nvlinks, real.numa)
    assert [sum(row) for row in layout.nvlinks] == [6] * 8
    older = assumed_layout("Tesla-P100-SXM2-16GB", 8)
    assert older is not None
    assert [sum(row) for row in older.nvlinks] == [4] * 8


@pytest.mark.parametrize(
    ("product", "gpus"),
    [
        pytest.param("AMD-MI300X", 8, id="not in the table"),
        pytest.param("Tesla-V100-SXM2-16GB", 4, id="several boards of four exist"),
        pytest.param("NVIDIA-H100-80GB-HBM3", 16, id="more than switches join"),
        pytest.param("NVIDIA-GB200", 8, id="more than a tray has"),
        pytest.param("NVIDIA-GH200-480GB", 2, id="superchips"),
        pytest.param("NVIDIA-L40S", 17, id="more than a node has"),
        pytest.param("NVIDIA-L40S", 0, id="none"),
        pytest.param("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", 7, id="MIG counts instances"),
    ],
)
def test_where_it_is_anybody_s_guess_there_is_no_layout(product: str, gpus: int) -> None:
    assert assumed_layout(product, gpus) is None


def test_cards_are_bridged_where_that_is_known() -> None:
    layout = assumed_layout("NVIDIA-A100-80GB-PCIe", 4, bridges=[(0, 1)])
    assert layout is not None
    assert layout.nvlinks == ((0, 12, 0, 0), (12, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0))
    shared = assumed_layout("NVIDIA-H200-NVL", 4, bridges=[(i, j) for i in range(4) for j in range(i)])
    assert shared is not None
    assert shared.nvlinks[0] == (0, 6, 6, 6)


@pytest.mark.parametrize(
    ("product", "bridge"), [("NVIDIA-L40S", (0, 1)), ("NVIDIA-A40", (0, 4)), ("NVIDIA-A40", (1, 1))]
)
def test_a_bridge_that_cannot_be_is_refused(product: str, bridge: tuple[int, int]) -> None:
    with pytest.raises(LayoutError, match="cannot be joined by a bridge"):
        assumed_layout(product, 4, bridges=[bridge])


def test_where_the_host_is_not_known_gpus_are_two_halves() -> None:
    layout = assumed_layout("NVIDIA-L40S", 4)
    assert layout is not None
    assert layout.numa == (0, 0, 1, 1)
    assert layout.pcie[0] == (BOARD, NODE, SYS, SYS)
    assert layout.nics == ()


@pytest.mark.parametrize("gpus", [1, 2, 3, 5])
def test_few_or_odd_gpus_are_not_halved(gpus: int) -> None:
    layout = assumed_layout("NVIDIA-L40S", gpus)
    assert layout is not None
    assert set(layout.numa) == {UNKNOWN}


@pytest.mark.parametrize(
    ("host", "product", "sample"),
    [
        ("p4d.24xlarge", "NVIDIA-A100-SXM4-40GB", "aws-p4d-24xl"),
        ("Standard_ND96asr_v4", "NVIDIA-A100-SXM4-40GB", "azure-ndv4"),
        ("Standard_ND96isr_H100_v5", "NVIDIA-H100-80GB-HBM3", "azure-ndv5"),
    ],
)
def test_a_known_host_is_as_its_maker_publishes_it(host: str, product: str, sample: str) -> None:
    real = nccl_xml.parse((WIRINGS / f"{sample}.xml").read_text())
    layout = assumed_layout(product, 8, host)
    assert layout is not None
    assert (layout.numa, layout.socket_mbps) == (real.numa, real.socket_mbps)
    near = [[gpu for gpu, level in enumerate(nic.levels) if level == PIX] for nic in layout.nics]
    assert near == [[gpu for gpu, level in enumerate(nic.levels) if level == PIX] for nic in real.nics]


def test_a_dgx_a100_is_as_it_was_seen() -> None:
    real = nvidia_smi.parse((WIRINGS / "dgx-a100-12nic.txt").read_text())
    layout = assumed_layout("NVIDIA-A100-SXM4-80GB", 8, "DGXA100-920-23687-2530-000")
    assert layout is not None
    assert (layout.numa, layout.nvlinks) == (real.numa, real.nvlinks)
    assert [nic.levels for nic in layout.nics] == [nic.levels for nic in real.nics if PXB in nic.levels]


@pytest.mark.parametrize(("host", "gpus"), [("p4d.24xlarge", 4), ("p5.48xlarge", 8), ("p4d.24xlargex", 8)])
def test_a_host_that_does_not_fit_the_labels_is_not_used(host: str, gpus: int) -> None:
    layout = assumed_layout("NVIDIA-A100-SXM4-40GB", gpus, host)
    assert layout == assumed_layout("NVIDIA-A100-SXM4-40GB", gpus)


def test_sockets_of_a_grace_tray_are_arm() -> None:
    layout = assumed_layout("NVIDIA-GB200", 4)
    assert layout is not None
    assert (layout.numa, layout.socket_mbps) == ((0, 0, 1, 1), 6_000)
