// Loads dist into a context of node:vm, as a test runner does, and prints what the package computes there. Node's own
// modules and those of other packages stay in the main realm.
import { readFile } from 'node:fs/promises';
import { createContext, SourceTextModule, SyntheticModule } from 'node:vm';

const context = createContext({ process, performance, console, URL, AbortSignal, Buffer });
const ENTRY = new URL('../../dist/index.js', import.meta.url);
const PROGRAM = `
import { LossError, PPOPolicyLossFn } from 'policy-loss';

const fn = new PPOPolicyLossFn({ clipRange: 0.2 });
const lists = { shape: [1, 2], logprob: [-1, -2], oldLogprob: [-1.1, -2], advantages: [1, -1], actionMask: [1, 1] };
const columns = {
  ...lists,
  logprob: Float32Array.from(lists.logprob),
  oldLogprob: Float64Array.from(lists.oldLogprob),
  actionMask: Uint8Array.from(lists.actionMask),
};
export const { loss } = await fn.compute(columns, { grad: true });
export const fromLists = fn.computeSync(lists).loss;
export const error = await fn.compute({}).catch((thrown) => thrown);
export const isLossErrorThere = error instanceof LossError;
columns.logprob = structuredClone(columns.logprob);
const transferred = fn.compute({
  ...columns,
  get actionMask() {
    structuredClone(columns.logprob.buffer, { transfer: [columns.logprob.buffer] });
    return lists.actionMask;
  },
});
export const detached = await transferred.catch((thrown) => thrown.code);
`;
context.structuredClone = structuredClone;

const modules = new Map();

async function moduleAt(url) {
  let module = modules.get(url.href);
  if (!module) {
    module = new SourceTextModule(await readFile(url, 'utf8'), {
      context,
      identifier: url.href,
      initializeImportMeta: (meta) => {
        meta.url = url.href;
      },
    });
    modules.set(url.href, module);
  }
  return module;
}

async function link(specifier, { identifier }) {
  if (specifier === 'policy-loss') return moduleAt(ENTRY);
  if (specifier.startsWith('.')) return moduleAt(new URL(specifier, identifier));
  const outer = await import(specifier);
  const names = Object.keys(outer);
  return new SyntheticModule(names, function set() {
    for (const name of names) this.setExport(name, outer[name]);
  }, { context });
}

const program = new SourceTextModule(PROGRAM, { context, identifier: import.meta.url });
await program.link(link);
await program.evaluate();
const { error, ...results } = program.namespace;
const { LossError } = await import('../../dist/index.js');
console.log(JSON.stringify({ ...results, isLossErrorHere: error instanceof LossError }));
