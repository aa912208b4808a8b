// Texts on coloured cells can be read in the light and in the dark.

import assert from "node:assert/strict";
import { test } from "node:test";
import { source } from "./source.mjs";

const { inkOn, pathColors } = await source("ink.ts");

const luminance = (color) => {
  const [r, g, b] = color.map((n) =>
    n / 255 <= 0.04045 ? n / 255 / 12.92 : ((n / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
};
const rgb = (color) => [1, 3, 5].map((i) => Number.parseInt(color.slice(i, i + 2), 16));

test("texts on cells of all shares have a contrast of 4.5 to 1", () => {
  for (const below of ["#e9ecf1", "#232935"]) {
    for (const [path, color] of Object.entries(pathColors)) {
      for (const share of [0.25, 0.5, 0.75, 1]) {
        const mixed = rgb(color).map((n, i) => n * share + rgb(below)[i] * (1 - share));
        const [x, y] = [luminance(mixed), luminance(rgb(inkOn(color, share, below)))];
        const contrast = Math.max(x, y) / Math.min(x, y);
        assert.ok(contrast >= 4.5, `${path} at ${share} on ${below}: ${contrast}`);
      }
    }
  }
});
