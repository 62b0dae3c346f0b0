# SPDX-License-Identifier: Apache-2.0
"""Live benchmark: Dovetail, the stock kube-scheduler and a null binder, compared on a real API server."""
