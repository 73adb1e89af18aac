/**
 * The process that reads the files of the file fuzzer. It gets orders from its parent and answers each with a verdict.
 * Every file must give the right rows, or a LossError. Nothing else may happen: no other exception, no stack trace, no
 * escape sequence in the output, and no more memory or time than the limits.
 */
import { types } from 'node:util';
import { LossError } from '../../lib/index.js';
import { runProgram } from '../../lib/tools/cli/program.js';
import {
  type RolloutPart,
  type Rollouts,
  readRollouts,
  streamRollouts,
} from '../../lib/tools/rollouts/index.js';
import { captured } from '../support/captured.js';
import { peakMemory } from '../support/peak-memory.js';
import type { Expected } from './content.js';

/** What to read, and how much time it may take. */
export interface Order {
  file: string;
  words: readonly string[];
  expected: Expected | undefined;
  /** The time that one reading of the file may keep a core busy, in milliseconds. */
  busyMs: number;
}

/** What the reading of one file showed. */
export interface Verdict {
  /** What is wrong; undefined if nothing is. */
  fault?: string;
  /** The largest memory that this process has taken so far, in bytes. */
  memory: number;
  /** Whether the file was read without an error. */
  isRead: boolean;
}

// Collecting garbage takes time, so it is only done if there may be much of it.
const MUCH_MEMORY = 250e6;

process.on('message', (order: Order) => void judge(order).then((verdict) => process.send!(verdict)));

async function judge(order: Order): Promise<Verdict> {
  let fault: string | undefined;
  let isRead = false;
  try {
    const whole = await timed('readRollouts', order, () =>
      attempt(() => readRollouts([order.file], OPTIONAL)),
    );
    const parts = await timed('streamRollouts', order, () => attempt(() => readParts(order.file)));
    isRead = !(whole instanceof LossError);
    // What is wrong after the last of the parts is found only in the whole.
    const isCut = !(parts instanceof LossError) && parts.length === MAX_PARTS;
    if (whole instanceof LossError !== parts instanceof LossError && !isCut)
      throw new Error(`whole: ${describe(whole)}; in parts: ${describe(parts)}`);
    if (whole instanceof LossError || parts instanceof LossError) {
      if (order.expected) throw new Error(`a valid file is refused: ${describe(whole)}`);
    } else {
      checkBatch(whole);
      checkParts(whole, parts);
      if (order.expected) checkExpected(whole, order.expected);
    }
    await timed('the command line', order, () => checkProgram(order));
  } catch (error) {
    fault = error instanceof Error ? (error.stack ?? error.message) : String(error);
  }
  globalThis.gc?.();
  return { ...(fault !== undefined && { fault }), memory: peakMemory(), isRead };
}

/**
 * Limits the time that `act` keeps a core busy. It does not count the time for which the process waits. The memory of
 * what was read before is collected first, so that the peak is that of one reading.
 */
async function timed<T>(what: string, { busyMs }: Order, act: () => Promise<T>): Promise<T> {
  const { heapUsed, external } = process.memoryUsage();
  if (heapUsed + external > MUCH_MEMORY) globalThis.gc?.();
  const before = process.cpuUsage();
  const result = await act();
  const { user, system } = process.cpuUsage(before);
  const took = (user + system) / 1000;
  if (took > busyMs) throw new Error(`${what}: took ${took} ms, expected at most ${busyMs}`);
  return result;
}

/** Returns the result or the LossError. */
async function attempt<T>(act: () => Promise<T>): Promise<T | LossError> {
  try {
    return await act();
  } catch (error) {
    if (!(error instanceof LossError)) throw error;
    checkCause(error.cause);
    if (error.message.length > MAX_MESSAGE)
      throw new Error(`a message of ${error.message.length} characters: ${error.message.slice(0, 200)}`);
    return error;
  }
}

const MAX_MESSAGE = 20_000;

/** A bug of the package may be hidden in the cause of a LossError. Errors of JavaScript itself mean such a bug. */
function checkCause(cause: unknown): void {
  if (!types.isNativeError(cause)) return;
  if (['TypeError', 'RangeError', 'ReferenceError', 'AssertionError', 'URIError'].includes(cause.name))
    throw new Error(`the cause of a LossError is ${cause.stack}`);
  checkCause(cause.cause);
}

// Reads as much as possible of the files of trainers, which may lack log-probabilities. The command line needs them.
const OPTIONAL = { logprobs: 'optional', onWarning() {} } as const;

async function readParts(file: string): Promise<RolloutPart[]> {
  const parts: RolloutPart[] = [];
  for await (const part of streamRollouts([file], { ...OPTIONAL, maxTokens: 8 })) {
    parts.push(part);
    // A file of many rows would make as many parts.
    if (parts.length === MAX_PARTS) break;
  }
  return parts;
}

const MAX_PARTS = 2000;

const describe = (result: unknown) =>
  result instanceof LossError ? `${result.code} ${result.message.slice(0, 500)}` : 'no error';

/** Checks that a batch fits together, and that its values can be what a file holds. */
function checkBatch({ batch, rows, tokens }: Rollouts): void {
  const { cuSeqlens, logprob = new Float32Array(cuSeqlens.at(-1)!), actionMask } = batch;
  const isOrdered = cuSeqlens.every((offset, row) => offset >= (cuSeqlens[row - 1] ?? 0));
  const isWhole = cuSeqlens.length === rows + 1 && cuSeqlens[0] === 0 && cuSeqlens[rows] === logprob.length;
  if (!isOrdered || !isWhole) throw new Error('cuSeqlens are not offsets of the rows');
  if (actionMask.length !== logprob.length || actionMask.some((flag) => flag > 1))
    throw new Error('actionMask is not a mask of the tokens');
  if (actionMask.reduce((sum, flag) => sum + flag, 0) !== tokens)
    throw new Error('tokens is not their number');
  for (const [key, column] of Object.entries(batch)) {
    const { length } = column as ArrayLike<unknown>;
    if (key !== 'cuSeqlens' && length !== rows && length !== logprob.length)
      throw new Error(`${key} has ${length} values`);
  }
}

/** Checks that the parts are the beginning of the whole. */
function checkParts({ batch, rows }: Rollouts, parts: readonly RolloutPart[]): void {
  const inParts = parts.reduce((sum, part) => sum + part.rows, 0);
  if (parts.length < MAX_PARTS && inParts !== rows)
    throw new Error(`${inParts} rows in parts, ${rows} in all`);
  let token = 0;
  for (const part of parts)
    for (const x of part.batch.logprob ?? [])
      if (!Object.is(x, batch.logprob[token++])) throw new Error(`token ${token - 1} differs in parts`);
}

function checkExpected(
  { batch }: Rollouts,
  { lengths, logprob, actionMask, rewards, groupIds }: Expected,
): void {
  const offsets = [0];
  for (const length of lengths) offsets.push(offsets.at(-1)! + length);
  const pairs = { cuSeqlens: offsets, logprob, actionMask, rewards, groupIds };
  for (const [key, values] of Object.entries(pairs)) {
    const read = Array.from((batch as Record<string, unknown>)[key] as ArrayLike<number>);
    if (JSON.stringify(read) !== JSON.stringify(values))
      throw new Error(`${key}: expected ${JSON.stringify(values)}, got ${JSON.stringify(read)}`);
  }
}

/** Runs the command line and checks its exit code and output. */
async function checkProgram({ file, words }: Order): Promise<void> {
  const { code, stdout, stderr } = await captured(() => runProgram(['evaluate', file, ...words]));
  for (const [name, text] of Object.entries({ stdout, stderr })) {
    const hidden = /[^\P{Cc}\n]|[\p{Zl}\p{Zp}\p{Bidi_Control}]/u.exec(text);
    if (hidden)
      throw new Error(`${name}: control character ${JSON.stringify(hidden[0])} in ${JSON.stringify(text)}`);
    if (/^\s+at .*:\d+:\d+/m.test(text)) throw new Error(`${name}: a stack trace: ${text}`);
  }
  const notes = stderr.split('\n').slice(0, -1);
  const strange = notes.find((line) => !/^(error|warning|skipped): /.test(line) || line.length > MAX_MESSAGE);
  if (strange !== undefined) throw new Error(`stderr: unexpected line ${strange.slice(0, 500)}`);
  const errors = notes.filter((line) => line.startsWith('error: ')).length;
  const isRight = code === 0 ? stdout !== '' && errors === 0 : code === 1 && stdout === '' && errors === 1;
  if (!isRight)
    throw new Error(`exit code ${code}, stdout ${stdout.slice(0, 500)}, stderr ${stderr.slice(0, 500)}`);
}
