// The files that trainers write in the formats of pickle and torch.save, and what recognises them: their content.
import type { Bytes } from '../bytes.js';
import { Instance, Opaque, shown } from '../pickle/values.js';
import { loadInSlices } from '../torch/load.js';
import { type Dump, type DumpContext, readDump, unknownDump } from './dump.js';
import { skyrlDump } from './skyrl.js';
import { slimeDump } from './slime.js';
import { experiencesIn, readFrame, trinityDump } from './trinity.js';
import { verlDump } from './verl.js';

/** Reads a pickle or a torch file. */
export const readPickled = readDump(function* (bytes: Bytes, context: DumpContext): Generator<void, Dump> {
  const value = yield* loadInSlices(bytes);
  const experiences = experiencesIn(value);
  const dump = experiences
    ? trinityDump(experiences)
    : (slimeDump(value, context) ?? skyrlDump(value) ?? verlDump(value));
  if (!dump) throw unknownDump(context.file, describe(value));
  return dump;
});

/** Reads a file that is one frame of Trinity-RFT's experiences. */
// biome-ignore lint/correctness/useYield: a frame is read in one slice.
export const readTrinityFrame = readDump(function* (bytes: Bytes): Generator<void, Dump> {
  return trinityDump(readFrame(bytes));
});

const MAX_KEYS = 12;

function describe(value: unknown): string {
  if (value instanceof Instance || value instanceof Opaque) return `an object of class ${value.name}`;
  if (!(value instanceof Map)) return 'another value';
  const keys = [...value.keys()].filter((key) => !(key instanceof Opaque)).map(shown);
  return `a dict of ${keys.length > MAX_KEYS ? `${keys.slice(0, MAX_KEYS).join(', ')}, …` : keys.join(', ')}`;
}
