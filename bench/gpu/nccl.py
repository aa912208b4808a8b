"""What NCCL needs, to compare transfers between GPUs with: python nccl.py [GPUs] [MiB per pair]. Needs torch."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARM, ROUNDS = 5, 60


def timed(name: str, rank: int, world: int, moved: int, call) -> None:
    """Print the time of a collective, and the bytes that all GPUs together received."""
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
        print(
            f"nccl {name + ', ' + str(world) + ' GPUs:':<40} {took * 1e3:10.3f} ms {moved / took / 1e9:10.1f} GB/s in all",
            flush=True,
        )


def run(rank: int, world: int, pair: int) -> None:
    """Measure on one GPU."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    ours = torch.empty(world * pair, dtype=torch.uint8, device="cuda")
    theirs = torch.empty_like(ours)
    one = torch.empty(pair, dtype=torch.uint8, device="cuda")
    timed("all-to-all", rank, world, world * (world - 1) * pair, lambda: dist.all_to_all_single(theirs, ours))
    timed("all-gather", rank, world, world * (world - 1) * pair, lambda: dist.all_gather_into_tensor(theirs, one))
    timed("broadcast", rank, world, (world - 1) * pair, lambda: dist.broadcast(one, 0))
    dist.destroy_process_group()


def main() -> None:
    """Start a process for each GPU."""
    world = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    pair = (int(sys.argv[2]) if len(sys.argv) > 2 else 256) << 20
    # The multicast of switches is not what peers can do by copies.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", NCCL_NVLS_ENABLE="0")
    mp.spawn(run, args=(world, pair), nprocs=world)


if __name__ == "__main__":
    main()
