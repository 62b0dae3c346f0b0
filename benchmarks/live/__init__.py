# SPDX-License-Identifier: Apache-2.0
"""Dovetail, the stock kube-scheduler and a binder that does not think, side by side on a real API server."""
