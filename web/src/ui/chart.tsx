// Curves over time, by uPlot.

import { useEffect, useRef } from "preact/hooks";
import UPlot from "uplot";
import { theme, token } from "../colors";
import { axisSteps, clock } from "../format";
import { history, type SeriesName } from "../history";
import { summary, useStore } from "../store";

export interface Curve {
  series: SeriesName;
  name: string;
  color: string;
  fill?: boolean;
}

// times labels an axis by the clock, to the second where the labels are near each other. Without
// samples there is no time yet.
function times(_plot: UPlot, ticks: number[]): string[] {
  const near = (ticks[1] ?? 0) - (ticks[0] ?? 0) < 60;
  return ticks.map((t) => (t <= 0 ? "" : clock(t * 1000).slice(0, near ? 8 : 5)));
}

// smooth takes the mean of each value and of those before it.
function smooth(values: number[], of: number): number[] {
  let sum = 0;
  return values.map((v, i) => {
    sum += v - (i >= of ? (values[i - of] ?? 0) : 0);
    return Math.max(0, sum / Math.min(i + 1, of));
  });
}

// Chart shows the latest minutes of some series.
export function Chart(props: {
  label: string;
  curves: Curve[];
  format: (value: number) => string;
  of?: keyof typeof axisSteps;
  minutes: number;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<UPlot | null>(null);
  const colors = useStore(theme);

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const grid = { stroke: token("line-soft"), width: 1 };
    const axis = {
      stroke: token("faint"),
      font: "11px system-ui, sans-serif",
      grid,
      ticks: { show: false },
    };
    const chart = new UPlot(
      {
        width: element.clientWidth,
        height: element.clientHeight,
        padding: [8, 28, 0, 0], // The last time has half of its label at the right of its tick.
        cursor: { y: false, points: { size: 6 } },
        legend: { show: false },
        scales: {
          // One point alone has no span.
          x: { range: (_u, min, max) => (max > min ? [min, max] : [(max || 0) - 60, max || 0]) },
          y: { range: (_u, _min, max) => [0, max > 0 ? max * 1.12 : 1] },
        },
        axes: [
          { ...axis, space: 70, size: 24, values: times },
          {
            ...axis,
            ...{ size: 64, space: 34, values: (_u, ticks) => ticks.map(props.format) },
            ...(props.of ? { incrs: axisSteps[props.of] } : {}),
          },
        ],
        series: [
          {},
          ...props.curves.map((c) => ({
            label: c.name,
            stroke: c.color,
            width: 1.5,
            fill: c.fill ? `${c.color}26` : undefined,
            points: { show: false },
          })),
        ],
      },
      [[], ...props.curves.map(() => [])] as UPlot.AlignedData,
      element,
    );
    plot.current = chart;
    const observer = new ResizeObserver(() => {
      chart.setSize({ width: element.clientWidth, height: element.clientHeight });
    });
    observer.observe(element);
    const draw = () => {
      const times = history.of("time");
      const from = (times[times.length - 1] ?? 0) - props.minutes * 60_000;
      let first = times.findIndex((t) => t >= from);
      if (first < 0) first = 0;
      const xs = times.slice(first).map((t) => t / 1000);
      // Samples are of moments: over a long time, the mean of some of them is what can be read.
      const mean = Math.max(1, Math.round(xs.length / 100));
      const ys = props.curves.map((c) => smooth(history.of(c.series).slice(first), mean));
      chart.setData([xs, ...ys] as UPlot.AlignedData);
    };
    draw();
    const unfollow = summary.follow(draw);
    return () => {
      unfollow();
      observer.disconnect();
      chart.destroy();
    };
  }, [colors, props.minutes]);

  return (
    <>
      <div class="legend">
        {props.curves.map((c) => {
          const values = history.of(c.series);
          return (
            <span key={c.series}>
              <i class="swatch" style={{ background: c.color }} />
              {c.name} <b>{props.format(values[values.length - 1] ?? 0)}</b>
            </span>
          );
        })}
      </div>
      <div class="chart" ref={box} role="img" aria-label={props.label} />
    </>
  );
}

// Spark is a small curve without axes.
export function Spark(props: { series: SeriesName; color: string; label: string }) {
  const values = smooth(history.of(props.series).slice(-123), 4);
  const max = Math.max(...values, 1e-9);
  const points = values.map(
    (v, i) => `${(i * 100) / Math.max(values.length - 1, 1)},${27 - (25 * v) / max}`,
  );
  return (
    <svg
      class="spark"
      viewBox="0 0 100 28"
      preserveAspectRatio="none"
      width="100%"
      role="img"
      aria-label={props.label}
    >
      {points.length > 1 && (
        <>
          <polygon points={`0,28 ${points.join(" ")} 100,28`} fill={props.color} opacity="0.14" />
          <polyline
            points={points.join(" ")}
            fill="none"
            stroke={props.color}
            stroke-width="1.5"
            vector-effect="non-scaling-stroke"
          />
        </>
      )}
    </svg>
  );
}
