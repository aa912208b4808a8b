from torch._allocator import begin as _begin
from torch._allocator import end as _cuda_endAllocateToPool
from torch._allocator import release as _cuda_releasePool


def _cuda_beginAllocateCurrentThreadToPool(device: int, pool: tuple[int, int]) -> None:
    _begin(device, pool)


__all__ = ["_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool", "_cuda_releasePool"]
