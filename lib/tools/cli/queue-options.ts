// The options of the commands that use a queue.
import { Option } from 'commander';
import { LossError } from '../../index.js';
import { note } from './streams.js';

/** The values of the options `--queue` and `--parts`. */
export interface QueueOptions {
  queue?: string;
  parts?: string;
}

const VARIABLE = 'POLICY_LOSS_QUEUE';

/** The environment variable that tells the process of a shard the folder for parts. */
export const PARTS_VARIABLE = 'POLICY_LOSS_PARTS';

/** Returns the option `--queue`. */
export const QUEUE_OPTION = () =>
  new Option(
    '--queue <url>',
    `share the work among workers through this Redis, such as redis://host:6379; with 'env', the URL is the environment variable ${VARIABLE}, which other users do not see`,
  );

/** Returns the option `--parts`. */
export const PARTS_OPTION = () =>
  new Option('--parts <folder>', 'the folder for plans and parts, which the submitter and all workers see');

/**
 * Returns the URL of the queue and the folder for parts.
 * @throws LossError `ERR_INVALID_OPTION` if one of them is missing.
 */
export function requiredQueue({ queue, parts }: QueueOptions): Required<QueueOptions> {
  const url = queue === 'env' ? process.env[VARIABLE] : queue;
  if (url === undefined)
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'queue',
      expected: 'the URL of a Redis server',
      received: queue === 'env' ? `no environment variable ${VARIABLE}` : 'nothing',
    });
  if (parts === undefined)
    throw new LossError('ERR_INVALID_OPTION', {
      option: 'parts',
      expected: 'a folder that the submitter and all workers see',
      received: 'nothing',
    });
  return { queue: url, parts };
}

/** Returns the environment of a process that needs no queue. */
export function environmentWithoutQueue(): NodeJS.ProcessEnv {
  const { [VARIABLE]: _, ...rest } = process.env;
  return rest;
}

const REPEAT_MS = 30_000;

/** Returns a function that prints an error of the connection, but not each time while it lasts. */
export function connectionErrors(shown: string): (error: Error) => void {
  let last = '';
  let at = 0;
  return ({ message }) => {
    const now = performance.now();
    if (message === last && now - at < REPEAT_MS) return;
    [last, at] = [message, now];
    note(`queue ${shown}: ${message}`);
  };
}
