// Colours: one for each op in the order of its first appearance, and those of the phases.

import type { Phase } from "./runs";
import { runs } from "./runs";
import { Store } from "./store";

// None of them is red, orange or yellow: those are the colours of transfers, spills and waits.
const palette = [
  "#5b8def",
  "#2fae9b",
  "#9b7bea",
  "#62a34b",
  "#d673b4",
  "#35a0d4",
  "#8b983a",
  "#6f67e8",
  "#35936a",
  "#b07fd0",
  "#54809f",
  "#a0708a",
];

export function opColor(op: string | number): string {
  const index = typeof op === "number" ? op : runs.op(op);
  return palette[index % palette.length] as string;
}

// nameColor is the colour of a name that is no op: always the same.
export function nameColor(name: string): string {
  let hash = 0;
  for (let i = 0; i < name.length; i++) hash = (hash * 31 + name.charCodeAt(i)) | 0;
  return palette[Math.abs(hash) % palette.length] as string;
}

export const phaseColors: Record<Phase, string> = {
  fetch: "#e5484d",
  spill: "#f0892b",
  wait: "#e3b424",
  deserialize: "#8d99ab",
  publish: "#5f6b7c",
};

export const phaseNames: Record<Phase, string> = {
  fetch: "transfer",
  spill: "read from lower tier",
  wait: "wait for memory",
  deserialize: "deserialise",
  publish: "store result",
};

export const failureColor = "#c4183c";

export type Theme = "light" | "dark";

// Frames of notebooks may have no storage.
function storedTheme(): string | null {
  try {
    return localStorage.getItem("millrace-theme");
  } catch {
    return null;
  }
}

const stored = storedTheme();
const system = window.matchMedia("(prefers-color-scheme: dark)");

export const theme = new Store<Theme>(
  stored === "dark" || stored === "light" ? stored : system.matches ? "dark" : "light",
);

export function applyTheme(): void {
  document.documentElement.dataset.theme = theme.value;
}

system.addEventListener("change", () => {
  if (storedTheme()) return;
  theme.set(system.matches ? "dark" : "light");
  applyTheme();
});

export function toggleTheme(): void {
  theme.set(theme.value === "dark" ? "light" : "dark");
  try {
    localStorage.setItem("millrace-theme", theme.value);
  } catch {
    // The choice lasts until the page is left.
  }
  applyTheme();
}

// token reads a colour of the style sheet, for canvases.
export function token(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
