// `policy-loss gradients`: writes the gradient of every token to a file, together with the ids of the rows.
import { type Command, Option } from 'commander';
import { evaluateFiles } from '../../parts/index.js';
import { checkGradientDtype, type GradientWriter, writeGradients } from '../../rollouts/index.js';
import { endingOf } from '../gradient-files.js';
import { printableGradients } from '../gradients-result.js';
import {
  computeOnQueue,
  isSubmitted,
  type Show,
  type SubmittingOptions,
  submittingOptions,
} from '../queue-run.js';
import { rolloutsCommand, runOnRollouts } from '../rollouts-command.js';
import { makeSubject, typedSubject } from '../typed-subjects.js';
import { type WritingOptions, writingOptions } from '../writing-options.js';

interface GradientsOptions extends SubmittingOptions, WritingOptions {
  out: string;
}

/**
 * Adds the command `gradients` to the command-line program.
 * @param words the arguments of the command line.
 * @returns the arguments that commander must parse.
 * @throws LossError if the arguments name an unknown loss, algorithm or option, or not exactly one loss or algorithm.
 */
export function addGradients(program: Command, words: readonly string[]): readonly string[] {
  const command = rolloutsCommand(program, {
    name: 'gradients',
    summary: "write every token's gradient, with the ids of its row",
    description:
      'Computes ∂loss/∂logprob of every token, and ∂loss/∂entropy if there is an entropy loss; ∂loss/∂values of every ' +
      'token for a loss of values, and ∂loss/∂rewards of every row for a loss of rewards. Writes them to a file, row by ' +
      'row, with the ids of the rows.',
    options: [
      new Option(
        '-o, --out <file>',
        'the file to write: .safetensors, .parquet, .jsonl or .jsonl.gz',
      ).makeOptionMandatory(),
      ...writingOptions(),
      ...submittingOptions(),
    ],
    help: HELP,
    examples: EXAMPLES,
  });
  if (words[0] !== command.name()) return words;
  const { typed, left } = typedSubject(command, words);
  for (const option of typed?.options ?? []) command.addOption(option);
  command.action(async (patterns: string[], options: GradientsOptions) => {
    if (isSubmitted(options)) {
      const gradients = endingOf(options.out);
      checkGradientDtype(options.dtype, options.out);
      const show: Show = (merged, skipped, _, files) => printableGradients(merged, skipped, files!);
      await computeOnQueue(patterns, options, [typed!], command, show, { gradients });
      return;
    }
    const subject = await makeSubject(typed!, command);
    const { out, ids, padded, dtype } = options;
    await runOnRollouts(patterns, options, [typed!], { keep: ids }, async (run) => {
      const writer: GradientWriter = writeGradients(out, {
        ids,
        layout: padded ? 'padded' : 'packed',
        dtype,
      });
      try {
        const result = await evaluateFiles(run.files, [subject], run.settings, async (part, [given]) => {
          const { grad, gradEntropy, offsets } = given!;
          await writer.add({ ...part, batch: { cuSeqlens: offsets } }, grad, gradEntropy);
        });
        const { bytes } = await writer.close();
        return printableGradients(result, run.skipped, { file: out, bytes });
      } finally {
        await writer.abort();
      }
    });
  });
  return left;
}

const HELP = `\
The file has one row per rollout, in the same order. A row has the rollout's ids, and grad, one number per token (0 for
masked tokens), or a single number for a loss of rewards. Pairs are in the order of their second rows, chosen first. Tensors and Parquet files store float32, and JSON lines have all digits.

--dtype float16 and --dtype bfloat16 round the gradients to nearest, with ties to even. The printed norm is that of the
float32 gradients. Below 6e-5, float16 has fewer digits, and bfloat16 does not, so prefer bfloat16 for means over many
tokens.

With --queue, each shard has a file of its own: for --out gradients.parquet, the first one is gradients-00000.parquet. In
the order of their numbers, they have the rows of the one file.`;

const EXAMPLES = [
  'gradients rollouts.jsonl --loss ppo --out gradients.safetensors',
  'gradients rollouts.parquet --algorithm grpo --ids uid,task_id --out gradients.parquet',
  'gradients rollouts.jsonl --loss gspo --out gradients.jsonl.gz --quiet',
  'gradients rollouts.jsonl --loss gspo --dtype bfloat16 --out gradients.safetensors',
  "gradients 'rollouts/*.jsonl' --loss ppo --out gradients.parquet --queue redis://host:6379 --parts /shared/parts",
];
