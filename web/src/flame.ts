// The samples of stacks as a tree of calls, laid out for a flame graph.

// Profile is the answer of the scheduler. A row is a call behind its caller; the caller is the
// number of a row, counted from 1, or 0.
export interface Profile {
  samples: number;
  interval_ms: number;
  workers: number;
  missing_workers: number;
  missing_processes: number;
  columns: string[];
  rows: (number | string)[][];
}

export interface Call {
  // The index of the caller; -1: it is the function of a task.
  caller: number;
  samples: number;
  name: string;
  // The names and files of its callers and its own: its number is another one in a later answer.
  path: string;
  // The file with the line.
  place: string;
  // The text of the line.
  text: string;
  depth: number;
  // The number of samples left of it.
  left: number;
}

export function callsOf(profile: Profile): Call[] {
  const at = (name: string) => profile.columns.indexOf(name);
  const [caller, samples, name] = [at("caller"), at("samples"), at("name")];
  const [file, line, text] = [at("file"), at("line"), at("text")];
  const calls: Call[] = [];
  // The end of the calls that each caller has so far; that of no caller is the last one.
  const ends: number[] = [];
  let end = 0;
  for (const row of profile.rows) {
    const above = Number(row[caller]) - 1;
    const left = above < 0 ? end : (ends[above] ?? 0);
    const call = {
      caller: above,
      samples: Number(row[samples]),
      name: String(row[name]),
      path: `${calls[above]?.path ?? ""}\n${row[name]} ${row[file]}`,
      place: `${row[file]}:${row[line]}`,
      text: String(row[text]),
      depth: above < 0 ? 0 : (calls[above]?.depth ?? 0) + 1,
      left,
    };
    if (above < 0) end += call.samples;
    else ends[above] = left + call.samples;
    ends.push(left);
    calls.push(call);
  }
  return calls;
}

export interface Box {
  index: number;
  call: Call;
  // Its place, as shares of the width.
  left: number;
  width: number;
  // It calls what is shown in full.
  above: boolean;
}

// The narrowest box that is drawn, as a share of the width.
const narrowest = 0.0015;

// boxesOf gives the boxes of the calls inside of one, and those of its callers; -1: of all.
export function boxesOf(calls: Call[], samples: number, root: number): Box[] {
  const whole = calls[root] ?? { left: 0, samples: Math.max(samples, 1), depth: -1 };
  const callers = new Set<number>();
  for (let i = calls[root]?.caller ?? -1; i >= 0; i = calls[i]?.caller ?? -1) callers.add(i);
  const boxes: Box[] = [];
  for (const [index, call] of calls.entries()) {
    const above = callers.has(index);
    const left = (call.left - whole.left) / whole.samples;
    const width = call.samples / whole.samples;
    const inside = call.depth >= whole.depth && left >= 0 && left + width <= 1.000001;
    if (above) boxes.push({ index, call, left: 0, width: 1, above });
    else if (inside && width >= narrowest) boxes.push({ index, call, left, width, above });
  }
  return boxes;
}

// stepFrom gives the box to which an arrow leads; the same one if there is none.
export function stepFrom(boxes: Box[], from: number, key: string): number {
  const at = boxes.find((b) => b.index === from);
  if (!at) return boxes[0]?.index ?? -1;
  const beside = boxes.filter((b) => b.call.depth === at.call.depth);
  const place = beside.indexOf(at);
  const to =
    key === "ArrowUp"
      ? boxes.find((b) => b.index === at.call.caller)
      : key === "ArrowDown"
        ? boxes.find((b) => b.call.caller === from)
        : beside[place + (key === "ArrowLeft" ? -1 : 1)];
  return to?.index ?? from;
}
