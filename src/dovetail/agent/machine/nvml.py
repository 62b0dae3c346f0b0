# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's management library, through NVIDIA's own binding (nvidia-ml-py).

Rules: every call can fail with NvmlError, which names the call: the driver may be missing, older than the binding or of
another version than its library, and a GPU may vanish between two calls. Texts are str. Calls block; those that wait
for events run in a thread. The only state here is that the library is open.
"""

from __future__ import annotations

from ctypes import Array, byref
from types import TracebackType
from typing import Any

import pynvml

UNINITIALIZED = pynvml.NVML_ERROR_UNINITIALIZED
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
INVALID_ARGUMENT = pynvml.NVML_ERROR_INVALID_ARGUMENT
TIMEOUT = pynvml.NVML_ERROR_TIMEOUT
IN_USE = pynvml.NVML_ERROR_IN_USE
FUNCTION_NOT_FOUND = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
LIBRARY_NOT_FOUND = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
DRIVER_NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
GPU_IS_LOST = pynvml.NVML_ERROR_GPU_IS_LOST
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN
RESET_REQUIRED = pynvml.NVML_ERROR_RESET_REQUIRED

_WHAT_TO_DO = {
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not found: install NVIDIA's driver, or mount it into the container",
    DRIVER_NOT_LOADED: "the nvidia kernel module is not loaded: see `dmesg`, then `modprobe nvidia`",
    MISMATCH: "kernel module and libnvidia-ml.so.1 are of different versions: a driver was updated without a reboot",
    NO_PERMISSION: "no permission: see docs/reference/agent-privileges.md",
    FUNCTION_NOT_FOUND: "the driver is too old for this call",
    GPU_IS_LOST: "the GPU has fallen off the bus",
}


class NvmlError(Exception):
    """`call` failed with NVML's error number `code`."""

    def __init__(self, call: str, code: int, text: str) -> None:
        self.call, self.code, self.text = call, code, text
        super().__init__(call, code, text)

    def __str__(self) -> str:
        return f"{self.call}: {_WHAT_TO_DO.get(self.code, self.text)}"


class Nvml:
    """The open library, as a context: `with Nvml() as nvml`. Raises NvmlError if it cannot be opened.

    A library that is opened again sees GPUs that have come or gone."""

    def __enter__(self) -> Nvml:
        self.call("nvmlInit")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.call("nvmlShutdown")
        except NvmlError:
            # The library is not used any more, whatever its state.
            return

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the binding's function of that name, or its second version if the driver is older than the binding's
        first choice; bytes are decoded. Raises NvmlError."""
        try:
            answer = getattr(pynvml, name)(*arguments)
        except pynvml.NVMLError as error:
            raise NvmlError(name, error.value, str(error)) from None
        except pynvml.NVMLLibraryMismatchError as mismatch:
            if not hasattr(pynvml, f"{name}_v2"):
                raise NvmlError(name, FUNCTION_NOT_FOUND, str(mismatch)) from None
            return self.call(f"{name}_v2", *arguments)
        except AttributeError:
            raise NvmlError(name, FUNCTION_NOT_FOUND, "the binding does not have it") from None
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def fill(self, handle: Any, values: Array[Any]) -> None:
        """Read the field values that the prepared array names (`c_nvmlFieldValue_t`) in one call, in place: each has
        its own result code. The binding's function would make a new array each time. Raises NvmlError."""
        name = "nvmlDeviceGetFieldValues"
        try:
            code = pynvml._nvmlGetFunctionPointer(name)(handle, len(values), byref(values))
        except pynvml.NVMLError as error:
            raise NvmlError(name, error.value, str(error)) from None
        if code:
            raise NvmlError(name, code, str(pynvml.NVMLError(code)))
