# SPDX-License-Identifier: Apache-2.0
"""Simulated machines with NVIDIA GPUs: a stand-in libnvidia-ml.so.1 and the files around it."""

from tools.standin.description import DRIVERS, HOSTS, HostError
from tools.standin.library import StandinUnavailable
from tools.standin.standin import Part, Standin, loaded

__all__ = ["DRIVERS", "HOSTS", "HostError", "Part", "Standin", "StandinUnavailable", "loaded"]
