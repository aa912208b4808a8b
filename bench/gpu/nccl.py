"""Measures NCCL, to compare it with our transfers: python nccl.py [GPUs] [MiB per pair].

Each line is one figure: a time, and the bytes that all GPUs together received. The exit code is 77
if torch is not installed.
"""

import os
import socket
import sys
import time

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
except ImportError as error:
    print(f"nccl: {error}", file=sys.stderr)
    sys.exit(77)

WARM, ROUNDS = 5, 60


def timed(name: str, rank: int, world: int, pair: int, moved: int, call) -> None:
    """Prints the time of a collective, and the bytes that all GPUs together received."""
    for _ in range(WARM):
        call()
    torch.cuda.synchronize()
    dist.barrier()
    began = time.perf_counter()
    for _ in range(ROUNDS):
        call()
    torch.cuda.synchronize()
    took = (time.perf_counter() - began) / ROUNDS
    if rank == 0:
        what = f"nccl {name} of {pair >> 20} MiB, {world} GPUs"
        print(f"{what:<55} {took * 1e3:8.3f} ms", flush=True)
        print(f"{what + ', in all':<55} {moved / took / 1e9:8.1f} GB/s", flush=True)


def run(rank: int, world: int, pair: int) -> None:
    """Measures on one GPU."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    ours = torch.empty(world * pair, dtype=torch.uint8, device="cuda")
    theirs = torch.empty_like(ours)
    one = torch.empty(pair, dtype=torch.uint8, device="cuda")
    timed("all-to-all", rank, world, pair, world * (world - 1) * pair, lambda: dist.all_to_all_single(theirs, ours))
    timed("all-gather", rank, world, pair, world * (world - 1) * pair, lambda: dist.all_gather_into_tensor(theirs, one))
    timed("broadcast", rank, world, pair, (world - 1) * pair, lambda: dist.broadcast(one, 0))
    dist.destroy_process_group()


def main() -> None:
    """Starts a process for each GPU."""
    world = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    pair = (int(sys.argv[2]) if len(sys.argv) > 2 else 256) << 20
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    # Disable NVLink multicast (NVLS): copies between peers cannot use it.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, NCCL_NVLS_ENABLE="0")
    mp.spawn(run, args=(world, pair), nprocs=world)


if __name__ == "__main__":
    main()
