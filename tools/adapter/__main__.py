# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.adapter` builds prometheus-adapter if the cache lacks it, and prints where it is."""

from tools.adapter.external_metrics import build
from tools.controlplane.plane import print_progress

print(build(print_progress))
