// Rates from sums that only grow, such as the bytes that a worker has moved so far.

import { num, rate } from "./format";
import { frozen } from "./frozen";
import { summary, workers } from "./store";
import type { Worker } from "./types";

type Sums = Record<string, number>;

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

  // of gives what grows per second; it is empty until there are two times.
  of(id: string): Sums {
    const points = this.seen.get(id) ?? [];
    const [first, last] = [points[0], points[points.length - 1]];
    if (!first || !last || last.at <= first.at) return {};
    const seconds = (last.at - first.at) / 1000;
    return Object.fromEntries(
      Object.entries(last.sums).map(([name, sum]) => {
        // A sum that shrinks is that of another process, which counts from the start.
        return [name, Math.max(0, sum - (first.sums[name] ?? 0)) / seconds];
      }),
    );
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
  return {
    written: num(w.spillWrittenBytes),
    read: num(w.spillReadBytes),
    received: num(w.receivedBytes),
    sent: num(w.sentBytes),
    nvLinkReceived: num(w.gpuHealth?.nvLinkReceivedBytes),
    nvLinkSent: num(w.gpuHealth?.nvLinkSentBytes),
  };
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
