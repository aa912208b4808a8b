// An example of a client of Millrace in Node. It computes with arrays, reads and writes their
// bytes, and shows the errors. millrace.js has the calls, README.md the commands to run it.

import { randomUUID } from 'node:crypto';
import { Client, errorInfo, findCluster } from './millrace.js';

// Values of arguments.
const int = (n) => ({ intValue: n });
const text = (s) => ({ stringValue: s });
const input = (index) => ({ input: index });

const key = (name) => `${run}/${name}`;
const run = `example-node-${randomUUID()}`; // makes new keys, so that each run computes anew

function check(condition, message) {
  if (!condition) throw new Error(message);
}

// elements returns a tensor's bytes, from its first element on, and the distance of its elements.
function elements({ value: { tensorValue: tensor }, frames }, dtype) {
  check(tensor?.dtype === dtype && tensor.shape.length <= 1, `no ${dtype} with one axis at most`);
  const bytes = tensor.location === 'frame' ? frames[tensor.frame] : tensor.inlineData;
  const stride = tensor.strides.length > 0 ? Number(tensor.strides[0]) : 8;
  return { bytes, at: (i) => Number(tensor.offsetBytes) + i * stride };
}

async function computeGraph(client) {
  // One submission. Only results with `hold` are kept; the others are dropped after their use.
  const count = 1_000_000;
  const [, , totalId, largeId] = await client.submit([
    { key: key('numbers'), op: 'array.arange', arguments: { positional: [int(1000)] } },
    {
      key: key('squares'), op: 'array.map', inputs: [key('numbers')],
      arguments: { positional: [text('x0 * x0'), input(0)] },
    },
    {
      key: key('total'), op: 'array.reduce', inputs: [key('squares')],
      arguments: { positional: [input(0), text('sum')] }, hold: true,
    },
    {
      key: key('large'), op: 'array.arange',
      arguments: { positional: [int(count)], named: { dtype: text('float64') } }, hold: true,
    },
  ]);

  // A small result arrives with the update of its task, a large one is read from a worker.
  const total = elements(await client.result(totalId), 'DTYPE_INT64');
  const sum = total.bytes.readBigInt64LE(total.at(0));
  check(sum === 332_833_500n, `the sum of the squares is ${sum}`);
  const large = elements(await client.result(largeId), 'DTYPE_FLOAT64');
  for (let i = 0; i < count; i++) {
    const x = large.bytes.readDoubleLE(large.at(i));
    check(x === i, `element ${i} is ${x}`);
  }
  console.log(`sum of squares: ${sum}; all ${count} elements of the large array are right`);
}

async function writeArray(client) {
  // A task without operation stands for the array of this program, so that other tasks can need it.
  const array = Float64Array.from({ length: 1_000_000 }, (_, i) => i / 2);
  const tasks = [
    { key: key('array'), opIndex: 0, hold: true },
    {
      key: key('mean'), op: 'array.reduce', inputs: [key('array')],
      arguments: { positional: [input(0), text('mean')] }, hold: true,
    },
  ];
  const [arrayId, meanId] = await client.submit(tasks, { ops: [{ kind: 'OP_KIND_DATA' }] });
  const tensorValue = { dtype: 'DTYPE_FLOAT64', shape: [array.length], frame: 0 };
  await client.write(arrayId, { tensorValue }, [Buffer.from(array.buffer)]);
  const { bytes, at } = elements(await client.result(meanId), 'DTYPE_FLOAT64');
  const mean = bytes.readDoubleLE(at(0));
  check(mean === 249_999.75, `the mean of the written array is ${mean}`);
  console.log(`mean of the written array: ${mean}`);
}

async function showErrors(client) {
  // A task that fails: its update has the error.
  const [failId] = await client.submit([{
    key: key('fail'), op: 'bench.fail', arguments: { positional: [text('no luck')] }, hold: true,
  }]);
  const { error } = await client.end(failId);
  check(error?.reason === 'OP_FAILED', 'the task did not fail as it should');
  console.log(`a task failed: ${error.reason}: ${error.message}`);

  // A call that fails: programs decide by the reason.
  const refusal = await client.submit([{ key: key('bad'), op: 'array.nope' }]).catch((e) => e);
  const { reason, metadata } = errorInfo(refusal);
  check(reason === 'UNKNOWN_OP', `the unknown operation was not refused: ${refusal}`);
  console.log(`a call failed: ${reason}: ${metadata.object}: ${refusal.details}`);

  // A task that cannot run, because no worker has the resource that it needs.
  const task = { key: key('stuck'), op: 'bench.noop', optionsIndex: 1, hold: true };
  const [stuckId] = await client.submit([task], { options: [{ resources: { telescope: 1 } }] });
  const { status, explanation } = await client.call('explainTask', { task: { id: stuckId } });
  check(status === 'TASK_STATUS_NO_WORKER_FITS', `the status is ${status}: ${explanation}`);
  console.log(`a task cannot run: ${explanation}`);
  await client.cancel(stuckId, 'nobody has a telescope');
  const { state } = await client.end(stuckId);
  check(state === 'TASK_STATE_CANCELLED', `the cancelled task is ${state}`);
}

try {
  const client = await Client.open('example-node', findCluster());
  await computeGraph(client);
  await writeArray(client);
  await showErrors(client);
  await client.close(); // the results of a program that ends without it are kept for 30 s
  console.log('ok');
} catch (error) {
  const { reason } = errorInfo(error);
  console.error(`error: ${reason ? `${reason}: ` : ''}${error.details || error.message}`);
  process.exit(1);
}
