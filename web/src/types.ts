// The messages that the page reads: those of the hub in snake case, and protojson of the API.

export interface Group {
  op: string;
  waiting: number;
  assigned: number;
  running: number;
  done: number;
  failed: number;
  cancelled: number;
  released: number;
  bytes: number;
  run_seconds_total: number;
}

export interface SlowRoute {
  reader: string;
  peer: string;
  path: string;
  bytes_per_second: number;
  // The median of the routes of the reader that are comparable, and their number.
  median_bytes_per_second: number;
  alike: number;
  good: boolean;
}

export interface Summary {
  time: string;
  tasks: Record<string, number>;
  tasks_per_second: number;
  workers: Record<string, number>;
  slots: number;
  busy_slots: number;
  clients: number;
  graphs: number;
  tiers: { tier: string; used_bytes: number; limit_bytes: number }[];
  routes: { path: string; bytes: number; bytes_per_second: number }[];
  // The slowest route of each reader, the slowest of all first.
  slow_routes?: SlowRoute[];
  groups: Group[];
  scheduler: { cpu_percent: number; rss_bytes: number; journal_lag_ms?: number };
}

export interface Alarm {
  id: string;
  kind: string;
  severity: string;
  since: string;
  subject: string;
  text: string;
  remedy: string;
}

export interface ClusterEvent {
  number: number;
  time: string;
  kind: string;
  severity: string;
  worker?: string;
  graph?: string | number;
  text: string;
}

export type Int64 = string | number;

export interface Route {
  peerWorkerId?: number;
  peer?: string;
  path?: string;
  state?: string;
  reason?: string;
  bytesPerSecond?: number;
  latency?: string;
  receivedBytes?: Int64;
  succeededFetches?: Int64;
  failedFetches?: Int64;
  transport?: string;
  staged?: string;
  connectBytesPerSecond?: number;
  connectionReason?: string;
}

export interface WorkerDeath {
  pid?: Int64;
  endTime?: string;
  cause?: string;
  exitCode?: number;
  signal?: string;
  lost?: boolean;
  outOfMemory?: boolean;
  runningKeys?: string[];
  logTail?: string;
}

export interface GpuHealth {
  usedBytes?: Int64;
  utilizationPercent?: number;
  memoryPercent?: number;
  clockMhz?: number;
  throttleReasons?: string[];
  watts?: number;
  celsius?: number;
  correctedEccErrors?: Int64;
  uncorrectedEccErrors?: Int64;
  xids?: Int64;
  lastEvent?: string;
  foreignProcesses?: number;
  foreignBytes?: Int64;
  nvLinkReceivedBytes?: Int64;
  nvLinkSentBytes?: Int64;
  pcieReceivedBytesPerSecond?: number;
  pcieSentBytesPerSecond?: number;
}

// What the kernel does not count is absent, and so are rates before the second look.
export interface NetworkDevice {
  name?: string;
  receivedBytes?: Int64;
  sentBytes?: Int64;
  receivedBytesPerSecond?: number;
  sentBytesPerSecond?: number;
}

export interface Gpu {
  uuid?: string;
  name?: string;
  pciBusId?: string;
  memoryBytes?: Int64;
  placement?: string;
  netDevices?: string;
  links?: { uuid?: string; nvLinks?: number; peerAccess?: boolean; reason?: string }[];
}

export interface Worker {
  workerId?: number;
  name?: string;
  incarnation?: string;
  state?: string;
  host?: string;
  pid?: Int64;
  dataAddress?: string;
  device?: string;
  gpu?: Gpu;
  gpuHealth?: GpuHealth;
  version?: string;
  executors?: string[];
  slots?: number;
  resources?: Record<string, number>;
  createTime?: string;
  lastSeenTime?: string;
  assignedTasks?: number;
  finishedTasks?: Int64;
  objects?: Int64;
  memoryLimitBytes?: Int64;
  memoryUsedBytes?: Int64;
  rssBytes?: Int64;
  receivedBytes?: Int64;
  sentBytes?: Int64;
  spilledBytes?: Int64;
  spillWrittenBytes?: Int64;
  spillReadBytes?: Int64;
  spillFailure?: string;
  executorDeaths?: Int64;
  lastExecutorDeath?: string;
  deathCount?: number;
  deaths?: WorkerDeath[];
  routes?: Route[];
  drain?: {
    purpose?: string;
    reason?: string;
    createTime?: string;
    copiedObjects?: Int64;
    copiedBytes?: Int64;
    remainingObjects?: Int64;
    remainingBytes?: Int64;
    stayingObjects?: Int64;
    staying?: { taskId?: Int64; key?: string; bytes?: Int64; reason?: string }[];
  };
  supervised?: boolean;
  networkDevices?: NetworkDevice[];
}

export type Counts = Partial<
  Record<
    | "waiting"
    | "ready"
    | "assigned"
    | "running"
    | "succeeded"
    | "failed"
    | "cancelled"
    | "released"
    | "rescuing",
    Int64
  >
>;

export interface Graph {
  graphId?: Int64;
  name?: string;
  namespace?: string;
  clientId?: Int64;
  state?: string;
  counts?: Counts;
  ops?: { op?: string; counts?: Counts; runTime?: string; outputBytes?: Int64 }[];
  createTime?: string;
  endTime?: string;
  firstError?: string;
}

export interface Client {
  clientId?: Int64;
  name?: string;
  namespace?: string;
  origin?: string;
  leaseTtl?: string;
  createTime?: string;
  lastSeenTime?: string;
  heldTasks?: Int64;
}

export interface Dataset {
  name?: string;
  namespace?: string;
  keyCount?: number;
  valueBytes?: Int64;
  createTime?: string;
  keys?: string[];
}

export interface TaskError {
  reason?: string;
  message?: string;
  originKey?: string;
  worker?: string;
  traceback?: string;
  logTail?: string;
  attempt?: number;
  attempts?: number;
}

// Keeper is what keeps a result: a client, a dataset or a detached graph that holds it, or a task
// that needs it.
export interface Keeper {
  kind: "client" | "dataset" | "graph" | "task";
  id?: string;
  name?: string;
  namespace?: string;
}

export interface Task {
  taskId?: Int64;
  key?: string;
  namespace?: string;
  graphId?: Int64;
  op?: { kind?: string; name?: string };
  state?: string;
  attempt?: number;
  worker?: string;
  replicas?: string[];
  outputBytes?: Int64;
  inputs?: string[];
  missingInputs?: number;
  waitingDependents?: number;
  holders?: number;
  error?: TaskError;
  options?: Record<string, unknown>;
  runTime?: string;
  createTime?: string;
  startTime?: string;
  history?: string[];
  retriesUsed?: number;
  workerDeaths?: number;
  logTail?: string;
  inputCount?: number;
}

export interface LogLine {
  time?: string;
  level?: string;
  text?: string;
}

export interface Explanation {
  status?: string;
  explanation?: string;
  missing?: Task[];
  workers?: {
    worker?: string;
    feasible?: boolean;
    reason?: string;
    queueTime?: string;
    missingBytes?: Int64;
    transferTime?: string;
    completionTime?: string;
    sources?: string;
  }[];
}

export interface Holding {
  taskId?: Int64;
  state?: string;
  copy?: boolean;
  reservationId?: Int64;
  owner?: { taskId?: Int64; workerId?: number; writtenTaskId?: Int64; executorSlot?: number };
  tierBytes?: Int64[];
  pins?: string[];
  leaseCount?: number;
  nextRank?: Int64;
  nextUse?: string;
}

export interface MemoryTier {
  name?: string;
  sizeBytes?: Int64;
  usedBytes?: Int64;
  objectBytes?: Int64;
  cleanBytes?: Int64;
  evictableBytes?: Int64;
  leavingBytes?: Int64;
  comingBytes?: Int64;
  largestFreeBytes?: Int64;
  writtenBytes?: Int64;
  readBytes?: Int64;
  failure?: string;
}

export interface ExecutorProcess {
  kind?: string;
  slot?: number;
  pid?: Int64;
  state?: string;
  stateTime?: string;
  taskId?: Int64;
  key?: string;
  op?: string;
  queuedTasks?: number;
  finishedTasks?: Int64;
  createTime?: string;
  memoryBytes?: Int64;
  language?: string;
}

export interface Memory {
  tiers?: MemoryTier[];
  largest?: Holding[];
  pinned?: Holding[];
  reservations?: {
    reservationId?: Int64;
    owner?: { taskId?: Int64; workerId?: number; writtenTaskId?: Int64; executorSlot?: number };
    requestedBytes?: Int64;
    loadBytes?: Int64;
    granted?: boolean;
    urgent?: boolean;
    age?: string;
  }[];
  smallObjectCount?: Int64;
  smallObjectBytes?: Int64;
  rssBytes?: Int64;
}
