# SPDX-License-Identifier: Apache-2.0
"""How fast GPUs are: the dense tensor rate in 16 bits, in teraflops, and the memory bandwidth in GB/s.

Rules: models have the names of `advice.gpus`. A model that is not here is not compared with others. Rates are peaks;
only their ratios count.
Source: NVIDIA's data sheets, rounded, as of November 2026. Where a sheet states the rate with sparsity, half of it.
GB200 and GB300 are a 72nd of the sheets of GB200 NVL72 and GB300 NVL72 (360 petaflops with sparsity, 576 TB/s), B300 an
eighth of that of HGX B300.
"""

from __future__ import annotations

from typing import NamedTuple


class GpuSpeed(NamedTuple):
    tflops: int
    gb_s: int


SPEEDS: dict[str, GpuSpeed] = {
    "V100-SXM2-16GB": GpuSpeed(125, 900),
    "V100-SXM2-32GB": GpuSpeed(125, 900),
    "V100-PCIe-16GB": GpuSpeed(112, 900),
    "V100-PCIe-32GB": GpuSpeed(112, 900),
    "T4": GpuSpeed(65, 320),
    "A100-SXM4-40GB": GpuSpeed(312, 1555),
    "A100-SXM4-80GB": GpuSpeed(312, 2039),
    "A100-PCIe-40GB": GpuSpeed(312, 1555),
    "A100-PCIe-80GB": GpuSpeed(312, 1935),
    "A800-SXM4-80GB": GpuSpeed(312, 2039),
    "A30": GpuSpeed(165, 933),
    "A10": GpuSpeed(125, 600),
    "A10G": GpuSpeed(70, 600),
    "A2": GpuSpeed(18, 200),
    "A40": GpuSpeed(150, 696),
    "RTX-A6000": GpuSpeed(155, 768),
    "L4": GpuSpeed(121, 300),
    "L40": GpuSpeed(181, 864),
    "L40S": GpuSpeed(362, 864),
    "RTX6000Ada": GpuSpeed(364, 960),
    "H100-SXM5": GpuSpeed(989, 3350),
    "H100-PCIe": GpuSpeed(756, 2000),
    "H100-NVL": GpuSpeed(835, 3938),
    "H800-SXM5": GpuSpeed(989, 3350),
    "H200-SXM5": GpuSpeed(989, 4800),
    "H200-NVL": GpuSpeed(835, 4800),
    "H20": GpuSpeed(148, 4000),
    "GH200-96GB": GpuSpeed(989, 4000),
    "GH200-144GB": GpuSpeed(989, 4900),
    "B200": GpuSpeed(2250, 8000),
    "B300": GpuSpeed(2250, 8000),
    "GB200": GpuSpeed(2500, 8000),
    "GB300": GpuSpeed(2500, 8000),
}
