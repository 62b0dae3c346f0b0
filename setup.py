# SPDX-License-Identifier: Apache-2.0
"""The native kernel of the core, built where a C compiler is at hand; without one numpy does its work.

All else about the package is in pyproject.toml. The kernel is told the digest of its source, by which
`dovetail.__native__` knows whether it was built from what is there.
"""

from hashlib import sha256
from pathlib import Path

from setuptools import Extension, setup

SOURCE = "src/dovetail/core/placing/kernel.c"
DIGEST = sha256((Path(__file__).parent / SOURCE).read_bytes()).hexdigest()

setup(
    ext_modules=[
        Extension(
            "dovetail.core.placing._kernel",
            [SOURCE],
            define_macros=[("SOURCE_DIGEST", f'"{DIGEST}"')],
            optional=True,
            py_limited_api=True,
        )
    ],
    # What an earlier build left may be of another source.
    options={"build_ext": {"force": True}},
)
