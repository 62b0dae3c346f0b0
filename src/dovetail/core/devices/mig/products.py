# SPDX-License-Identifier: Apache-2.0
"""The MIG geometries of the products that support MIG.

Rules: a product is found by nvidia-smi's name or by the label of GPU feature discovery (`nvidia.com/gpu.product`: `-`
for blanks, possibly with -SHARED or -MIG-1g.5gb at its end). A product that is not in the table is unknown. The names
and the memory of profiles differ by board and driver; known other names are aliases, and what a node reports takes
precedence over this table.

Sources: NVIDIA's MIG user guide (supported profiles), published `nvidia-smi mig -lgip` and `-lgipp` outputs, and the
default configuration of NVIDIA's mig-parted, as of November 2026. No placements of B300 and GB300 are published: those
of B200 are assumed. The SM counts are those of the first product of each entry.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dovetail.core.devices.mig.geometry import Engines, Geometry, MigProfile

_SUFFIX = re.compile(r"(-SHARED|-MIG-.*)$")


class _Row(NamedTuple):
    """A profile of a family. `size` is the index of its memory, and of that in its name, in those of a product."""

    compute: int
    suffix: str
    gi_id: int
    size: int
    sm: int
    starts: tuple[int, ...]
    width: int
    most: int


_EIGHT = (
    _Row(1, "", 19, 0, 0, (0, 1, 2, 3, 4, 5, 6), 1, 7),
    _Row(1, "+me", 20, 0, 0, (0, 1, 2, 3, 4, 5, 6), 1, 1),
    _Row(1, "", 15, 1, 1, (0, 2, 4, 6), 2, 4),
    _Row(2, "", 14, 1, 2, (0, 2, 4), 2, 3),
    _Row(3, "", 9, 2, 3, (0, 4), 4, 2),
    _Row(4, "", 5, 2, 4, (0,), 4, 1),
    _Row(7, "", 0, 3, 5, (0,), 8, 1),
)
"""Seven compute and eight memory slices."""
_FOUR = (
    _Row(1, "", 14, 0, 0, (0, 1, 2, 3), 1, 4),
    _Row(1, "+me", 21, 0, 0, (0, 1, 2, 3), 1, 1),
    _Row(2, "", 5, 1, 1, (0, 2), 2, 2),
    _Row(2, "+me", 6, 1, 1, (0, 2), 2, 1),
    _Row(4, "", 0, 2, 2, (0,), 4, 1),
)
_TWELVE = (
    _Row(1, "", 14, 0, 0, (0, 3, 6, 9), 3, 4),
    _Row(1, "+me", 21, 0, 0, (0, 3, 6, 9), 3, 1),
    _Row(1, "+gfx", 47, 0, 0, (0, 3, 6, 9), 3, 4),
    _Row(1, "+me.all", 65, 0, 0, (0, 3, 6, 9), 3, 1),
    _Row(1, "-me", 67, 0, 0, (0, 3, 6, 9), 3, 4),
    _Row(2, "", 5, 1, 1, (0, 6), 6, 2),
    _Row(2, "+gfx", 35, 1, 1, (0, 6), 6, 2),
    _Row(2, "+me.all", 64, 1, 1, (0, 6), 6, 1),
    _Row(2, "-me", 66, 1, 1, (0, 6), 6, 2),
    _Row(4, "", 0, 2, 2, (0,), 12, 1),
    _Row(4, "+gfx", 32, 2, 2, (0,), 12, 1),
)


class _Family(NamedTuple):
    """Products with the same profiles: these, and the engines of each. `resets` is `Geometry.mode_change_resets` of all
    of them."""

    rows: tuple[_Row, ...]
    engines: tuple[Engines, ...]
    resets: bool = False


# Copy engines, decoders, encoders, JPEG decoders and optical flow units, by row of the family. The whole card has the
# most of each.
_A30 = _Family(
    _FOUR, (Engines(1), Engines(1, 1, 0, 1, 1), Engines(2, 2), Engines(2, 2, 0, 1, 1), Engines(4, 4, 0, 1, 1)),
    resets=True,
)  # fmt: skip
_AMPERE = _Family(
    _EIGHT, (
        Engines(1), Engines(1, 1, 0, 1, 1), Engines(1, 1), Engines(2, 1), Engines(3, 2), Engines(4, 2),
        Engines(7, 5, 0, 1, 1),
    ),
    resets=True,
)  # fmt: skip
_HOPPER = _Family(
    _EIGHT, (
        Engines(1, 1, 0, 1), Engines(1, 1, 0, 1, 1), Engines(1, 1, 0, 1), Engines(2, 2, 0, 2), Engines(3, 3, 0, 3),
        Engines(4, 4, 0, 4), Engines(8, 7, 0, 7, 1),
    ),
)  # fmt: skip
_BLACKWELL = _Family(
    _EIGHT, (
        Engines(2, 1, 0, 1), Engines(2, 1, 0, 1, 1), Engines(2, 1, 0, 1), Engines(4, 2, 0, 2), Engines(6, 3, 0, 3),
        Engines(8, 4, 0, 4), Engines(16, 7, 0, 7, 1),
    ),
)  # fmt: skip
_PRO = _Family(
    _TWELVE, (
        Engines(1, 1, 1, 1), Engines(1, 1, 1, 1, 1), Engines(1, 1, 1, 1), Engines(1, 4, 4, 4, 1), Engines(1),
        Engines(2, 2, 2, 2), Engines(2, 2, 2, 2), Engines(2, 4, 4, 4, 1), Engines(2),
        Engines(4, 4, 4, 4, 1), Engines(4, 4, 4, 4, 1),
    ),
)  # fmt: skip


def _of(
    key: str,
    products: tuple[str, ...],
    family: _Family,
    gb: tuple[int, ...],
    mib: tuple[int, ...],
    sm: tuple[int, ...],
    assumed: bool = False,
    renamed: dict[str, str] | None = None,
) -> Geometry:
    """`gb` is by size the memory in the names, `mib` that of an instance; `renamed` has by profile name the name of
    other drivers."""
    profiles = []
    for row, own in zip(family.rows, family.engines, strict=True):
        base = f"{row.compute}g.{gb[row.size]}gb"
        aliases = (renamed[base] + row.suffix,) if renamed and base in renamed else ()
        profiles.append(
            MigProfile(
                base + row.suffix,
                row.gi_id,
                row.compute,
                row.width,
                row.starts,
                row.most,
                mib[row.size],
                sm[row.sm] if sm else 0,
                own,
                aliases,
            )
        )
    width, compute = max(row.width for row in family.rows), max(row.compute for row in family.rows)
    whole = Engines(*(max(counts) for counts in zip(*family.engines, strict=True)))
    return Geometry(key, products, width, compute, whole, tuple(profiles), family.resets, assumed)


_A100_SM, _H100_SM = (14, 14, 28, 42, 56, 98), (16, 26, 32, 60, 64, 132)
GEOMETRIES = (
    _of("A30-24GB", ("NVIDIA A30",), _A30, (6, 12, 24), (5952, 11968, 24000), (14, 28, 56)),
    _of(
        "A100-40GB",
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A800-SXM4-40GB", "A800-40GB"),
        _AMPERE, (5, 10, 20, 40), (4864, 9856, 19968, 40192), _A100_SM,
    ),
    _of(
        "A100-80GB",
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "NVIDIA A800-SXM4-80GB", "NVIDIA A800 80GB PCIe",
         "A800-80GB"),
        _AMPERE, (10, 20, 40, 80), (9856, 19968, 40192, 80384), _A100_SM,
    ),
    _of(
        "H100-80GB",
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H800", "NVIDIA H800 PCIe", "H800-80GB"),
        _HOPPER, (10, 20, 40, 80), (9984, 20096, 40448, 81152), _H100_SM,
    ),
    _of(
        "H100-94GB",
        ("NVIDIA H100 NVL", "H100 SXM5 94GB", "H800 NVL", "NVIDIA H800 NVL"),
        _HOPPER, (12, 24, 47, 94), (11136, 22528, 47488, 95360), _H100_SM,
    ),
    _of(
        "H100-96GB",
        ("NVIDIA GH200 480GB", "NVIDIA GH200 96GB HBM3", "NVIDIA H20", "PG506-96GB"),
        _HOPPER, (12, 24, 48, 96), (11264, 23040, 47616, 96256), _H100_SM,
    ),
    _of(
        "GH200-144GB",
        ("NVIDIA GH200 144G HBM3e",),
        _HOPPER, (18, 36, 72, 144), (17920, 36096, 72704, 146432), _H100_SM,
    ),
    _of(
        "H200-141GB",
        ("NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA H20-141GB"),
        _HOPPER, (18, 35, 71, 141), (16384, 33024, 71168, 143104), _H100_SM,
    ),
    _of(
        "B200-180GB",
        ("NVIDIA B200",),
        _BLACKWELL, (23, 45, 90, 180), (22528, 45312, 91136, 182784), (18, 30, 36, 70, 72, 148),
    ),
    _of(
        "GB200-186GB",
        ("NVIDIA GB200",),
        _BLACKWELL, (23, 47, 93, 186), (22528, 46592, 94208, 189440), (18, 32, 38, 72, 76, 152),
        renamed={"1g.23gb": "1g.24gb", "3g.93gb": "3g.95gb", "4g.93gb": "4g.95gb", "7g.186gb": "7g.189gb"},
    ),
    _of(
        "B300-269GB",
        ("NVIDIA B300 SXM6 AC",),
        _BLACKWELL, (34, 67, 135, 269), (34560, 68608, 138240, 275456), (), assumed=True,
    ),
    _of(
        "GB300-278GB",
        ("NVIDIA GB300",),
        _BLACKWELL, (35, 70, 139, 278), (35584, 71168, 142336, 284160), (), assumed=True,
    ),
    _of(
        "RTXPRO6000-96GB",
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        ),
        _PRO, (24, 48, 96), (24192, 48512, 97408), (46, 94, 188),
    ),
)  # fmt: skip
_BY_NAME = {
    "-".join(name.split()).casefold(): geometry
    for geometry in GEOMETRIES
    for name in (geometry.key, *geometry.products)
}


def of_product(name: str) -> Geometry | None:
    """The geometry of a product by nvidia-smi's name, GFD's label or the key of the table; None where it is not known
    or does not support MIG."""
    return _BY_NAME.get(_SUFFIX.sub("", "-".join(name.split())).casefold())
