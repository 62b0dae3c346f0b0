# SPDX-License-Identifier: Apache-2.0
"""Rules for Prometheus as one table: recording rules, alerts, and the thresholds that both use."""
