// Addresses of pages, in the part of the URL behind "#", so that no server needs to know them.

import { frozen } from "./frozen";
import { Store } from "./store";

// The section that is shown first.
export const home = frozen ? "report" : "overview";

export interface Place {
  path: string[];
  query: URLSearchParams;
}

// decoded is a part of an address as it was before its encoding. What is no encoding stays.
export function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function parse(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { path: parts, query: new URLSearchParams(query) };
}

export const place = new Store<Place>(parse(location.hash));

window.addEventListener("hashchange", () => place.set(parse(location.hash)));

export function link(...parts: (string | number)[]): string {
  return `#/${parts.map((p) => encodeURIComponent(String(p))).join("/")}`;
}

// linkTo is a link to one row of a list, which the page shows, marks and focuses.
export function linkTo(section: string, row: string | number): string {
  return `${link(section)}?row=${encodeURIComponent(String(row))}`;
}

export function go(hash: string): void {
  location.hash = hash;
}

// setQuery changes the query of the current page, without a step in the history.
export function setQuery(changes: Record<string, string>): void {
  const query = new URLSearchParams(place.value.query);
  for (const [key, value] of Object.entries(changes)) {
    if (value) query.set(key, value);
    else query.delete(key);
  }
  const text = query.toString();
  const hash = link(...place.value.path) + (text ? `?${text}` : "");
  window.history.replaceState(null, "", hash);
  place.set(parse(hash));
}
