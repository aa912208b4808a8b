// Calls of the scheduler. All addresses are relative to the page, so that it works behind any path.

import { answerOf, frozen, resultOf, resultOfWorker } from "./frozen";

export interface Session {
  role: string;
  version: string;
  cluster_id: string;
  life: string;
  start_time: string;
  // Whether the cluster has tokens.
  tokens: boolean;
}

// CallError is the error of a call, with the reason that error.proto lists.
export class CallError extends Error {
  constructor(
    readonly status: number,
    readonly reason: string,
    message: string,
    readonly metadata: Readonly<Record<string, string>> = {},
  ) {
    super(message);
  }
}

async function send(path: string, init: RequestInit): Promise<Response> {
  const response = await fetch(path, { ...init, credentials: "same-origin" }).catch(() => {
    throw new CallError(0, "UNREACHABLE", "The scheduler does not answer.");
  });
  if (response.ok) return response;
  const text = await response.text();
  let reason = "";
  let message = text.trim() || response.statusText;
  let metadata: Record<string, string> = {};
  try {
    const body = JSON.parse(text) as {
      reason?: string;
      message?: string;
      metadata?: Record<string, string>;
    };
    reason = body.reason ?? "";
    message = body.message ?? message;
    metadata = body.metadata ?? {};
  } catch {
    // The body is text, for example that of a proxy.
  }
  throw new CallError(response.status, reason, message, metadata);
}

// kept gives an answer that the report has.
function kept<T>(answer: object | undefined): T {
  if (answer === undefined)
    throw new CallError(404, "NOT_IN_REPORT", "The report does not have this.");
  return answer as T;
}

const headers = { "Content-Type": "application/json", "X-Millrace": "1" };

// call calls a method of SchedulerService.
export async function call<T>(method: string, request: object = {}): Promise<T> {
  if (frozen) return kept<T>(resultOf(frozen, method, request));
  const response = await send(`api/millrace.v1.SchedulerService/${method}`, {
    method: "POST",
    headers,
    body: JSON.stringify(request),
  });
  return (await response.json()) as T;
}

// callWorker calls a method of DataService of a worker, or of another service.
export async function callWorker<T>(
  worker: string,
  method: string,
  request: object = {},
  service = "DataService",
) {
  if (frozen) return kept<T>(resultOfWorker(frozen, worker, method));
  const path = `api/workers/${encodeURIComponent(worker)}/millrace.v1.${service}/${method}`;
  const response = await send(path, { method: "POST", headers, body: JSON.stringify(request) });
  return (await response.json()) as T;
}

export async function get<T>(path: string): Promise<T> {
  if (frozen) return kept<T>(answerOf(frozen, path));
  const response = await send(path, { method: "GET" });
  return (await response.json()) as T;
}

export async function login(token: string): Promise<void> {
  await send("login", { method: "POST", headers, body: JSON.stringify({ token }) });
}

export async function logout(): Promise<void> {
  await send("logout", { method: "POST", headers: { "X-Millrace": "1" } });
}

// isMissing says whether a call failed because what it names does not exist, or cannot exist.
export function isMissing(error: unknown): boolean {
  return error instanceof CallError && (error.status === 404 || error.status === 400);
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
