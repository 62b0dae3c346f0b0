# SPDX-License-Identifier: Apache-2.0
"""The expected time of an all-reduce, as NCCL estimates it to choose its algorithm.

Rules
- An island is a set of GPUs that NVLink or PCIe joins: those of one node, or those of the nodes of one NVLink clique.
  Between islands is the network.
- Each algorithm takes its latency and then the data over its bandwidth; the fastest one counts. `ring`: every GPU
  passes the data on, so the slowest link counts, and each hop adds its latency. `tree`: a chain inside each island, a
  double binary tree between them. `nvls`: the NVSwitches add up, in one island. `nvls-tree`: the same, with a tree
  between islands.
- The bandwidth in the answer is the bus bandwidth of nccl-tests: what each GPU would need to pass on in a ring in that
  time. It can be compared across numbers of GPUs, and with the line rate.

Bandwidths are one way, in MB/s (10^6 bytes); times are in ns; all are integers.

Source of all figures: NCCL 2.25, src/graph/tuning.cc (protocol Simple) and topo.h. What NCCL corrects for messages of
middle size is left out, so the answer is for large ones.
"""

from __future__ import annotations

from msgspec import Struct

RING, TREE, NVLS, NVLS_TREE = "ring", "tree", "nvls", "nvls-tree"
LARGE_BYTES = 1 << 30
"""The size of a message whose bandwidth is stated: 1 GiB, as of the gradients of a large model."""
NET_NS = 14_000
"""One hop of a ring or a tree through the network, below one switch."""
LEVEL_NS = 1_000
"""What each further level of the fabric adds to a hop: two switches and their cables. An assumption."""
NVLS_MILLI = {20_600: 850, 40_100: 740}
"""The part of their rate, in thousandths, at which NVSwitches add up, by the rate of a link in MB/s: Hopper,
Blackwell."""
NVLS_LINKS = 18
"""A GPU of these generations has so many links; a pair that shares all of them is joined by switches."""

_BASE_NS = 8_400
_RING_NS, _TREE_NS = (5_700, 3_400), (4_000, 4_000)
"""One hop inside an island: by PCIe, by NVLink."""
_NVLS_NS = 25_000
_TREE_MILLI = 920
_NVLS_SWAP = 5, 6
"""The part of the time in which NVLS moves data."""
_NET_EFFECTIVE = 24, 25
"""What NCCL reaches of a NIC's line rate: 12 of 12.5 GB/s."""


class Span(Struct, frozen=True):
    """The GPUs of one job: their number `gpus`, in `islands`. `inside_mbps` is the slowest ring inside an island, 0
    where each has one GPU; `nvlinked`: it is of NVLinks alone. `between_mbps` is the network of the island with the
    slowest, 0 for one island. `nvls_milli` is one of NVLS_MILLI, 0 without NVLS. `hops_ns` is the latency of the
    network from the first island through all of them to the last, `widest_ns` that of the longest of these hops."""

    gpus: int
    islands: int
    inside_mbps: int = 0
    nvlinked: bool = False
    between_mbps: int = 0
    nvls_milli: int = 0
    hops_ns: int = 0
    widest_ns: int = 0


class AllReduce(Struct, frozen=True):
    """An expected all-reduce: its algorithm, its time, and its bus bandwidth in MB/s. `level` is the narrowest level of
    the fabric (a node label key) that holds the job, "" where none does."""

    algorithm: str
    ns: int
    mbps: int
    level: str = ""

    def __str__(self) -> str:
        return f"all-reduce at {self.mbps / 1000:.1f} GB/s at most ({self.algorithm})"


def network_mbps(line_mbps: int) -> int:
    """What collectives reach of the line rate of NICs."""
    return line_mbps * _NET_EFFECTIVE[0] // _NET_EFFECTIVE[1]


def all_reduce(span: Span, size: int = LARGE_BYTES, level: str = "") -> AllReduce | None:
    """The fastest all-reduce of `size` bytes; None for fewer than two GPUs, or where a bandwidth is not known."""
    gpus, islands = span.gpus, span.islands
    if gpus < 2 or (gpus > islands and not span.inside_mbps) or (islands > 1 and not span.between_mbps):
        return None
    slowest = min(mbps for mbps in (span.inside_mbps, span.between_mbps) if mbps)
    on_island = -(-gpus // islands) - 1
    levels = (islands - 1).bit_length()
    times = {
        RING: _BASE_NS
        + 2 * ((gpus - islands) * _RING_NS[span.nvlinked] + span.hops_ns)
        + _ns(2 * size * (gpus - 1), slowest * gpus),
        TREE: _BASE_NS
        + 2 * (on_island * _TREE_NS[span.nvlinked] + levels * span.widest_ns)
        + _ns(2 * size * 1000, slowest * _TREE_MILLI),
    }
    if span.nvls_milli and span.inside_mbps:
        added, (moves, of) = span.inside_mbps * span.nvls_milli // 1000, _NVLS_SWAP
        if islands > 1:
            # With more than two islands each one sends to two others.
            added = min(added, span.between_mbps if islands == 2 else span.between_mbps // 2)
        times[NVLS_TREE if islands > 1 else NVLS] = (
            _NVLS_NS + 2 * levels * span.widest_ns + _ns(size * of, max(added, 1) * moves)
        )
    algorithm = min(times, key=times.__getitem__)
    ns = times[algorithm]
    return AllReduce(algorithm, ns, 2 * size * (gpus - 1) * 1000 // (gpus * ns), level)


def _ns(size: int, mbps: int) -> int:
    """The time for so many bytes, rounded up."""
    return -(-size * 1000 // mbps)
