// Icons of 16 by 16, drawn with lines.

const shapes: Record<string, string> = {
  overview: "M2.5 2.5h4.5v6H2.5zM9 2.5h4.5v3.5H9zM9 8h4.5v5.5H9zM2.5 10.5H7v3H2.5z",
  report: "M4 1.5h5.5L12.5 4.500V14.500H4zM6 7h4.500M6 9.500h4.500M6 12h3",
  stream: "M2 4h6M10 4h4M2 8h3M7 8h7M2 12h8M12 12h2",
  workers: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  graphs: "M8 2.5v3M8 5.5 4 9M8 5.5 12 9M4 9v3M12 9v3M6.5 2.5h3M2.5 12h3M10.5 12h3",
  memory: "M4 4h8v8H4zM6 1.5V4M10 1.5V4M6 12v2.5M10 12v2.5M1.5 6H4M1.5 10H4M12 6h2.5M12 10h2.5",
  routes: "M2.5 2.5h11v11h-11zM2.5 6.2h11M2.5 9.8h11M6.2 2.5v11M9.8 2.5v11",
  datasets: "M3 4c0-2 10-2 10 0s-10 2-10 0v8c0 2 10 2 10 0V4M3 8c0 2 10 2 10 0",
  logs: "M3 3h10M3 6.3h7M3 9.6h10M3 13h5",
  events: "M8 2v2M8 12v2M2 8h2M12 8h2M8 5.5v3l2 1.5",
  clients: "M8 7.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM3 13.5c0-5 10-5 10 0",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.3 10.3 14 14",
  sun: "M8 10.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM8 1.5v1.5M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M12.6 3.4l-1 1M4.4 11.6l-1 1",
  moon: "M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7z",
  help: "M6 6c0-3 4.5-2.5 4 .3C9.700 7.600 8 7.800 8 9.500M8 12h.01",
  brand:
    "M1.500 5c2.200-2.500 4.300-2.500 6.500 0s4.300 2.500 6.500 0M1.500 8.500C3.700 6 5.800 6 8 8.500s4.300 2.500 6.500 0M1.500 12c2.200-2.500 4.300-2.500 6.500 0s4.300 2.500 6.500 0",
};

export function Icon(props: { name: string; size?: number }) {
  const size = props.size ?? 16;
  return (
    <svg
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      stroke-width="1.4"
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      <path d={shapes[props.name] ?? ""} />
    </svg>
  );
}
