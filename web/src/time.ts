// The time of the scheduler, by which it dates all that a page shows. The clock of the browser may
// be ahead of the scheduler's, or behind it.

import { frozen } from "./frozen";

// The number of the latest messages that are compared.
const compared = 8;

// SchedulerClock learns the time of the scheduler from messages that carry it. A message may come
// late, since the page was busy or the network slow, and some are made before they are sent. So the
// one of the latest messages counts that was the fastest.
export class SchedulerClock {
  // The scheduler's clock less that of the page, in milliseconds, as the latest messages had it.
  private ahead: number[] = [];

  // heard takes the time of a message that has just come.
  heard(time: number, now: number): void {
    if (Number.isFinite(time)) this.ahead = [...this.ahead, time - now].slice(-compared);
  }

  // at gives the scheduler's time at a time of the page; null: it has said nothing yet.
  at(now: number): number | null {
    return this.ahead.length > 0 ? now + Math.max(...this.ahead) : null;
  }

  // forget is called when another scheduler answers.
  forget(): void {
    this.ahead = [];
  }
}

const scheduler = new SchedulerClock();

// setClock takes the time of a message of the scheduler. The page's time is that of its monotonic
// clock, which nobody sets.
export function setClock(time: string): void {
  scheduler.heard(Date.parse(time), performance.now());
}

export function forgetClock(): void {
  scheduler.forget();
}

// presently is the scheduler's time, in milliseconds since 1970; until it has said one, that of the
// browser. Of a report, it is the time at which it was made.
export function presently(): number {
  if (frozen) return Date.parse(frozen.time);
  return scheduler.at(performance.now()) ?? Date.now();
}
