// Draws a graph that is laid out, with pan and zoom.

import { failureColor, opColor, token } from "../colors";
import { type Layout, type Node, nodeHeight, nodeWidth } from "./layout";

const stateColors: Record<string, string> = {
  succeeded: "--bar-done",
  released: "--bar-released",
  running: "--bar-running",
  assigned: "--bar-running",
  failed: "--bar-failed",
  cancelled: "--bar-failed",
  rescuing: "--bar-running",
};

export class Dag {
  scale = 1;
  left = 0;
  top = 0;
  hovered = -1;
  // The viewer has chosen a part.
  moved = false;
  layout: Layout | null = null;

  // fit shows all of the graph.
  fit(width: number, height: number): void {
    const l = this.layout;
    this.moved = false;
    if (!l) return;
    this.scale = Math.min(1.4, (width - 48) / l.width, (height - 48) / Math.max(l.height, 1));
    this.left = (width - l.width * this.scale) / 2;
    this.top = (height - l.height * this.scale) / 2;
  }

  zoom(factor: number, x: number, y: number): void {
    this.moved = true;
    const scale = Math.min(4, Math.max(0.01, this.scale * factor));
    this.left = x - ((x - this.left) * scale) / this.scale;
    this.top = y - ((y - this.top) * scale) / this.scale;
    this.scale = scale;
  }

  pan(x: number, y: number): void {
    this.moved = true;
    this.left += x;
    this.top += y;
  }

  at(x: number, y: number): number {
    const [gx, gy] = [(x - this.left) / this.scale, (y - this.top) / this.scale];
    const nodes = this.layout?.nodes ?? [];
    return nodes.findIndex(
      (n) => gx >= n.x && gx <= n.x + nodeWidth && gy >= n.y && gy <= n.y + nodeHeight,
    );
  }

  paint(c: CanvasRenderingContext2D, width: number, height: number): void {
    c.fillStyle = token("panel");
    c.fillRect(0, 0, width, height);
    const layout = this.layout;
    if (!layout) return;
    c.save();
    c.translate(this.left, this.top);
    c.scale(this.scale, this.scale);
    const [line, text, soft] = [token("bar-waiting"), token("text"), token("soft")];
    const near = new Set<number>();
    for (const critical of [false, true]) {
      c.strokeStyle = critical ? failureColor : line;
      c.lineWidth = critical ? 2.5 : Math.max(1, 0.6 / this.scale);
      c.globalAlpha = critical ? 1 : layout.edges.length > 2000 ? 0.35 : 0.8;
      c.beginPath();
      for (const e of layout.edges) {
        if (e.critical !== critical) continue;
        const [a, b] = [layout.nodes[e.from] as Node, layout.nodes[e.to] as Node];
        curve(c, a, b);
        if (e.from === this.hovered || e.to === this.hovered) near.add(e.from).add(e.to);
      }
      c.stroke();
    }
    c.globalAlpha = 1;
    if (near.size > 0) {
      c.strokeStyle = text;
      c.lineWidth = 1.6;
      c.beginPath();
      for (const e of layout.edges) {
        if (e.from !== this.hovered && e.to !== this.hovered) continue;
        curve(c, layout.nodes[e.from] as Node, layout.nodes[e.to] as Node);
      }
      c.stroke();
    }
    c.font = "11.5px system-ui, sans-serif";
    c.textBaseline = "middle";
    const style = getComputedStyle(document.documentElement);
    const panel = token("raised");
    for (const [i, n] of layout.nodes.entries()) {
      const x = n.x * this.scale + this.left;
      const y = n.y * this.scale + this.top;
      if (
        x > width ||
        y > height ||
        x + nodeWidth * this.scale < 0 ||
        y + nodeHeight * this.scale < 0
      ) {
        continue;
      }
      const state = style.getPropertyValue(stateColors[n.state] ?? "--bar-waiting");
      if (this.scale < 0.28) {
        c.fillStyle = n.critical ? failureColor : state;
        c.fillRect(n.x, n.y, nodeWidth, nodeHeight);
        continue;
      }
      c.beginPath();
      c.roundRect(n.x, n.y, nodeWidth, nodeHeight, 6);
      c.fillStyle = panel;
      c.fill();
      c.lineWidth = i === this.hovered || n.critical ? 2 : 1;
      c.strokeStyle = n.critical ? failureColor : i === this.hovered ? text : line;
      c.stroke();
      c.fillStyle = opColor(n.op);
      c.beginPath();
      c.roundRect(n.x + 6, n.y + 7, 12, 12, 3);
      c.fill();
      c.fillStyle = state;
      c.beginPath();
      c.arc(n.x + nodeWidth - 11, n.y + nodeHeight / 2, 4, 0, 7);
      c.fill();
      c.fillStyle = n.state === "released" ? soft : text;
      const label = n.label.length > 15 ? `${n.label.slice(0, 14)}…` : n.label;
      c.fillText(label, n.x + 24, n.y + nodeHeight / 2 + 0.5);
    }
    c.restore();
  }
}

function curve(c: CanvasRenderingContext2D, a: Node, b: Node): void {
  const [x0, y0] = [a.x + nodeWidth, a.y + nodeHeight / 2];
  const [x1, y1] = [b.x, b.y + nodeHeight / 2];
  const bend = Math.max(24, (x1 - x0) / 2);
  c.moveTo(x0, y0);
  c.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
}
