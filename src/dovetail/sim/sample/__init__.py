# SPDX-License-Identifier: Apache-2.0
"""A trace that comes with Dovetail: the GPU nodes and the `default` pod list of openb. The README beside it says whose
it is."""

from __future__ import annotations

from importlib.resources import files

NODES = files(__name__) / "openb_node_list_gpu_node.csv.gz"
PODS = files(__name__) / "openb_pod_list_default.csv.gz"
