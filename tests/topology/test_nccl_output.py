# SPDX-License-Identifier: Apache-2.0
"""What nccl-tests write, in the forms of several versions."""

from __future__ import annotations

import pytest

from dovetail.topology.fabric import FabricError
from dovetail.topology.nccl_output import NcclResult, read

H100 = """
# nThread 1 nGpus 1 minBytes 536870912 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid   1887 on   worker-1 device  0 [0x8d] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   536870912     134217728     float     sum      -1   5202.3  103.20  193.50      0   5377.7   99.83  187.19      0
  1073741824     268435456     float     sum      -1    10314  104.11  195.20      0    10339  103.85  194.73      0
  8589934592    2147483648     float     sum      -1    81958  104.81  196.52      0    81960  104.81  196.51      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 194.675
#
"""
"""Two nodes of eight H100."""
TAGGED = """
[1,0]<stderr>:Authorization required, but no authorization protocol specified
[1,0]<stdout>:#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
[1,0]<stdout>:    67108864      16777216     float     sum      -1    21934    3.06    3.06      0    21930    3.06    3.06      0
[1,1]<stdout>:test-nccl-efa-worker-1:21:21 [0] NCCL INFO comm 0x7f9c0c000f60 rank 1 nranks 2 cudaDev 0 busId f5000
[1,0]<stdout>:  1073741824     268435456     float     sum      -1   344981    3.11    3.11      0   344454    3.12    3.12      0
[1,0]<stdout>:# Out of bounds values : 0 OK
"""  # noqa: E501
"""By mpirun, which tags lines, with what NCCL logs between them."""
OLD = """
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  1310720000     327680000     float     sum   1160300    1.13    1.13  0e+00  1160200    1.13    1.14  0e+00
"""
ONE_WAY = """
#       size    count   type  redop  root   time   algbw   busbw  #wrong
#        (B)  (elements)                    (us)  (GB/s)  (GB/s)
  34359738368 8589934592  float   sum    -1  875713  39.24   68.66       0
"""
"""Not in place."""


@pytest.mark.parametrize(
    ("text", "size", "mbps"),
    [
        (H100, 8 << 30, 196_520),
        (TAGGED, 1 << 30, 3_120),
        (OLD, 1_310_720_000, 1_140),
        (ONE_WAY, 32 << 30, 68_660),
        (H100.replace("\n", "\r\n"), 8 << 30, 196_520),
    ],
)
def test_the_bus_bandwidth_of_the_largest_message(text: str, size: int, mbps: int) -> None:
    assert read(text) == NcclResult(size, mbps)


def test_without_a_check_of_the_values() -> None:
    assert read(ONE_WAY.replace("       0", "     N/A")).mbps == 68_660


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no line of a table"),
        ("bash: all_reduce_perf: command not found", "no line of a table"),
        (H100.split("  8589934592")[0].split("   536870912")[0], "no line of a table"),
        (H100.replace("# Out of bounds values : 0 OK", "# Out of bounds values : 3 FAILED"), "3 values of the result"),
        (ONE_WAY.replace("       0", "       7"), "7 values of 34359738368 bytes are wrong"),
        ("8 " * 1_000_000, "no line of a table"),
        ("#  size count type busbw\n" + "9" * 4000 + " 1 float 3.0", "no line of a table"),
    ],
)
def test_what_is_no_result(text: str, fault: str) -> None:
    with pytest.raises(FabricError, match=fault):
        read(text)


def test_a_line_that_is_cut_is_no_result() -> None:
    cut = "\n".join(line[:100] if line.startswith("  8589934592") else line for line in H100.splitlines())
    assert read(cut) == NcclResult(1 << 30, 195_200)
