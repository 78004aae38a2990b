"""NVIDIA's driver, called directly: compile PTX, run it on one device, bring the result back.

Only `libcuda` is needed, which comes with the driver. A kernel that does not end is given up after
a while; the driver cannot stop it, so the process has to end then without waiting (`is_stuck`).
"""

import ctypes
import os
import sys
import time
from pathlib import Path

import numpy as np

from mpcore.errors import InputError
from mpcore.matmul.silicon.ptx import ENTRY

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_LOG_BUFFER, _LOG_SIZE = 5, 6  # CU_JIT_ERROR_LOG_BUFFER and its size
_LOG_BYTES = 8192
_POLL_SECONDS = 0.002


class NoDevice(InputError):
    """There is no CUDA device to check; the message says what is there."""


class DeviceFailed(InputError):
    """The driver refused a kernel, or the kernel failed. The message is one line."""


def find_device(number=0):
    """The CUDA device of a number; raises NoDevice."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        if Path("/dev/kfd").exists():  # the interface of AMD's driver
            raise NoDevice("an AMD GPU is here; MFMA instructions are not replayed") from None
        raise NoDevice(f"no NVIDIA driver: {_LIBRARY} cannot be loaded") from None
    driver = _Driver(library)
    try:
        driver("cuInit", 0)
        count = ctypes.c_int()
        driver("cuDeviceGetCount", ctypes.byref(count))
    except DeviceFailed as error:
        raise NoDevice(str(error)) from None
    if not 0 <= number < count.value:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        only = f", CUDA_VISIBLE_DEVICES is {visible!r}" if visible is not None else ""
        raise NoDevice(f"device {number} of {count.value}{only}")
    return CudaDevice(driver, number)


class _Driver:
    """Functions of the driver by name; an error becomes a `DeviceFailed`."""

    def __init__(self, library):
        self._library = library

    def __call__(self, function, *arguments):
        status = self.status(function, *arguments)
        if status:
            raise DeviceFailed(f"{function}: {self._meaning(status)}")

    def status(self, function, *arguments):
        return getattr(self._library, function)(*arguments)

    def _meaning(self, status):
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        return text.value.decode() if text.value else f"error {status}"


class CudaDevice:
    """One device: what it is, and `run`."""

    def __init__(self, driver, number):
        self._driver, self._context = driver, None
        self._device = ctypes.c_int()
        driver("cuDeviceGet", ctypes.byref(self._device), number)
        name = ctypes.create_string_buffer(256)
        driver("cuDeviceGetName", name, len(name), self._device)
        self.name = name.value.decode(errors="replace")
        self.capability = self._attribute(_MAJOR), self._attribute(_MINOR)
        version = ctypes.c_int()
        driver("cuDriverGetVersion", ctypes.byref(version))
        self.driver = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        self.is_stuck = False

    def _attribute(self, which):
        value = ctypes.c_int()
        self._driver("cuDeviceGetAttribute", ctypes.byref(value), which, self._device)
        return value.value

    def run(self, kernel, words, timeout=20.0):
        """D of every tile.

        Args:
            kernel: a `Kernel`.
            words: operand name -> array [tiles, threads, words], as `Fragment.pack` makes them.
            timeout: seconds after which a kernel is given up.

        Returns:
            D, an array [tiles, threads, words].

        Raises:
            DeviceFailed: not compiled, not run, or not ended in time.
        """
        if self.is_stuck:
            raise DeviceFailed("not run: an earlier kernel did not end")
        self._enter()
        buffers = {}
        try:
            function = self._compile(kernel)
            of_d, tiles = kernel.fragments["D"], len(words["A"])
            d = np.zeros((tiles, *of_d.index.shape[:2]), of_d.word_dtype)
            arrays = {**words, "D": d}
            for name in kernel.fragments:
                buffers[name] = self._copied(np.ascontiguousarray(arrays[name]))
            self._launch(function, kernel, tiles, buffers, timeout)
            self._driver(
                "cuMemcpyDtoH_v2", d.ctypes.data_as(ctypes.c_void_p), buffers["D"], _size(d.nbytes)
            )
            return d
        except DeviceFailed:
            self._leave()  # after a fault nothing in it works: begin again with the next kernel
            raise
        finally:
            if self._context is not None and not self.is_stuck:
                for buffer in buffers.values():
                    self._driver.status("cuMemFree_v2", buffer)

    def _enter(self):
        if self._context is None:
            context = ctypes.c_void_p()
            self._driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
            self._context = context
            self._driver("cuCtxSetCurrent", context)

    def _leave(self):
        if not self.is_stuck:
            self._driver.status("cuDevicePrimaryCtxReset_v2", self._device)
            self._driver.status("cuDevicePrimaryCtxRelease_v2", self._device)
        self._context = None

    def _compile(self, kernel):
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_LOG_BUFFER, _LOG_SIZE)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        text = ctypes.c_char_p(kernel.text.encode())
        try:
            self._driver("cuModuleLoadDataEx", ctypes.byref(module), text, 2, options, values)
        except DeviceFailed as error:
            said = " ".join(log.value.decode(errors="replace").split())
            older = f"PTX {kernel.version} for {kernel.target}"
            raise DeviceFailed(f"{error} ({older}){': ' + said if said else ''}") from None
        self._driver("cuModuleGetFunction", ctypes.byref(function), module, ENTRY.encode())
        return function

    def _copied(self, array):
        address = ctypes.c_uint64()
        self._driver("cuMemAlloc_v2", ctypes.byref(address), _size(array.nbytes))
        source = array.ctypes.data_as(ctypes.c_void_p)
        self._driver("cuMemcpyHtoD_v2", address, source, _size(array.nbytes))
        return address

    def _launch(self, function, kernel, tiles, buffers, timeout):
        addresses = [buffers[name] for name in kernel.fragments]
        pointers = [ctypes.cast(ctypes.pointer(a), ctypes.c_void_p) for a in addresses]
        parameters = (ctypes.c_void_p * len(pointers))(*pointers)
        shape = tiles, 1, 1, kernel.threads, 1, 1, 0
        self._driver("cuLaunchKernel", function, *shape, None, parameters, None)
        end = time.monotonic() + timeout
        while status := self._driver.status("cuStreamQuery", None):
            if status != _NOT_READY:
                self._driver("cuStreamQuery", None)  # says what went wrong
            if time.monotonic() > end:
                self.is_stuck = True
                raise DeviceFailed(f"the kernel did not end within {timeout:g} s")
            time.sleep(_POLL_SECONDS)


def _size(count):
    return ctypes.c_size_t(count)
