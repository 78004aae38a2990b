"""A CUDA driver's functions in plain Python: memory, a launch by address, errors, a hang.

`mpcore.matmul.silicon.driver` calls it as it calls libcuda. What a launch computes is `mma` of the
kernel's instruction, on the fragments that lie in the memory; `compute` may be another arithmetic.
"""

import ctypes

import numpy as np

from mpcore.matmul.silicon.check import expected
from mpcore.matmul.silicon.driver import CudaDevice, _Driver

NOT_READY, NO_BINARY, ILLEGAL = 600, 209, 715


def number(argument):
    """The value of an argument, a plain number or one of ctypes."""
    return getattr(argument, "value", argument)


class Library:
    """The functions; `kernels` holds what is going to be loaded, by its text."""

    def __init__(self, capability, name, compute=expected, failing=None):
        self.capability, self.name, self.compute, self.failing = capability, name, compute, failing
        self.kernels, self.memory, self.loaded = {}, {}, None

    def cuDeviceGet(self, device, which):
        return 0

    def cuDeviceGetName(self, buffer, size, device):
        buffer.value = self.name.encode()
        return 0

    def cuDriverGetVersion(self, version):
        version._obj.value = 12090
        return 0

    def cuDeviceGetAttribute(self, value, which, device):
        value._obj.value = self.capability[which - 75]
        return 0

    def cuGetErrorString(self, status, text):
        text._obj.value = {NO_BINARY: b"no kernel image", ILLEGAL: b"illegal instruction"}[status]
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 1
        return 0

    def cuCtxSetCurrent(self, context):
        return 0

    def cuDevicePrimaryCtxReset_v2(self, device):
        self.memory.clear()
        return 0

    cuDevicePrimaryCtxRelease_v2 = cuCtxSetCurrent

    def cuModuleLoadDataEx(self, module, text, count, options, values):
        if self.failing == "compile":
            log = b"ptxas fatal : Unsupported .version\nsecond line\0"
            assert list(options) == [5, 6]
            ctypes.memmove(values[0], log, min(len(log), values[1]))
            return NO_BINARY
        self.loaded = self.kernels[text.value.decode()]
        return 0

    def cuModuleGetFunction(self, function, module, name):
        assert name == b"replay"
        return 0

    def cuMemAlloc_v2(self, address, size):
        address._obj.value = 4096 * (1 + len(self.memory))
        self.memory[address._obj.value] = bytearray(number(size))
        return 0

    def cuMemFree_v2(self, address):
        del self.memory[number(address)]
        return 0

    def cuMemcpyHtoD_v2(self, address, source, size):
        assert number(size) == len(self.memory[number(address)])
        self.memory[number(address)][:] = ctypes.string_at(source, number(size))
        return 0

    def cuMemcpyDtoH_v2(self, target, address, size):
        ctypes.memmove(target, bytes(self.memory[number(address)]), number(size))
        return 0

    def cuLaunchKernel(self, function, *arguments):
        *shape, stream, parameters, extra = arguments
        kernel = self.loaded
        assert shape[1:] == [1, 1, kernel.threads, 1, 1, 0] and stream is None and extra is None
        addresses = [
            ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint64)).contents.value
            for pointer in parameters
        ]
        codes = {}
        for address, (name, fragment) in zip(addresses, kernel.fragments.items(), strict=True):
            words = np.frombuffer(self.memory[address], fragment.word_dtype)
            words = words.reshape(shape[0], *fragment.index.shape[:2])
            codes[name] = fragment.unpack(words).reshape(-1, *fragment.shape[1:])
        of_d = kernel.fragments["D"]
        del codes["D"]
        d = self.compute(kernel.instruction, codes).reshape(-1, *of_d.shape)
        where = addresses[list(kernel.fragments).index("D")]
        self.memory[where][:] = of_d.pack(d).tobytes()
        return 0

    def cuStreamQuery(self, stream):
        return {"hang": NOT_READY, "fault": ILLEGAL}.get(self.failing, 0)


class Gpu(CudaDevice):
    """The real `CudaDevice` on the stand-in's functions."""

    def __init__(self, capability, name="Stand-in GPU", **about):
        self.library = Library(capability, name, **about)
        super().__init__(_Driver(self.library), 0)

    def run(self, kernel, words, timeout=20.0):
        """As `CudaDevice.run`; the kernel is told to the library first."""
        self.library.kernels[kernel.text] = kernel
        return super().run(kernel, words, timeout)
