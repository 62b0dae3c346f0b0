# SPDX-License-Identifier: Apache-2.0
"""GPU products: the rates of their links, and how a node of them is wired when its layout was not read.

Rules: a product is found by its model, by the label of GPU feature discovery (`nvidia.com/gpu.product`) or by
nvidia-smi's name; the label is that name with `-` for blanks. A product that is not in the table is unknown; similar
names are not matched.

Rates are those that NCCL uses, one way: per NVLink by compute capability, PCIe by generation and lanes (NCCL,
src/graph/topo.h and topo.cc, June 2026). Links per GPU and their reach are from NVIDIA's data sheets, names from
nvidia-smi, both as of November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from msgspec import Struct

from dovetail.core.devices.layout import BOARD, NODE, PIX, PXB, SYS, UNKNOWN, Layout, LayoutError, Matrix, Nic

SWITCH, MESH, BRIDGE, TRAY, NONE = "switch", "mesh", "bridge", "tray", "none"
"""How far NVLinks reach: all GPUs of the node through switches; the cube mesh of DGX-1; a bridge on top of two cards;
all GPUs of a rack, of which a node is one tray; none."""

NVLINK_MBPS = {60: 18_000, 70: 20_000, 80: 20_000, 86: 12_000, 87: 20_000, 90: 20_600, 100: 40_100}
"""The rate of one NVLink, by the compute capability (times ten) from which on it applies."""
_PCIE_LANE_MBPS = {3: 750, 4: 1_500, 5: 3_000, 6: 6_000}
_DEFAULT = Layout((), (), ())
_MOST_GPUS = 16
ARM_SOCKET_MBPS = 6_000


def nvlink_mbps(sm: int) -> int:
    """The rate of one NVLink of a GPU of this compute capability (times ten). Below 60 it is that of 80, as in NCCL."""
    return NVLINK_MBPS[max((known for known in NVLINK_MBPS if known <= sm), default=80)]


class Product(Struct, frozen=True):
    """`sm` is the compute capability times ten, `links` the number of NVLinks of one GPU, `most` the number of GPUs of
    one node that they connect. `pcie` is the generation, `names` are GFD labels."""

    model: str
    sm: int
    links: int
    reach: str
    most: int
    pcie: int
    names: tuple[str, ...]
    lanes: int = 16

    @property
    def nvlink_mbps(self) -> int:
        return nvlink_mbps(self.sm)

    @property
    def pcie_mbps(self) -> int:
        return _PCIE_LANE_MBPS[self.pcie] * self.lanes


def _of(model: str, sm: int, links: int, reach: str, most: int, pcie: int, names: str, lanes: int = 16) -> Product:
    return Product(model, sm, links, reach, most, pcie, tuple(names.split()), lanes)


PRODUCTS = (
    _of("K80", 37, 0, NONE, 1, 3, "Tesla-K80"),
    _of("P100-SXM2", 60, 4, MESH, 8, 3, "Tesla-P100-SXM2-16GB"),
    _of("P4", 61, 0, NONE, 1, 3, "Tesla-P4"),
    _of("V100-SXM2", 70, 6, MESH, 8, 3, "Tesla-V100-SXM2-16GB Tesla-V100-SXM2-32GB"),
    _of("V100-SXM3", 70, 6, SWITCH, 16, 3, "Tesla-V100-SXM3-32GB"),
    _of("V100-PCIe", 70, 0, NONE, 1, 3, "Tesla-V100-PCIE-16GB Tesla-V100-PCIE-32GB"),
    _of("T4", 75, 0, NONE, 1, 3, "Tesla-T4"),
    _of("RTX8000", 75, 2, BRIDGE, 2, 3, "Quadro-RTX-8000"),
    _of("A100-SXM4-40GB", 80, 12, SWITCH, 16, 4, "NVIDIA-A100-SXM4-40GB"),
    _of("A100-SXM4-80GB", 80, 12, SWITCH, 16, 4, "NVIDIA-A100-SXM4-80GB"),
    _of("A100-PCIe-40GB", 80, 12, BRIDGE, 2, 4, "NVIDIA-A100-PCIE-40GB"),
    _of("A100-PCIe-80GB", 80, 12, BRIDGE, 2, 4, "NVIDIA-A100-80GB-PCIe"),
    _of("A800-SXM4-80GB", 80, 8, SWITCH, 8, 4, "NVIDIA-A800-SXM4-80GB"),
    _of("A30", 80, 4, BRIDGE, 2, 4, "NVIDIA-A30"),
    _of("A10", 86, 0, NONE, 1, 4, "NVIDIA-A10"),
    _of("A10G", 86, 0, NONE, 1, 4, "NVIDIA-A10G"),
    _of("A2", 86, 0, NONE, 1, 4, "NVIDIA-A2", lanes=8),
    _of("A40", 86, 4, BRIDGE, 2, 4, "NVIDIA-A40"),
    _of("RTX-A6000", 86, 4, BRIDGE, 2, 4, "NVIDIA-RTX-A6000"),
    _of("RTX3090", 86, 4, BRIDGE, 2, 4, "NVIDIA-GeForce-RTX-3090"),
    _of("L4", 89, 0, NONE, 1, 4, "NVIDIA-L4"),
    _of("L40", 89, 0, NONE, 1, 4, "NVIDIA-L40"),
    _of("L40S", 89, 0, NONE, 1, 4, "NVIDIA-L40S"),
    _of("RTX4090", 89, 0, NONE, 1, 4, "NVIDIA-GeForce-RTX-4090"),
    _of("RTX6000Ada", 89, 0, NONE, 1, 4, "NVIDIA-RTX-6000-Ada-Generation"),
    _of("H100-SXM5", 90, 18, SWITCH, 8, 5, "NVIDIA-H100-80GB-HBM3"),
    _of("H100-PCIe", 90, 12, BRIDGE, 2, 5, "NVIDIA-H100-PCIe"),
    _of("H100-NVL", 90, 12, BRIDGE, 2, 5, "NVIDIA-H100-NVL"),
    _of("H800-SXM5", 90, 8, SWITCH, 8, 5, "NVIDIA-H800"),
    _of("H200-SXM5", 90, 18, SWITCH, 8, 5, "NVIDIA-H200"),
    _of("H200-NVL", 90, 18, BRIDGE, 4, 5, "NVIDIA-H200-NVL"),
    _of("H20", 90, 18, SWITCH, 8, 5, "NVIDIA-H20"),
    _of("GH200", 90, 18, TRAY, 1, 5, "NVIDIA-GH200-480GB NVIDIA-GH200-144G-HBM3e"),
    _of("B200", 100, 18, SWITCH, 8, 5, "NVIDIA-B200"),
    _of("B300", 103, 18, SWITCH, 8, 6, "NVIDIA-B300-SXM6-AC"),
    _of("GB200", 100, 18, TRAY, 4, 5, "NVIDIA-GB200"),
    _of("GB300", 103, 18, TRAY, 4, 6, "NVIDIA-GB300"),
    _of("RTX-PRO-6000-BSE", 120, 0, NONE, 1, 5, "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"),
    _of("RTX-PRO-5000-BW", 120, 0, NONE, 1, 5, "NVIDIA-RTX-PRO-5000-Blackwell"),
    _of("RTX-PRO-4500-BW", 120, 0, NONE, 1, 5, "NVIDIA-RTX-PRO-4500-Blackwell"),
    _of("RTX5090", 120, 0, NONE, 1, 5, "NVIDIA-GeForce-RTX-5090"),
)
_BY_NAME = {name.casefold(): product for product in PRODUCTS for name in (product.model, *product.names)}
_SUFFIX = re.compile(r"(-SHARED|-MIG-.*)$")


class Rail(Struct, frozen=True):
    """GPUs that share a PCIe switch with NICs: the numbers of each, in their order, and their distance."""

    level: int
    gpus: int
    nics: int
    speed_mbps: int


class HostWiring(Struct, frozen=True):
    """A type of machine. `names` match `nvidia.com/gpu.machine` or `node.kubernetes.io/instance-type`."""

    names: re.Pattern[str]
    models: tuple[str, ...]
    numa: tuple[int, ...]
    socket_mbps: int
    rail: Rail | None = None


_HALVES = (0, 0, 0, 0, 1, 1, 1, 1)
_A100, _HOPPER = ("A100-SXM4-40GB", "A100-SXM4-80GB"), ("H100-SXM5", "H200-SXM5")
HOSTS = (
    HostWiring(re.compile(r"(NVIDIA-)?DGX-?1\b.*"), ("V100-SXM2",), _HALVES, 6_000, Rail(PIX, 2, 1, 12_500)),
    HostWiring(
        re.compile(r"(NVIDIA-)?DGX-?A100\b.*"), _A100, (3, 3, 1, 1, 7, 7, 5, 5), 16_000, Rail(PXB, 2, 2, 25_000)
    ),
    HostWiring(re.compile(r"(NVIDIA-)?DGX-?H[12]00\b.*"), _HOPPER, _HALVES, 22_000, Rail(PXB, 1, 1, 50_000)),
    HostWiring(re.compile(r"(NVIDIA-)?DGX-?B200\b.*"), ("B200",), _HALVES, 40_000),
    HostWiring(re.compile(r"p4de?\.24xlarge"), _A100, _HALVES, 10_000, Rail(PIX, 2, 1, 12_500)),
    HostWiring(re.compile(r"p5e?\.48xlarge"), _HOPPER, _HALVES, 24_000),
    HostWiring(
        re.compile(r"Standard_ND96am?sr(_A100)?_v4"),
        _A100,
        (1, 1, 0, 0, 3, 3, 2, 2),
        16_000,
        Rail(PIX, 2, 2, 25_000),
    ),
    HostWiring(re.compile(r"Standard_ND96is?r_H[12]00_v5"), _HOPPER, _HALVES, 22_000, Rail(PIX, 1, 1, 50_000)),
)
"""Sources: the makers' data sheets; published `nvidia-smi topo -m` of DGX-1, DGX A100 and DGX H100; NCCL topology files
that AWS (p4d, p4de) and Azure (ND v4, v5) publish; the CPUs' inter-socket widths as in NCCL."""


class LinkRates(Struct, frozen=True):
    """The rates of links. `assumed` names the rates that are defaults because no product was named."""

    nvlink_mbps: int
    pcie_mbps: int
    assumed: tuple[str, ...] = ()


def find(name: str) -> Product | None:
    """The product of a model, GFD label (also with -SHARED or -MIG-1g.5gb at its end) or nvidia-smi name."""
    return _BY_NAME.get(_SUFFIX.sub("", "-".join(name.split())).casefold())


def named(name: str) -> Product:
    """As `find`; raises LayoutError where there is none."""
    product = find(name)
    if product is None:
        models = ", ".join(known.model for known in PRODUCTS)
        raise LayoutError("product", f"{name!r} is not known; known are {models}, and their names in nvidia-smi")
    return product


def rates(product: str | None, links: int) -> LinkRates:
    """The rates of a product, or defaults where none is named, for a node with up to this many NVLinks between two
    GPUs. Raises LayoutError where the product is not known or cannot have so many."""
    if product is None:
        nvlink = (f"NVLink {_DEFAULT.nvlink_mbps} MB/s per link",) if links else ()
        pcie = f"PCIe {_DEFAULT.pcie_mbps} MB/s per GPU"
        return LinkRates(_DEFAULT.nvlink_mbps, _DEFAULT.pcie_mbps, (*nvlink, pcie))
    found = named(product)
    if links > found.links:
        raise LayoutError("product", f"a GPU of {found.model} has {found.links} NVLinks, and the node reports {links}")
    return LinkRates(found.nvlink_mbps, found.pcie_mbps)


def assumed_layout(product: str, gpus: int, host: str = "", bridges: Iterable[tuple[int, int]] = ()) -> Layout | None:
    """The most likely layout of a node with so many GPUs of a product; None where none is likely.

    `product` and `gpus` are the labels `nvidia.com/gpu.product` and `nvidia.com/gpu.count`, `host` is the machine or
    the instance type. Cards have no bridge unless `bridges` names the pairs. Up to four GPUs of a product for switches
    may sit on a board without them, where each pair has a third of the links: the lower rate is assumed. Where the host
    is not known, an even number of four or more GPUs is assumed to be split between two sockets. Raises LayoutError for
    a bridge that does not connect two of these GPUs, or a card without a bridge connector."""
    found = find(product)
    if found is None or not 1 <= gpus <= _MOST_GPUS or "-MIG-" in product:
        # With MIG the label counts instances, not GPUs.
        return None
    nvlinks = _wiring(found, gpus, tuple(bridges))
    if nvlinks is None:
        return None
    known = next((host_ for host_ in HOSTS if host_.names.fullmatch(host) and _is(host_, found, gpus)), None)
    numa = known.numa if known else _halves(gpus)
    rail = known.rail if known else None
    socket = known.socket_mbps if known else ARM_SOCKET_MBPS if found.reach == TRAY else _DEFAULT.socket_mbps
    return Layout(
        numa=numa,
        pcie=tuple(tuple(BOARD if i == j else _level(i, j, numa, rail) for j in range(gpus)) for i in range(gpus)),
        nvlinks=nvlinks,
        nics=_nics(numa, rail) if rail else (),
        nvlink_mbps=found.nvlink_mbps,
        pcie_mbps=found.pcie_mbps,
        socket_mbps=socket,
        assumed=True,
    )


def wiring(product: Product, gpus: int) -> Matrix | None:
    """The NVLinks between so many GPUs of a product in one node; None where the product alone does not determine it."""
    return _wiring(product, gpus, ())


def _wiring(product: Product, gpus: int, bridges: tuple[tuple[int, int], ...]) -> Matrix | None:
    for i, j in bridges:
        if product.reach != BRIDGE or not 0 <= i != j >= 0 or max(i, j) >= gpus:
            raise LayoutError("bridges", f"GPU{i} and GPU{j} of {gpus} {product.model} cannot be joined by a bridge")
    if gpus == 1 or product.reach in (BRIDGE, NONE):
        ends = [end for pair in bridges for end in pair]
        share = product.links // max((ends.count(end) for end in ends), default=1)
        both = {*bridges, *((b, a) for a, b in bridges)}
        return _matrix(gpus, lambda i, j: share * ((i, j) in both))
    if gpus > product.most or (product.reach == MESH and gpus < product.most):
        return None
    if product.reach == MESH:
        return _matrix(gpus, lambda i, j: _cube_mesh(i, j, product.links))
    pair = product.links // 3 if product.reach == SWITCH and gpus <= 4 else product.links
    return _matrix(gpus, lambda i, j: pair)


def _matrix(gpus: int, links: Callable[[int, int], int]) -> Matrix:
    return tuple(tuple(0 if i == j else links(i, j) for j in range(gpus)) for i in range(gpus))


_DOUBLED = {(0, 3), (1, 2), (2, 3), (0, 4), (1, 5), (4, 7), (5, 6), (6, 7)}


def _cube_mesh(i: int, j: int, links: int) -> int:
    """DGX-1: two fully connected quads, and a link from each GPU to its twin; V100 has six links and doubles some."""
    low, high = min(i, j), max(i, j)
    linked = i // 4 == j // 4 or high - low == 4
    return linked * (2 if links == 6 and (low, high) in _DOUBLED else 1)


def _is(host: HostWiring, product: Product, gpus: int) -> bool:
    return product.model in host.models and gpus == len(host.numa)


def _halves(gpus: int) -> tuple[int, ...]:
    if gpus < 4 or gpus % 2:
        return (UNKNOWN,) * gpus
    return (0,) * (gpus // 2) + (1,) * (gpus // 2)


def _level(i: int, j: int, numa: tuple[int, ...], rail: Rail | None) -> int:
    if rail and i // rail.gpus == j // rail.gpus:
        return rail.level
    if UNKNOWN in (numa[i], numa[j]):
        return UNKNOWN
    return NODE if numa[i] == numa[j] else SYS


def _nics(numa: tuple[int, ...], rail: Rail) -> tuple[Nic, ...]:
    nics = []
    for first in range(0, len(numa), rail.gpus):
        levels = tuple(_level(first, gpu, numa, rail) for gpu in range(len(numa)))
        nics += [Nic(levels, numa[first], rail.speed_mbps)] * rail.nics
    return tuple(nics)
