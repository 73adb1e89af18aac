// The packages of the queue. They are optional peer dependencies, which are loaded only by commands with a queue.
import { LossError } from '../../index.js';
import { describeFailure } from '../rollouts/source.js';
import { type QueueAddress, readAddress } from './address.js';

/** Loads BullMQ. */
export const bullmq = (): Promise<typeof import('bullmq')> => peer('bullmq', () => import('bullmq'));

const ioredis = () => peer('ioredis', () => import('ioredis'));

/**
 * Loads a package that need not be installed.
 * @throws LossError `ERR_INVALID_OPTION` if it is not installed.
 */
export async function peer<T>(name: string, load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ERR_MODULE_NOT_FOUND') throw error;
    const details = {
      option: 'queue',
      expected: 'the packages bullmq and ioredis',
      received: `no package ${name}`,
      hint: 'Install them with: npm install bullmq@6 ioredis@6',
    };
    throw new LossError('ERR_INVALID_OPTION', details, { cause: error });
  }
}

/**
 * Reads the URL of a queue, and connects once to see whether a server answers.
 * @throws LossError if the URL is invalid, if the packages are not installed, or if no server answers.
 */
export async function findQueue(url: string): Promise<QueueAddress> {
  const address = readAddress(url);
  const { Redis } = await ioredis();
  await bullmq();
  const client = new Redis({
    ...address.connection,
    lazyConnect: true,
    retryStrategy: () => null,
    connectTimeout: CONNECT_MS,
    // Without a limit, a command on a lost connection would wait for ever.
    maxRetriesPerRequest: 0,
  });
  // The error of connect() may only say that the connection is closed.
  let first: Error | undefined;
  client.on('error', (error) => {
    first ??= error;
  });
  try {
    await client.connect();
    await client.ping();
  } catch (error) {
    throw new LossError('ERR_INVALID_INPUT', {
      at: `the queue ${address.shown}`,
      expected: 'a Redis server that answers',
      received: describeFailure(first ?? error),
    });
  } finally {
    client.disconnect();
  }
  return address;
}

const CONNECT_MS = 10_000;
