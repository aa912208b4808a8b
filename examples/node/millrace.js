// The calls of Millrace that main.js makes: a lease, submissions, Watch, and objects of workers.

import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { Readable } from 'node:stream';
import { setTimeout as pause } from 'node:timers/promises';
import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';

// Numbers of 64 bits are strings here: JavaScript's numbers are exact up to 2^53 only, and a client
// id is random. With `oneofs`, `value.kind` is the name of the field that is set.
const options = { longs: String, enums: String, defaults: true, oneofs: true };
const definition = protoLoader.loadSync(
  ['millrace/v1/scheduler_service.proto', 'millrace/v1/data_service.proto'],
  { ...options, includeDirs: [process.env.MILLRACE_PROTOS ?? 'protos'] },
);
const { SchedulerService, DataService } = grpc.loadPackageDefinition(definition).millrace.v1;
const Value = definition['millrace.v1.Value'];

// The fields of google/rpc/status.proto and google/rpc/error_details.proto that errorInfo reads.
const { Status, ErrorInfo } = protoLoader.fromJSON({ nested: {
  Any: { fields: { typeUrl: { type: 'string', id: 1 }, value: { type: 'bytes', id: 2 } } },
  Status: { fields: { details: { type: 'Any', id: 3, rule: 'repeated' } } },
  ErrorInfo: { fields: {
    reason: { type: 'string', id: 1 },
    metadata: { type: 'string', id: 3, keyType: 'string' },
  } },
} }, options);

// errorInfo returns the reason and the metadata of a call that failed. Both are empty for errors
// that are not of Millrace, such as a broken connection.
export function errorInfo(error) {
  const [status] = error?.metadata?.get('grpc-status-details-bin') ?? [];
  const details = status ? Status.deserialize(status).details : [];
  const any = details.find(({ typeUrl }) => typeUrl.endsWith('/google.rpc.ErrorInfo'));
  return any ? ErrorInfo.deserialize(any.value) : { reason: '', metadata: {} };
}

// findCluster returns the address and the token of the cluster that the environment names.
export function findCluster() {
  const env = process.env;
  if (env.MILLRACE_ADDRESS) return { address: env.MILLRACE_ADDRESS, token: env.MILLRACE_TOKEN };
  if (env.MILLRACE_SCHEDULER_FILE) return JSON.parse(readFileSync(env.MILLRACE_SCHEDULER_FILE));
  throw new Error('set MILLRACE_ADDRESS and MILLRACE_TOKEN, or MILLRACE_SCHEDULER_FILE');
}

// connect returns a stub of a service whose calls have the token.
function connect(Service, address, token) {
  const authorize = (callOptions, next) => new grpc.InterceptingCall(next(callOptions), {
    start(metadata, listener, start) {
      metadata.set('authorization', `Bearer ${token}`);
      start(metadata, listener);
    },
  });
  return new Service(address, grpc.credentials.createInsecure(), {
    interceptors: [authorize],
    'grpc.max_receive_message_length': 64 << 20,
    'grpc.keepalive_time_ms': 20_000,
  });
}

const withDeadline = () => ({ deadline: Date.now() + 60_000 });

// call makes a call with one request and one response.
function call(stub, method, request) {
  return new Promise((resolve, reject) => {
    const done = (error, response) => (error ? reject(error) : resolve(response));
    stub[method](request, withDeadline(), done);
  });
}

// Client is a client's lease, and an open Watch that keeps it.
export class Client {
  #token;
  #scheduler;
  #id;
  #watch = new TaskWatch();

  static async open(name, { address, token }) {
    const client = new Client();
    client.#token = token;
    client.#scheduler = connect(SchedulerService, address, token);
    const request = { name, apiVersion: 'v1.0', origin: `${hostname()} node` };
    const { client: { clientId }, cluster } = await client.call('openClient', request);
    client.#id = clientId;
    client.#watch.run(client.#scheduler, clientId, cluster.life);
    return client;
  }

  // call calls a method of the scheduler.
  call(method, request) {
    return call(this.#scheduler, method, request);
  }

  // submit submits tasks, with the ops and options that they count, and returns the task ids. The
  // request id makes it safe to send the same submission again after UNAVAILABLE.
  async submit(tasks, tables = {}) {
    const header = { clientId: this.#id, requestId: randomUUID() };
    return (await this.call('submitBatch', { header, tasks, ...tables })).taskIds;
  }

  // end waits for the end of a task that this client holds, and returns the last update.
  end(taskId) {
    return this.#watch.end(taskId);
  }

  // result waits for the success of a task. It returns the value, and the frames of its tensors if
  // they are not inline.
  async result(taskId) {
    const { state, error, inlineResult } = await this.end(taskId);
    if (error) throw new Error(`${state}: ${error.originKey}: ${error.reason}: ${error.message}`);
    if (inlineResult) return { value: Value.deserialize(inlineResult), frames: [] };
    return this.#read(taskId);
  }

  async #read(taskId) {
    const { objects: [object], workers } = await this.call('locateObjects', { taskIds: [taskId] });
    if (workers.length === 0) throw new Error(`task ${taskId}: ${object.state}: no worker has it`);
    const data = connect(DataService, workers[0].dataAddress, this.#token);
    const stream = data.readObjects({ objects: [{ taskId }] }, withDeadline());
    try {
      let value;
      let frames;
      for await (const { error, head, frame, offset, data: piece } of stream) {
        if (error) throw new Error(`task ${taskId}: ${error.reason}: ${error.message}`);
        if (head) {
          value = Value.deserialize(head.header);
          frames = head.frameBytes.map((size) => Buffer.alloc(Number(size)));
        }
        // A message with the head may have the first piece, too.
        if (piece.length > 0) piece.copy(frames[frame], Number(offset));
      }
      return { value, frames };
    } finally {
      stream.cancel();
      data.close();
    }
  }

  // write stores the object of a task of the kind OP_KIND_DATA on a worker.
  async write(taskId, value, frames) {
    const { workers } = await this.call('listWorkers', { states: ['WORKER_STATE_ACTIVE'] });
    if (workers.length === 0) throw new Error('no worker is active');
    const frameBytes = frames.map((bytes) => bytes.length);
    const size = 4 << 20; // of the largest piece
    function* messages() {
      yield { head: { object: { taskId }, header: Value.serialize(value), frameBytes } };
      for (const [frame, bytes] of frames.entries()) {
        for (let offset = 0; offset < bytes.length; offset += size) {
          yield { frame, offset, data: bytes.subarray(offset, offset + size) };
        }
      }
    }
    const stub = connect(DataService, workers[0].dataAddress, this.#token);
    try {
      await new Promise((resolve, reject) => {
        const done = (error) => (error ? reject(error) : resolve());
        Readable.from(messages()).pipe(stub.writeObject(withDeadline(), done));
      });
    } finally {
      stub.close();
    }
  }

  async cancel(taskId, reason) {
    await this.call('cancelTasks', { clientId: this.#id, tasks: { ids: [taskId] }, reason });
  }

  async close() {
    this.#watch.close();
    await this.call('closeClient', { clientId: this.#id });
    this.#scheduler.close();
  }
}

const ENDED = ['TASK_STATE_SUCCEEDED', 'TASK_STATE_FAILED', 'TASK_STATE_CANCELLED'];

// TaskWatch is an open Watch. It follows the tasks that a client holds.
class TaskWatch {
  #stream;
  #revision = '0';
  #failure;
  #updates = new Map(); // by task id: its last update
  #waiting = new Map(); // by task id: the functions of a promise

  // run opens the stream, and again if the connection breaks, until the lease must have ended.
  async run(scheduler, clientId, life) {
    let lost; // time at which the connection broke
    while (!this.#failure) {
      try {
        this.#stream = scheduler.watch({ clientId, life, afterRevision: this.#revision });
        for await (const message of this.#stream) {
          lost = undefined;
          this.#receive(message);
        }
        this.#fail(new Error('the cluster shuts down'));
      } catch (error) {
        lost ??= Date.now();
        if (error.code !== grpc.status.UNAVAILABLE || Date.now() - lost > 30_000) this.#fail(error);
        await pause(100);
      }
    }
  }

  #receive({ revision, tasks }) {
    if (revision !== '0') this.#revision = revision;
    for (const update of tasks) {
      this.#updates.set(update.taskId, update);
      if (ENDED.includes(update.state)) this.#waiting.get(update.taskId)?.resolve(update);
    }
  }

  #fail(error) {
    this.#failure ??= error;
    for (const { reject } of this.#waiting.values()) reject(this.#failure);
  }

  end(taskId) {
    return new Promise((resolve, reject) => {
      const update = this.#updates.get(taskId);
      if (ENDED.includes(update?.state)) resolve(update);
      else if (this.#failure) reject(this.#failure);
      else this.#waiting.set(taskId, { resolve, reject });
    });
  }

  close() {
    this.#fail(new Error('the client is closed'));
    this.#stream.cancel();
  }
}
