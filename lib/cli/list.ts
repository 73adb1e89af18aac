// `policy-loss list`: the functions and algorithms that there are, with their options, defaults and papers.
import { Argument, type Command } from 'commander';
import { unknownName } from '../core/errors.js';
import type { TrinityValue } from '../index.js';
import { type CatalogueEntry, catalogue, KINDS, type Kind, SYMBOLS } from './catalogue.js';
import { EXIT_CODES, examplesHelp } from './help.js';
import { csv, inLines, type OutputOptions, print, styled, table, twoColumns } from './output.js';
import { OUTPUT_OPTIONS } from './rollouts-command.js';

const TITLES: Record<Kind, string> = {
  loss: 'Policy losses (--loss, --policy-loss-fn)',
  advantage: 'Advantage functions (--advantage-fn)',
  kl: 'KL functions (--kl-loss-fn, --kl-penalty-fn)',
  entropy: 'Entropy losses (--entropy-loss-fn)',
  algorithm: 'Algorithms (--algorithm)',
};

/** Adds the command to a program. */
export function addList(program: Command): void {
  const command = program
    .command('list')
    .summary('list losses, advantages, KL and entropy functions, algorithms')
    .description(
      'Lists the functions and algorithms that there are, with their options, defaults and papers.',
    )
    .addArgument(
      new Argument('[what]', `a kind (${KINDS.join(', ')}), or the name of one to be told of in full`),
    );
  for (const option of OUTPUT_OPTIONS()) command.addOption(option);
  command.addHelpText(
    'after',
    `\n${EXIT_CODES}\n\n${examplesHelp(['list', 'list loss', 'list gspo', 'list advantage --json'])}`,
  );
  command.action((what: string | undefined, options: OutputOptions) => {
    const entries = entriesOf(what);
    const inFull = what !== undefined && !KINDS.includes(what as Kind);
    print(options, {
      json: () => entries,
      csv: () =>
        csv(
          ['kind', 'name', 'class', 'about', 'source', 'options'],
          entries.map(({ kind, name, class: cls, about, source, options }) => [
            ...[kind, name, cls, about, source],
            Object.entries(options)
              .map(([option, value]) => (value === null ? option : `${option}=${value}`))
              .join(' '),
          ]),
        ),
      text: () => (inFull ? entries.map(describe).join('\n\n') : overview(entries)),
    });
  });
}

/** @throws LossError `ERR_UNKNOWN_NAME` */
function entriesOf(what: string | undefined): CatalogueEntry[] {
  const all = catalogue();
  if (what === undefined) return all;
  const found = all.filter(({ kind, name }) => kind === what || name === what);
  if (found.length === 0)
    throw unknownName('ERR_UNKNOWN_NAME', 'kind or name', what, [
      ...KINDS,
      ...new Set(all.map(({ name }) => name)),
    ]);
  return found;
}

const SPELLING =
  "On the command line clip_range is --clip-range, and an advantage function's epsilon --advantage-epsilon.";

function overview(entries: readonly CatalogueEntry[]): string {
  // What names and sources leave of a terminal's width.
  const room = Math.min(Math.max((process.stdout.columns ?? 120) - 54, 26), 64);
  const sections = KINDS.flatMap((kind) => {
    const lines = entries.filter((entry) => entry.kind === kind);
    if (lines.length === 0) return [];
    return [
      `${styled(['bold', 'underline'], TITLES[kind])}\n${table(
        ['name', 'what it is', 'source'],
        lines.map(({ name, about, source, options }) => [
          name,
          [
            ...inLines(about.split(' '), '', room),
            ...inLines(optionWords(options), '', room).map((line) => styled('dim', line)),
          ].join('\n'),
          source,
        ]),
      )}`,
    ];
  });
  return [...sections, styled('dim', `${SYMBOLS}\n${SPELLING}`)].join('\n\n');
}

function describe({ kind, name, class: cls, about, source, options }: CatalogueEntry): string {
  const title = styled('bold', `${name} — ${kind === 'algorithm' ? 'an algorithm' : KIND_WORDS[kind]}`);
  const facts = twoColumns(
    [
      ['class', cls],
      ['what it is', about],
      ['source', source],
    ],
    'left',
  );
  const entries = Object.entries(options);
  if (entries.length === 0) return `${title}\n${facts}`;
  const list = table(
    ['option', 'default'],
    entries.map(([option, value]) => [option, value === null ? '' : String(value)]),
  );
  return `${title}\n${facts}\n\n${list}`;
}

const KIND_WORDS: Record<Exclude<Kind, 'algorithm'>, string> = {
  loss: 'a policy loss',
  advantage: 'an advantage function',
  kl: 'a KL function',
  entropy: 'an entropy loss',
};

function optionWords(options: Readonly<Record<string, TrinityValue>>): string[] {
  return Object.entries(options).map(([name, value]) => (value === null ? name : `${name}=${value}`));
}
