# SPDX-License-Identifier: Apache-2.0
"""The rates of a GPU that bound a step of serving: tensor rate by format of the weights, memory and links.

Rules
- The 16-bit tensor rate and the memory bandwidth are those of `advice.speeds`, the links those of
  `core.devices.products`.
- A format that the tensor cores multiply has a multiple of the 16-bit rate: FP8 and INT8 twice, FP4 four times
  (NVIDIA's architecture whitepapers: INT8 from Ampere on, FP8 from Ada and Hopper on, FP4 from Blackwell on); on
  Blackwell Ultra FP4 six times (data sheet of GB300 NVL72: 1,080 petaflops dense, and 180 in 16 bits). With
  MXFP4, engines keep activations in 8 bits on Blackwell and in 16 bits before it. Weights in any other format are
  unpacked to 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from dovetail.advice.gpus import GpuProduct
from dovetail.advice.speeds import SPEEDS

_MULTIPLES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "int8": ((80, 2),),
    "fp8": ((89, 2),),
    "mxfp4": ((100, 2),),
    "nvfp4": ((100, 4), (103, 6)),
}
"""By format: (compute capability times ten from which on it is multiplied, the multiple of the 16-bit rate)."""

_PLAIN = frozenset({"fp32", "fp16", "bf16"})


class GpuRates(Struct, frozen=True):
    """Rates in operations and bytes per second. `multiple` is the multiple of the 16-bit rate at which matrices are
    multiplied; `link` is that of one GPU to the others of its instance, one way; `by_nvlink`: they have NVLink."""

    tensor: float
    multiple: int
    unpacked: bool
    memory: float
    link: float
    by_nvlink: bool


def multiple(sm: int, weights: str) -> int:
    """The multiple of the 16-bit tensor rate on a GPU of this compute capability (times ten)."""
    return max((times for since, times in _MULTIPLES.get(weights, ()) if sm >= since), default=1)


def rates(gpu: GpuProduct, weights: str, ranks: int) -> GpuRates | None:
    """The rates of a GPU for `ranks` GPUs that exchange activations; None if its speed is not known."""
    speed = SPEEDS.get(gpu.model)
    if speed is None:
        return None
    product = gpu.product
    by_nvlink = gpu.linked(ranks)
    link_mbps = product.nvlink_mbps * product.links if by_nvlink else product.pcie_mbps
    times = multiple(product.sm, weights)
    unpacked = times == 1 and weights not in _PLAIN
    return GpuRates(speed.tflops * 1e12, times, unpacked, speed.gb_s * 1e9, link_mbps * 1e6, by_nvlink)
