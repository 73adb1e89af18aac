/** Another process of the tests of shared memory. It exports a gradient, reads shared columns, and answers each message. */
import { type DeviceGradient, type IpcColumn, POLICY_LOSS_FN, upload } from '../../lib/index.js';
import { column, makeColumns } from '../support/on-device.js';

/** What this process is asked to do. */
export type Question =
  | { ask: 'export'; device: string; scale: number }
  | { ask: 'free'; device: string }
  | { ask: 'read'; column: IpcColumn };
export interface Answer {
  values?: Float32Array;
  handle?: Uint8Array;
  error?: string;
}

const ppo = POLICY_LOSS_FN.create('ppo');
let grad: DeviceGradient | undefined;

// Computes a loss whose gradient depends on `scale`, and returns its values.
async function compute(device: string, scale: number): Promise<Float32Array> {
  const batch = { ...makeColumns(), advantages: column((i) => scale * ((i % 3) - 1)) };
  using resident = await upload(batch, device);
  grad = (await ppo.compute(resident, { grad: grad ?? 'shareable' })).deviceGrad!;
  return grad.toHost();
}

async function answer(question: Question): Promise<Answer> {
  switch (question.ask) {
    case 'export':
      return { values: await compute(question.device, question.scale), handle: await grad!.ipcHandle() };
    case 'free':
      grad!.dispose();
      grad = undefined;
      return { values: await compute(question.device, 1) }; // The memory was freed before this call.
    case 'read': {
      using resident = await upload({ ...makeColumns(), logprob: question.column }, question.column.device);
      return { values: (await ppo.compute(resident, { grad: true })).grad! };
    }
  }
}

process.on('message', (question: Question) => {
  answer(question)
    .catch((error: Error) => ({ error: error.message }))
    .then((result) => process.send!(result));
});
