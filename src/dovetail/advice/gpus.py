# SPDX-License-Identifier: Apache-2.0
"""The memory of GPUs and their MIG instances that processes can use.

Rules: products have the names of `core.devices.products`, with one entry per memory size. `memory_mib` is the total in
nvidia-smi, `reserved_mib` the part reserved by the driver; the rest is usable. All memory of a MIG instance is usable.

Sources: published outputs of nvidia-smi, as of November 2026. Reserved memory was measured on A100 40GB, H100, B200,
GB200, GB300, L40S and T4 (448 to 947 MiB); 640 MiB is assumed for other GPUs. For P100, P4, K80 and V100, the total is
from drivers that exclude reserved memory. For GH200 with 144 GB, it is that of the largest MIG instance."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from dovetail.core.devices import products
from dovetail.core.devices.mig import products as mig_products
from dovetail.core.devices.mig.geometry import MigProfile
from dovetail.core.devices.products import NONE, Product

_RESERVED_MIB = 640


class GpuProduct(Struct, frozen=True):
    """`name` is the value of the label `nvidia.com/gpu.product`; `model` is Dovetail's name, with the memory if there
    are several sizes."""

    model: str
    name: str
    memory_mib: int
    reserved_mib: int = _RESERVED_MIB

    @property
    def usable_mib(self) -> int:
        return self.memory_mib - self.reserved_mib

    @property
    def product(self) -> Product:
        return products.named(self.name)

    def linked(self, gpus: int) -> bool:
        """Whether NVLink can connect this many GPUs of one node."""
        product = self.product
        return product.reach != NONE and gpus <= product.most

    def profiles(self) -> Iterator[MigProfile]:
        """Its MIG profiles, the smallest memory first. Of profiles that differ only in engines, the plain one."""
        geometry = mig_products.of_product(self.name)
        plain = [p for p in geometry.profiles if "+" not in p.name and "-" not in p.name] if geometry else []
        yield from sorted(plain, key=lambda p: (p.memory_mib, p.compute_slices))


GPUS = (
    GpuProduct("K80", "Tesla-K80", 11_441, 0),
    GpuProduct("P100-SXM2", "Tesla-P100-SXM2-16GB", 16_280, 0),
    GpuProduct("P4", "Tesla-P4", 7_611, 0),
    GpuProduct("V100-SXM2-16GB", "Tesla-V100-SXM2-16GB", 16_160, 0),
    GpuProduct("V100-PCIe-16GB", "Tesla-V100-PCIE-16GB", 16_160, 0),
    GpuProduct("V100-SXM2-32GB", "Tesla-V100-SXM2-32GB", 32_510, 0),
    GpuProduct("V100-SXM3-32GB", "Tesla-V100-SXM3-32GB", 32_510, 0),
    GpuProduct("V100-PCIe-32GB", "Tesla-V100-PCIE-32GB", 32_510, 0),
    GpuProduct("T4", "Tesla-T4", 15_360, 448),
    GpuProduct("RTX8000", "Quadro-RTX-8000", 46_080),
    GpuProduct("A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB", 40_960, 518),
    GpuProduct("A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB", 81_920),
    GpuProduct("A100-PCIe-40GB", "NVIDIA-A100-PCIE-40GB", 40_960, 518),
    GpuProduct("A100-PCIe-80GB", "NVIDIA-A100-80GB-PCIe", 81_920),
    GpuProduct("A800-SXM4-80GB", "NVIDIA-A800-SXM4-80GB", 81_920),
    GpuProduct("A30", "NVIDIA-A30", 24_576),
    GpuProduct("A10", "NVIDIA-A10", 23_028),
    GpuProduct("A10G", "NVIDIA-A10G", 23_028),
    GpuProduct("A2", "NVIDIA-A2", 15_356),
    GpuProduct("A40", "NVIDIA-A40", 46_068),
    GpuProduct("RTX-A6000", "NVIDIA-RTX-A6000", 49_140),
    GpuProduct("RTX3090", "NVIDIA-GeForce-RTX-3090", 24_576),
    GpuProduct("L4", "NVIDIA-L4", 23_034),
    GpuProduct("L40", "NVIDIA-L40", 46_068, 609),
    GpuProduct("L40S", "NVIDIA-L40S", 46_068, 609),
    GpuProduct("RTX4090", "NVIDIA-GeForce-RTX-4090", 24_564),
    GpuProduct("RTX6000Ada", "NVIDIA-RTX-6000-Ada-Generation", 49_140),
    GpuProduct("H100-SXM5", "NVIDIA-H100-80GB-HBM3", 81_559, 480),
    GpuProduct("H100-PCIe", "NVIDIA-H100-PCIe", 81_559, 480),
    GpuProduct("H100-NVL", "NVIDIA-H100-NVL", 95_830),
    GpuProduct("H800-SXM5", "NVIDIA-H800", 81_559, 480),
    GpuProduct("H200-SXM5", "NVIDIA-H200", 143_771),
    GpuProduct("H200-NVL", "NVIDIA-H200-NVL", 143_771),
    GpuProduct("H20", "NVIDIA-H20", 97_871),
    GpuProduct("GH200-96GB", "NVIDIA-GH200-480GB", 97_871),
    GpuProduct("GH200-144GB", "NVIDIA-GH200-144G-HBM3e", 146_432, 0),
    GpuProduct("B200", "NVIDIA-B200", 183_359, 728),
    GpuProduct("B300", "NVIDIA-B300-SXM6-AC", 275_040),
    GpuProduct("GB200", "NVIDIA-GB200", 189_471, 742),
    GpuProduct("GB300", "NVIDIA-GB300", 284_208, 947),
    GpuProduct("RTX-PRO-6000-BSE", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 97_887),
    GpuProduct("RTX-PRO-5000-BW", "NVIDIA-RTX-PRO-5000-Blackwell", 48_935),
    GpuProduct("RTX-PRO-4500-BW", "NVIDIA-RTX-PRO-4500-Blackwell", 32_623),
    GpuProduct("RTX5090", "NVIDIA-GeForce-RTX-5090", 32_607),
)
# In reverse: the first GPU of a name counts.
_BY_NAME = {name.casefold(): gpu for gpu in reversed(GPUS) for name in (gpu.name, gpu.model)}


def named(name: str) -> GpuProduct | None:
    """The GPU of this model, label or nvidia-smi name, in any case."""
    return _BY_NAME.get(_spelt(name))


def find(name: str) -> tuple[GpuProduct, ...]:
    """The GPU of this name, else all GPUs with a model that begins with it."""
    exact, wanted = named(name), _spelt(name)
    return (exact,) if exact else tuple(gpu for gpu in GPUS if wanted and gpu.model.casefold().startswith(wanted))


def _spelt(name: str) -> str:
    return "-".join(name.split()).casefold()
