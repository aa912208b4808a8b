// The sizes of the matrix of routes.

// The side of a cell of a large matrix, in pixels.
export const smallestCell = 6;

// sizesOf gives the sides of the cells of n workers in a width, and those of the labels at the left
// and above. Cells shrink until all fit; the smallest ones have no labels, and scroll.
export function sizesOf(n: number, room: number): { cell: number; label: number; head: number } {
  const fits = (label: number) => Math.min(104, Math.floor((room - label) / n));
  const labelled = fits(108) >= 14;
  const cell = Math.max(smallestCell, labelled ? fits(108) : fits(8));
  const label = labelled ? 108 : 8;
  return { cell, label, head: cell >= 64 ? 26 : label };
}
