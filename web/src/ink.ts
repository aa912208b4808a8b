// Colours of the paths of transfers, and those of texts on them.

export const pathColors: Record<string, string> = {
  ipc: "#2fae9b",
  pinned: "#62a34b",
  borrow: "#35a0d4",
  ucx: "#6f67e8",
  grpc: "#f0892b",
};

// inkOn gives the colour of a text on a colour that covers a part of what is below: the one of dark
// and light that differs more from both together.
export function inkOn(color: string, share: number, below: string): string {
  const [over, under] = [channels(color), channels(below)];
  const [r = 0, g = 0, b = 0] = over.map((n, i) => n * share + (under[i] ?? 0) * (1 - share));
  return contrast([r, g, b], dark) >= contrast([r, g, b], light) ? "#000000" : "#ffffff";
}

type Channels = [number, number, number];
const dark: Channels = [0, 0, 0];
const light: Channels = [255, 255, 255];

// channels reads a colour of the form #rrggbb.
function channels(color: string): Channels {
  return [1, 3, 5].map((i) => Number.parseInt(color.slice(i, i + 2), 16)) as Channels;
}

// contrast is that of two colours, as WCAG 2 defines it.
function contrast(a: Channels, b: Channels): number {
  const [x, y] = [a, b].map((color) => {
    const [r = 0, g = 0, blue = 0] = color.map((n) => {
      const part = n / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * blue + 0.05;
  }) as [number, number];
  return Math.max(x, y) / Math.min(x, y);
}
