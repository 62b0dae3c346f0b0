# SPDX-License-Identifier: Apache-2.0
"""Multi-Instance GPU: how cards are divided into instances, where these can be, and which of them go to whom."""
