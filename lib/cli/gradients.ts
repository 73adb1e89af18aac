// `policy-loss gradients`: ∂loss/∂logprob of every token, back to a file beside the ids of the rows.
import { type Command, Option } from 'commander';
import { type GradientWriter, writeGradients } from '../rollouts/index.js';
import { evaluateFiles, type SubjectEvaluation } from './evaluation.js';
import { csv, twoColumns } from './output.js';
import { type RolloutsOptions, rolloutsCommand, runOnRollouts } from './rollouts-command.js';
import { makeSubject, typedSubject } from './typed-subjects.js';

/** What `--json` prints, numbers that are not finite as null. */
export interface WrittenGradients {
  /** The policy loss's or the algorithm's name. */
  name: string;
  file: string;
  loss: number;
  /** Of ∂loss/∂logprob over all tokens. */
  gradNorm: number;
  rows: number;
  /** Those that the masks let count. */
  tokens: number;
  /** Of the file. */
  bytes: number;
  /** Bad rows that were left out, with --skip-bad-rows. */
  skipped?: number;
}

interface GradientsOptions extends RolloutsOptions {
  out: string;
  ids: string[];
  padded?: boolean;
}

/**
 * Adds the command to a program.
 * @param words those of the command line.
 * @returns the words to parse.
 * @throws LossError as the command evaluate does.
 */
export function addGradients(program: Command, words: readonly string[]): readonly string[] {
  const command = rolloutsCommand(program, {
    name: 'gradients',
    summary: "write every token's gradient beside the ids of its row",
    description:
      'Computes ∂loss/∂logprob of every token (and ∂loss/∂entropy where there is an entropy loss) and writes them to a ' +
      'file, row by row beside their ids.',
    options: [
      new Option(
        '-o, --out <file>',
        'where to: .safetensors, .parquet, .jsonl or .jsonl.gz',
      ).makeOptionMandatory(),
      new Option('--ids <columns>', 'the columns to write beside the gradients, with commas between them')
        .default(['id', 'task_id', 'run_id'], 'id,task_id,run_id')
        .argParser((text) => text.split(',').map((name) => name.trim())),
      new Option('--padded', 'tensors [B, T] with short rows filled up, not packed rows with cu_seqlens'),
    ],
    help: HELP,
    examples: EXAMPLES,
  });
  if (words[0] !== command.name()) return words;
  const { typed, left } = typedSubject(command, words);
  for (const option of typed?.options ?? []) command.addOption(option);
  command.action(async (patterns: string[], options: GradientsOptions) => {
    const subject = await makeSubject(typed!, command);
    const { out, ids, padded } = options;
    await runOnRollouts(patterns, options, { keep: ids }, async (run) => {
      const writer: GradientWriter = writeGradients(out, { ids, layout: padded ? 'padded' : 'packed' });
      try {
        const result = await evaluateFiles(run.files, [subject], run.settings, async (part, [given]) => {
          await writer.add(part, given!.grad, given!.gradEntropy);
        });
        const { bytes } = await writer.close();
        const [{ loss, gradNorm }] = result.subjects as [SubjectEvaluation];
        const { skipped } = run;
        const written: WrittenGradients = {
          name: subject.name,
          file: out,
          loss,
          gradNorm,
          rows: result.rows,
          tokens: result.tokens,
          bytes,
          ...(skipped !== undefined && { skipped }),
        };
        return {
          json: () => written,
          csv: () => csv(Object.keys(written), [Object.values(written)]),
          text: () => describe(written),
        };
      } finally {
        await writer.abort();
      }
    });
  });
  return left;
}

const HELP = `\
The file has a row for each rollout, in their order: the ids that it has, and grad, a number per token (0 under the
mask). Tensors and Parquet are float32; JSON lines have its digits in full.`;

const EXAMPLES = [
  'gradients rollouts.jsonl --loss ppo --out gradients.safetensors',
  'gradients rollouts.parquet --algorithm grpo --ids uid,task_id --out gradients.parquet',
  'gradients rollouts.jsonl --loss gspo --out gradients.jsonl.gz --quiet',
];

function describe({ name, file, loss, gradNorm, rows, tokens, bytes, skipped }: WrittenGradients): string {
  return twoColumns([
    ['function', name],
    ['loss', loss],
    ['gradient norm', gradNorm],
    ['rows', String(rows)],
    ['tokens', String(tokens)],
    ...(skipped === undefined ? [] : [['rows skipped', String(skipped)] as const]),
    ['bytes', String(bytes)],
    ['file', file],
  ]);
}
