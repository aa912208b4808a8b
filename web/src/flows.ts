// Rates from sums that only grow, such as the bytes that a worker has moved so far.

import { num, rate } from "./format";
import { frozen } from "./frozen";
import { summary, workers } from "./store";
import type { Worker } from "./types";

type Sums = Record<string, number>;

const millisPerSecond = 1000;

// Flows has the rates of things that have names, over the latest milliseconds.
export class Flows {
  private seen = new Map<string, { at: number; sums: Sums }[]>();

  constructor(private readonly span: number) {}

  // take notes the sums of all things at a time, in milliseconds. It forgets those that are gone.
  take(at: number, all: Iterable<[string, Sums]>): void {
    const next = new Map<string, { at: number; sums: Sums }[]>();
    for (const [id, sums] of all) {
      const before = (this.seen.get(id) ?? []).filter((p) => p.at >= at - this.span && p.at < at);
      next.set(id, [...before, { at, sums }]);
    }
    this.seen = next;
  }

  // of gives what grows per second. A sum is in it as soon as there are two times that have it.
  of(id: string): Sums {
    const points = this.seen.get(id) ?? [];
    const last = points[points.length - 1];
    const rates: Sums = {};
    for (const [name, sum] of Object.entries(last?.sums ?? {})) {
      const first = points.find((p) => name in p.sums);
      if (!first || !last || last.at <= first.at) continue;
      // A sum that shrinks is that of another process, which counts from the start.
      rates[name] =
        (Math.max(0, sum - (first.sums[name] ?? 0)) / (last.at - first.at)) * millisPerSecond;
    }
    return rates;
  }

  // since is the time from which on all rates are measured, in milliseconds; undefined: there are none.
  since(): number | undefined {
    return [...this.seen.values()].reduce<number | undefined>(
      (least, [first]) => (first ? Math.min(least ?? first.at, first.at) : least),
      undefined,
    );
  }
}

// movedBy gives the bytes that a worker has moved so far.
export function movedBy(w: Worker): Sums {
  const sums: Sums = {
    written: num(w.spillWrittenBytes),
    read: num(w.spillReadBytes),
    received: num(w.receivedBytes),
    sent: num(w.sentBytes),
  };
  const { nvLinkReceivedBytes, nvLinkSentBytes } = w.gpuHealth ?? {};
  if (nvLinkReceivedBytes !== undefined) sums.nvLinkReceived = num(nvLinkReceivedBytes);
  if (nvLinkSentBytes !== undefined) sums.nvLinkSent = num(nvLinkSentBytes);
  return sums;
}

// Workers report once a second.
const spanMs = 10_000;
const everyMs = 900;
let latest = 0;

// flows has what each worker moves now, by its number.
export const flows = new Flows(spanMs);

summary.follow(() => {
  const at = Date.parse(summary.value?.time ?? "");
  if (!(Math.abs(at - latest) >= everyMs)) return;
  latest = at;
  flows.take(
    at,
    [...workers.value].map(([id, w]): [string, Sums] => [id, movedBy(w)]),
  );
});

// flowing says how fast something moves. A report is of one moment, and has no rates.
export function flowing(perSecond: number | undefined): string {
  return frozen ? "–" : rate(perSecond ?? 0);
}
