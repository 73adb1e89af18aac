// Counts the instructions that the token kernel of PPO needs per token, in the machine code: those of a step of 256 unmasked
// tokens of one row, from one step to the next. Fails if there are more than LIMITS allows, or if registers are spilled.
//
//   npx tsx scripts/cuda/count-instructions.ts
//
// Needs the CUDA toolkit of scripts/cuda/toolkit.sh, which downloads it on first use.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** The tokens of a step that one lane computes. */
const TOKENS = 8;
/** The most instructions per token, by compute capability and dtype. */
const LIMITS = {
  80: { float32: 60, bfloat16: 70, float16: 70 },
  90: { float32: 60, bfloat16: 70, float16: 70 },
} as const;
type Capability = keyof typeof LIMITS;
type DType = keyof (typeof LIMITS)[Capability];

// How many instructions of some kinds a step has. They tell its dtype, and that it copies, loads and stores all that a step
// of PPO needs: three columns and the mask into shared memory, three columns from there in two halves, and two halves of
// the gradient. A step that ends a row also adds to the float64 totals, so it is not counted.
const OF_DTYPE: Record<DType, Readonly<Record<string, number>>> = {
  float32: { 'LDS.128': 6, 'STG.*128': 2, DADD: 0 },
  bfloat16: { 'LDS.64': 6, 'STG.*128': 2, DADD: 0, 'HADD2.F32': 0 },
  float16: { 'LDS.64': 6, 'STG.*128': 2, DADD: 0, 'HADD2.F32': 24 },
};
// From compute capability 9.0 on, one instruction copies a column of a step; before, it copies 512 bytes of the column.
const COPIES: Record<Capability, Record<DType, Readonly<Record<string, number>>>> = {
  80: {
    float32: { 'LDGSTS.*128': 7 },
    bfloat16: { 'LDGSTS.*128': 4 },
    float16: { 'LDGSTS.*128': 4 },
  },
  90: { float32: { UBLKCP: 4 }, bfloat16: { UBLKCP: 4 }, float16: { UBLKCP: 4 } },
};

const SOURCE = `#include "cuda/tokens.cuh"
namespace policy_loss::cuda {
template void launch_token_kernel<Ppo>(const Ppo&, const Pass&, Grid);
}
`;

const NVCC_OPTIONS = [
  ...['-std=c++20', '-O3', '--fmad=false', '-Xptxas=-v', '-cubin'],
  ...['-DPOLICY_LOSS_LEAST_CAPABILITY=80', '-DPOLICY_LOSS_TARGET=gpu', '-DNDEBUG'],
];

/** A sequence of instructions without a label or branch within it, and the blocks that can follow. */
interface Block {
  readonly instructions: string[];
  readonly next: number[];
}

/** Divides a disassembled kernel into blocks. */
function blocksOf(assembly: string): Block[] {
  const blocks: Block[] = [{ instructions: [], next: [] }];
  const labels = new Map<string, number>();
  for (const line of assembly.split('\n')) {
    const label = /^\.L_x_\d+(?=:)/.exec(line.trim())?.[0];
    const instruction = /^\s+\/\*[0-9a-f]+\*\/\s+(.*?)\s*;/.exec(line)?.[1];
    const last = blocks.at(-1)!.instructions;
    const isNew = label !== undefined || /\b(BRA|EXIT|RET)\b/.test(last.at(-1) ?? '');
    if (isNew && last.length > 0) blocks.push({ instructions: [], next: [] });
    if (label) labels.set(label, blocks.length - 1);
    if (instruction) blocks.at(-1)!.instructions.push(instruction);
  }
  for (const [i, { instructions, next }] of blocks.entries()) {
    const end = instructions.at(-1) ?? '';
    const target = /\bBRA\b.*`\((\.L_x_\d+)\)/.exec(end)?.[1];
    if (target) next.push(labels.get(target)!);
    const mayContinue = end.startsWith('@') || /BRA\.DIV|BRA(\.\w+)* !?U?P\d/.test(end);
    const continues = mayContinue || !/\b(BRA|EXIT|RET)\b/.test(end);
    if (continues && i + 1 < blocks.length) next.push(i + 1);
  }
  return blocks;
}

/**
 * Searches the ways from a block back to the same block for the shortest one with these counts of instructions of some
 * kinds. Returns the number of its instructions. If no way has these counts, returns Infinity.
 */
function shortestRound(blocks: readonly Block[], of: Readonly<Record<string, number>>): number {
  const kinds = Object.keys(of).map((kind) => new RegExp(`\\b${kind}`));
  const wanted = Object.values(of);
  const counts = blocks.map(({ instructions }) =>
    kinds.map((kind) => instructions.filter((x) => kind.test(x)).length),
  );
  // Only a jump backwards closes a loop, so each way begins at the target of one.
  const heads = new Set(blocks.flatMap(({ next }, i) => next.filter((to) => to <= i)));
  let best = Number.POSITIVE_INFINITY;
  for (const head of heads) {
    // The length of the shortest way so far to each block with each combination of counts.
    const lengths = new Map<string, number>();
    const ways = [{ at: head, has: counts[head]!, length: blocks[head]!.instructions.length }];
    for (const { at, has, length } of ways)
      for (const next of blocks[at]!.next) {
        if (next === head) {
          if (has.every((n, k) => n === wanted[k])) best = Math.min(best, length);
          continue;
        }
        const sum = has.map((n, k) => n + counts[next]![k]!);
        const total = length + blocks[next]!.instructions.length;
        const key = `${next} ${sum}`;
        if (sum.some((n, k) => n > wanted[k]!) || total >= Math.min(best, lengths.get(key) ?? best)) continue;
        lengths.set(key, total);
        ways.push({ at: next, has: sum, length: total });
      }
  }
  return best;
}

/** Compiles the kernel for a compute capability and returns its machine code as text. */
function disassembled(capability: number): string {
  const toolkit = execFileSync(join(root, 'scripts/cuda/toolkit.sh'), { encoding: 'utf8' }).trim();
  const folder = mkdtempSync(join(tmpdir(), 'policy-loss-count-'));
  try {
    const [source, object] = [join(folder, 'ppo.cu'), join(folder, 'ppo.cubin')];
    writeFileSync(source, SOURCE);
    const { status, stdout, stderr } = spawnSync(
      join(toolkit, 'bin/nvcc'),
      [...NVCC_OPTIONS, `-arch=sm_${capability}`, `-I${join(root, 'native')}`, '-o', object, source],
      { encoding: 'utf8' },
    );
    const printed = stdout + stderr;
    if (status !== 0) throw new Error(`nvcc failed:\n${printed}`);
    if (!/ 0 bytes spill stores, 0 bytes spill loads/.test(printed))
      throw new Error(`registers are spilled:\n${printed}`);
    return execFileSync(join(toolkit, 'bin/nvdisasm'), ['-c', object], {
      encoding: 'utf8',
      maxBuffer: 1 << 28,
    });
  } finally {
    rmSync(folder, { recursive: true });
  }
}

let [passing, failing] = [0, 0];
for (const capability of Object.keys(LIMITS).map(Number) as Capability[]) {
  const blocks = blocksOf(disassembled(capability));
  for (const [name, limit] of Object.entries(LIMITS[capability])) {
    const dtype = name as DType;
    const count = shortestRound(blocks, { ...COPIES[capability][dtype], ...OF_DTYPE[dtype] }) / TOKENS;
    const isAllowed = count <= limit;
    if (isAllowed) passing++;
    else failing++;
    console.log(
      `  ${capability / 10}.0, ${dtype}: ${count.toFixed(1)} instructions per token, at most ${limit}${isAllowed ? '' : ': too many'}`,
    );
  }
}
console.log(`  ${passing} passing`);
if (failing > 0) {
  console.log(`  ${failing} failing`);
  process.exitCode = 1;
}
