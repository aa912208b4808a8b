"""Compiles gather.cu to CUBINs and PTX beside it: python build.py. It needs no GPU, but NVIDIA's
NVRTC, from the wheel nvidia-cuda-nvrtc (checked with 13.0) or from the library that MILLRACE_NVRTC
names."""

import ctypes
import os
import pathlib
import site
import sys

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "compute_80")
HERE = pathlib.Path(__file__).parent


def library() -> ctypes.CDLL:
    """Loads NVRTC from the named library, or from the wheel."""
    if name := os.environ.get("MILLRACE_NVRTC"):
        return ctypes.CDLL(name)
    for folder in [*site.getsitepackages(), *sys.path]:
        for found in sorted(pathlib.Path(folder).glob("nvidia/*/lib/libnvrtc.so.1[0-9]")):
            for part in found.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(part))  # NVRTC would look for it elsewhere
            return ctypes.CDLL(str(found))
    sys.exit("there is no NVRTC; pip install nvidia-cuda-nvrtc, or set MILLRACE_NVRTC to its libnvrtc.so")


def compiled(nvrtc: ctypes.CDLL, source: bytes, architecture: str) -> bytes:
    """Returns the CUBIN of a source, or PTX if the architecture is virtual."""
    program = ctypes.c_void_p()
    if r := nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"gather.cu", 0, None, None):
        sys.exit(f"nvrtcCreateProgram: {r}")
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    r = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    if r:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(f"{architecture}: {log.value.decode()}")
    kind = "PTX" if architecture.startswith("compute") else "CUBIN"
    getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{kind}")(program, code)
    return code.raw


def main() -> None:
    """Writes one file for each architecture. PTX serves the devices without a CUBIN of their
    own."""
    nvrtc, source = library(), (HERE / "gather.cu").read_bytes()
    for architecture in ARCHITECTURES:
        code = compiled(nvrtc, source, architecture)
        (HERE / f"gather.{architecture}.{'ptx' if architecture.startswith('compute') else 'cubin'}").write_bytes(code)
        print(f"{architecture}: {len(code)} bytes")


if __name__ == "__main__":
    main()
