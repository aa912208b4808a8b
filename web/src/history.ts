// The curves of the last hours: the samples of the scheduler, and then what the stream tells.

import { get } from "./api";
import type { Summary } from "./types";

export const seriesNames = [
  "time",
  "tasks_per_second",
  "busy_slots",
  "slots",
  "ready",
  "memory_bytes",
  "gpu_bytes",
  "disk_bytes",
  "bytes_per_second",
] as const;
export type SeriesName = (typeof seriesNames)[number];

// The largest number of points that the page keeps.
const kept = 20_000;

class History {
  private columns = new Map<SeriesName, number[]>(seriesNames.map((name) => [name, []]));

  // of gives a series; "time" is in milliseconds since 1970.
  of(name: SeriesName): number[] {
    return this.columns.get(name) ?? [];
  }

  clear(): void {
    for (const column of this.columns.values()) column.length = 0;
  }

  add(s: Summary): void {
    const tier = (name: string) => s.tiers?.find((t) => t.tier === name)?.used_bytes ?? 0;
    const time = Date.parse(s.time);
    const times = this.of("time");
    // One point a second is enough for curves.
    if (time - (times[times.length - 1] ?? 0) < 900) return;
    this.push({
      time,
      tasks_per_second: s.tasks_per_second,
      busy_slots: s.busy_slots,
      slots: s.slots,
      ready: s.tasks.ready ?? 0,
      memory_bytes: tier("memory"),
      gpu_bytes: tier("gpu"),
      disk_bytes: tier("disk"),
      bytes_per_second: (s.routes ?? []).reduce((sum, r) => sum + r.bytes_per_second, 0),
    });
    if (times.length > kept) {
      for (const column of this.columns.values()) column.splice(0, kept / 10);
    }
  }

  // load puts the samples of the scheduler before what the page has seen itself.
  async load(): Promise<void> {
    const samples = await get<{ columns: string[]; rows: number[][] }>("api/samples").catch(
      () => null,
    );
    const at = samples?.columns.indexOf("time") ?? -1;
    if (!samples || at < 0) return;
    const first = this.of("time")[0] ?? Number.POSITIVE_INFINITY;
    const rows = samples.rows.filter((row) => (row[at] ?? 0) * 1000 < first);
    const pathRates = samples.columns.flatMap((name, i) =>
      name.endsWith("_bytes_per_second") ? [i] : [],
    );
    for (const name of seriesNames) {
      const column = samples.columns.indexOf(name);
      const old = rows.map((row) => {
        if (name === "time") return (row[at] ?? 0) * 1000;
        if (name === "bytes_per_second") return pathRates.reduce((s, i) => s + (row[i] ?? 0), 0);
        return row[column] ?? 0;
      });
      this.columns.set(name, [...old, ...this.of(name)]);
    }
  }

  private push(point: Record<SeriesName, number>): void {
    for (const name of seriesNames) this.of(name).push(point[name] ?? 0);
  }
}

export const history = new History();
