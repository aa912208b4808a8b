// Figures as people read them.

import { presently } from "./time";

const KiB = 1024;
const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(n: number): string {
  let unit = 0;
  let value = n;
  while (Math.abs(value) >= KiB && unit < units.length - 1) {
    value /= KiB;
    unit++;
  }
  return `${unit === 0 ? Math.round(value) : digits(value)} ${units[unit]}`;
}

export function rate(n: number): string {
  return `${bytes(n)}/s`;
}

// digits gives three significant digits, and a whole number without decimals.
function digits(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2);
}

const grouped = new Intl.NumberFormat("en-US");

export function count(n: number): string {
  return grouped.format(Math.round(n));
}

// plural gives a count with its noun.
export function plural(n: number, noun: string): string {
  return `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
}

// short gives a count that fits into a small place.
export function short(n: number): string {
  if (n < 10_000) return count(n);
  if (n < 1e6) return `${digits(n / 1e3)}k`;
  if (n < 1e9) return `${digits(n / 1e6)}M`;
  return `${digits(n / 1e9)}G`;
}

// perSecond gives a rate of tasks.
export function perSecond(n: number): string {
  return n < 10 ? `${Number(n.toFixed(n < 1 ? 2 : 1))}/s` : `${short(n)}/s`;
}

export function duration(ms: number): string {
  if (ms <= 0) return "0 ms";
  if (ms < 1) return `${digits(ms * 1000)} µs`;
  if (ms < 1000) return `${digits(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${digits(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

// ago gives the time since a moment.
export function ago(time: string | undefined, now = presently()): string {
  if (!time) return "–";
  const ms = now - Date.parse(time);
  return ms < 1500 ? "just now" : `${duration(Math.floor(ms / 1000) * 1000)} ago`;
}

export function clock(ms: number, fraction = false): string {
  const date = new Date(ms);
  const two = (n: number) => String(n).padStart(2, "0");
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return fraction ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

export function percent(part: number, whole: number): string {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–";
}

// fitted cuts a name in the middle until it fits: names of workers differ at their ends.
export function fitted(name = "", fits: (text: string) => boolean): string {
  let text = name;
  for (let kept = name.length - 1; kept > 1 && !fits(text); kept--) {
    const tail = Math.ceil(kept / 2);
    text = `${name.slice(0, kept - tail)}…${name.slice(name.length - tail)}`;
  }
  return text;
}

// progress is the share of what is done. It is 100 % only if all is.
export function progress(done: number, all: number): string {
  return all > 0 ? `${Math.floor((100 * done) / all)} %` : "–";
}

// num reads a number of protojson, where 64-bit integers are text and zeros are left out.
export function num(value: unknown): number {
  return value === undefined || value === null ? 0 : Number(value);
}

// seconds reads a duration of protojson ("1.5s"), in milliseconds.
export function millis(value: string | undefined): number {
  return value ? Number.parseFloat(value) * 1000 : 0;
}

// Distances between the labels of an axis: of bytes, powers of two, since their units are; of things
// that are counted, whole numbers.
export const axisSteps = {
  bytes: Array.from({ length: 60 }, (_, i) => 2 ** i),
  counts: Array.from({ length: 12 }, (_, i) => 10 ** i).flatMap((n) => [n, 2 * n, 5 * n]),
};

// sentence makes a sentence of the text of an error.
export function sentence(text: string): string {
  const end = /[.!?…]$/.test(text) ? "" : ".";
  return text === "" ? "" : `${text[0]?.toUpperCase()}${text.slice(1)}${end}`;
}

// readable makes lines for people of those lines of a log that are JSON, as the page of the logs has
// them. All other lines stay as they are.
export function readable(log: string): string {
  return log.split("\n").map(readableLine).join("\n");
}

function readableLine(line: string): string {
  if (!line.startsWith('{"time":')) return line;
  try {
    const { time, level, msg, ...rest } = JSON.parse(line) as Record<string, unknown>;
    const fields = Object.entries(rest).map(
      ([name, value]) => ` ${name}=${typeof value === "string" ? value : JSON.stringify(value)}`,
    );
    return `${clock(Date.parse(String(time)), true)} ${level} ${msg}${fields.join("")}`;
  } catch {
    return line; // It was cut.
  }
}

// word makes a word of the name of a state: TASK_STATE_RUNNING is "running".
export function word(state: string | undefined, prefix: string): string {
  return (state ?? "").replace(prefix, "").toLowerCase().replaceAll("_", " ");
}
