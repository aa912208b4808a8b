// The places of the nodes of a graph: layers from left to right, and few crossings.

export interface Node {
  id: string;
  label: string;
  // The index of its colour, by op.
  op: string;
  state: string;
  ms: number;
  // A task number to open; empty: the node stands for an op.
  task: string;
  count: number;
  critical: boolean;
  x: number;
  y: number;
}

export interface Edge {
  from: number;
  to: number;
  critical: boolean;
}

export interface Layout {
  nodes: Node[];
  edges: Edge[];
  width: number;
  height: number;
  // The length of the critical path, in milliseconds.
  criticalMs: number;
}

export const nodeWidth = 132;
export const nodeHeight = 26;
const rowStep = 34;
// The distances from one layer to the next, and between columns of the same layer.
const layerGap = 64;
const columnGap = 14;

// layOut sets the places of the nodes, and marks the path with the longest run time.
export function layOut(nodes: Node[], edges: Edge[]): Layout {
  const n = nodes.length;
  const next: number[][] = Array.from({ length: n }, () => []);
  const before: number[][] = Array.from({ length: n }, () => []);
  for (const e of edges) {
    next[e.from]?.push(e.to);
    before[e.to]?.push(e.from);
  }
  // In the order of the dependencies. Nodes of a cycle (only ops can have one) come last.
  const open = before.map((b) => b.length);
  const order = nodes.map((_, i) => i).filter((i) => open[i] === 0);
  for (let i = 0; i < order.length; i++) {
    for (const to of next[order[i] as number] ?? []) {
      open[to] = (open[to] ?? 0) - 1;
      if (open[to] === 0) order.push(to);
    }
  }
  const seen = new Set(order);
  for (let i = 0; i < n; i++) if (!seen.has(i)) order.push(i);

  const layer = new Array<number>(n).fill(0);
  const longest = new Array<number>(n).fill(0);
  const via = new Array<number>(n).fill(-1);
  const done = new Set<number>();
  for (const i of order) {
    for (const b of before[i] ?? []) {
      if (!done.has(b)) continue;
      layer[i] = Math.max(layer[i] ?? 0, (layer[b] ?? 0) + 1);
      if ((longest[b] ?? 0) >= (longest[i] ?? 0)) {
        longest[i] = longest[b] ?? 0;
        via[i] = b;
      }
    }
    longest[i] = (longest[i] ?? 0) + (nodes[i]?.ms ?? 0);
    done.add(i);
  }
  const columns: number[][] = [];
  for (const i of order) {
    const column = columns[layer[i] ?? 0] ?? [];
    columns[layer[i] ?? 0] = column;
    column.push(i);
  }
  const rank = new Array<number>(n).fill(0);
  const place = (column: number[]) => {
    column.forEach((i, r) => {
      rank[i] = r - (column.length - 1) / 2;
    });
  };
  columns.forEach(place);
  // Each pass orders the nodes of a layer by the mean place of their neighbours.
  for (let pass = 0; pass < 6; pass++) {
    const forward = pass % 2 === 0;
    const near = forward ? before : next;
    for (const column of forward ? columns : [...columns].reverse()) {
      const mean = new Map(
        column.map((i) => {
          const list = near[i] ?? [];
          const sum = list.reduce((s, b) => s + (rank[b] ?? 0), 0);
          return [i, list.length ? sum / list.length : (rank[i] ?? 0)];
        }),
      );
      column.sort((a, b) => (mean.get(a) ?? 0) - (mean.get(b) ?? 0));
      place(column);
    }
  }
  const { width, height } = arrange(nodes, columns, next, before);

  let end = -1;
  for (let i = 0; i < n; i++) if (end < 0 || (longest[i] ?? 0) > (longest[end] ?? 0)) end = i;
  const criticalMs = end < 0 ? 0 : (longest[end] ?? 0);
  const pairs = new Set<string>();
  for (let i = end; i >= 0 && criticalMs > 0; i = via[i] ?? -1) {
    (nodes[i] as Node).critical = true;
    if ((via[i] ?? -1) >= 0) pairs.add(`${via[i]}-${i}`);
  }
  for (const e of edges) e.critical = pairs.has(`${e.from}-${e.to}`);
  return {
    nodes,
    edges,
    width,
    height,
    criticalMs,
  };
}

// arrange sets the places. A layer with many nodes takes several columns, so that the whole is
// about as wide as it is high. Nodes without neighbours are below the rest.
function arrange(nodes: Node[], layers: number[][], next: number[][], before: number[][]) {
  const alone = (i: number) => (next[i]?.length ?? 0) + (before[i]?.length ?? 0) === 0;
  const single = layers.flat().filter(alone);
  single.sort((a, b) => (nodes[a]?.op ?? "").localeCompare(nodes[b]?.op ?? ""));
  const tied = layers.map((l) => l.filter((i) => !alone(i))).filter((l) => l.length > 0);
  const most = Math.max(10, Math.ceil(Math.sqrt(nodes.length) * 0.8));
  const rows = Math.min(most, Math.max(...tied.map((l) => l.length), 0));
  let x = 0;
  for (const layer of tied) {
    const columns = Math.ceil(layer.length / most);
    const each = Math.ceil(layer.length / columns);
    for (const [k, i] of layer.entries()) {
      const column = Math.floor(k / each);
      const inColumn = Math.min(each, layer.length - column * each);
      const node = nodes[i] as Node;
      node.x = x + column * (nodeWidth + columnGap);
      node.y = ((k % each) + (rows - inColumn) / 2) * rowStep;
    }
    x += columns * (nodeWidth + columnGap) - columnGap + layerGap;
  }
  let width = Math.max(x - layerGap, 0);
  let height = Math.max(rows * rowStep - (rowStep - nodeHeight), 0);
  if (single.length > 0) {
    const top = rows > 0 ? height + 2 * rowStep : 0;
    const across = Math.max(
      Math.floor((width + columnGap) / (nodeWidth + columnGap)),
      Math.ceil(Math.sqrt(single.length)),
    );
    for (const [k, i] of single.entries()) {
      const node = nodes[i] as Node;
      node.x = (k % across) * (nodeWidth + columnGap);
      node.y = top + Math.floor(k / across) * rowStep;
    }
    width = Math.max(width, Math.min(across, single.length) * (nodeWidth + columnGap) - columnGap);
    height = top + Math.ceil(single.length / across) * rowStep - (rowStep - nodeHeight);
  }
  return { width, height };
}
