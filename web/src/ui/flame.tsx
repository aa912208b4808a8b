// A flame graph: a box for each call, as wide as its share of the samples, below that of its caller.

import { useState } from "preact/hooks";
import { get, messageOf } from "../api";
import { nameColor } from "../colors";
import { type Box, boxesOf, type Call, callsOf, type Profile, stepFrom } from "../flame";
import { count, duration, percent } from "../format";
import { frozen } from "../frozen";
import { Card, Empty, useCall } from "./parts";

// The pause between two questions while tasks run, in milliseconds.
const pause = 10_000;

// FlameCard asks for a profile and shows it. `of` is the query of api/profile.
export function FlameCard(props: { title: string; of: string; running: boolean }) {
  const asked = useCall(
    () => get<Profile>(`api/profile?${props.of}`),
    [props.of, props.running],
    props.running ? pause : 0,
  );
  const profile = asked.value;
  const missing = (profile?.missing_workers ?? 0) + (profile?.missing_processes ?? 0);
  return (
    <Card
      title={props.title}
      aside={
        <div class="legend">
          {profile && profile.samples > 0 && (
            <span class="faint">
              {count(profile.samples)} samples, {duration(profile.samples * profile.interval_ms)}
              {missing > 0 ? `, without ${missing} workers or processes that did not answer` : ""}
            </span>
          )}
          {!frozen && (
            <button class="button" type="button" onClick={asked.again}>
              Refresh
            </button>
          )}
        </div>
      }
    >
      {asked.error ? <div class="notice bad round">{messageOf(asked.error)}</div> : ""}
      {profile && profile.samples > 0 && <Flame profile={profile} label={props.title} />}
      {!profile && !asked.error && <Empty title="Reading the samples" />}
      {profile?.samples === 0 && (
        <Empty title="There are no samples">
          Python functions are sampled every 10 ms while they run; native operations and other
          programs are not. Processes that have ended take their samples with them.
        </Empty>
      )}
    </Card>
  );
}

function told(box: Box, profile: Profile): string {
  const { call } = box;
  const ms = call.samples * profile.interval_ms;
  return `${call.name}, ${duration(ms)}, ${percent(call.samples, profile.samples)}`;
}

// usePlace keeps a call of a profile, by its number; -1: none. It is the same call when the profile
// has come again, with other numbers.
function usePlace(calls: Call[]): [number, (index: number) => void] {
  const [path, setPath] = useState("");
  const index = path ? calls.findIndex((c) => c.path === path) : -1;
  return [index, (to) => setPath(calls[to]?.path ?? "")];
}

function Flame(props: { profile: Profile; label: string }) {
  const { profile } = props;
  const calls = callsOf(profile);
  const [root, setRoot] = usePlace(calls);
  const [chosen, setChosen] = usePlace(calls);
  const boxes = boxesOf(calls, profile.samples, root);
  const at = boxes.find((b) => b.index === chosen);
  const levels = boxes.reduce((most, b) => Math.max(most, b.call.depth + 1), 1);
  const press = (event: KeyboardEvent) => {
    if (event.key.startsWith("Arrow")) setChosen(stepFrom(boxes, chosen, event.key));
    else if (event.key === "Enter" && at) setRoot(at.index);
    else if (event.key === "0" || event.key === "Escape") setRoot(-1);
    else return;
    event.preventDefault();
  };
  const click = (event: MouseEvent) => {
    const box = (event.target as HTMLElement).dataset.call;
    if (box === undefined) return;
    setChosen(Number(box));
    setRoot(Number(box) === root ? -1 : Number(box));
  };
  return (
    <>
      <div class="flame-note" role="status">
        {at ? (
          <>
            <b>{told(at, profile)}</b>
            <div class="mono soft">{at.call.place}</div>
            <div class="mono">{at.call.text}</div>
          </>
        ) : (
          <span class="faint">Click a call to show it in full width.</span>
        )}
      </div>
      <div
        class="flame"
        role="tree"
        tabIndex={0}
        aria-label={`${props.label}. Arrows go to callers, calls and neighbours, Enter shows one call in full width, 0 shows all.`}
        aria-activedescendant={at ? `call-${at.index}` : undefined}
        onKeyDown={press}
        onClick={click}
        onFocus={() => at || setChosen(boxes[0]?.index ?? -1)}
        style={{ height: `${levels * 20}px` }}
      >
        {boxes.map((b) => (
          <div
            key={b.index}
            id={`call-${b.index}`}
            data-call={b.index}
            role="treeitem"
            tabIndex={-1}
            aria-level={b.call.depth + 1}
            aria-selected={b.index === chosen}
            aria-label={told(b, profile)}
            title={`${told(b, profile)}\n${b.call.place}\n${b.call.text}`}
            class={b.above ? "above" : undefined}
            style={{
              left: `${100 * b.left}%`,
              width: `${100 * b.width}%`,
              top: `${b.call.depth * 20}px`,
              "--of": nameColor(b.call.name),
            }}
          >
            {b.width > 0.01 ? b.call.name : ""}
          </div>
        ))}
      </div>
    </>
  );
}
