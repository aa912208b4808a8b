"""Compiles gather.cu to CUBINs beside it: python build.py. Needs no GPU, but NVIDIA's NVRTC, from the wheel
nvidia-cuda-nvrtc (checked with 13.0) or the library named by MILLRACE_NVRTC."""

import ctypes
import os
import pathlib
import site
import sys

ARCHITECTURES = (80, 90, 100)
HERE = pathlib.Path(__file__).parent


def library() -> ctypes.CDLL:
    """Load NVRTC from where it is named, or from the wheel."""
    if name := os.environ.get("MILLRACE_NVRTC"):
        return ctypes.CDLL(name)
    for folder in [*site.getsitepackages(), *sys.path]:
        for found in sorted(pathlib.Path(folder).glob("nvidia/*/lib/libnvrtc.so.1[0-9]")):
            for part in found.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(part))  # else NVRTC would look for it where the system has its libraries
            return ctypes.CDLL(str(found))
    sys.exit("there is no NVRTC; pip install nvidia-cuda-nvrtc, or set MILLRACE_NVRTC to its libnvrtc.so")


def compiled(nvrtc: ctypes.CDLL, source: bytes, architecture: int) -> bytes:
    """Return the CUBIN of a source."""
    program = ctypes.c_void_p()
    if r := nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"gather.cu", 0, None, None):
        sys.exit(f"nvrtcCreateProgram: {r}")
    options = [f"--gpu-architecture=sm_{architecture}".encode(), b"--std=c++17"]
    r = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    if r:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(f"sm_{architecture}: {log.value.decode()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return cubin.raw


def main() -> None:
    """Write one CUBIN for each architecture."""
    nvrtc, source = library(), (HERE / "gather.cu").read_bytes()
    for architecture in ARCHITECTURES:
        cubin = compiled(nvrtc, source, architecture)
        (HERE / f"gather.sm_{architecture}.cubin").write_bytes(cubin)
        print(f"sm_{architecture}: {len(cubin)} bytes")


if __name__ == "__main__":
    main()
