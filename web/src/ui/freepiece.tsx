// How far the free bytes of a tier of memory are broken up.

import { bytes, num } from "../format";
import type { MemoryTier } from "../types";

// FreePiece is one line below the bar of a tier. There is none when nothing is free, or when the
// worker is too old to report it.
export function FreePiece({ tier }: { tier: MemoryTier }) {
  const largest = num(tier.largestFreeBytes);
  if (largest === 0) return null;
  const free = num(tier.sizeBytes) - num(tier.usedBytes);
  return (
    <span class="free faint">
      largest free piece {bytes(largest)} of {bytes(free)} free
    </span>
  );
}
