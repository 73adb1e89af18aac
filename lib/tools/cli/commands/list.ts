// `policy-loss list`: prints the functions and algorithms with their summaries, sources, options, inputs and metrics.
import { Argument, type Command, Option } from 'commander';
import { unknownName } from '../../../base/errors.js';
import { byFramework, ofFramework } from '../../../losses/frameworks.js';
import { type CatalogueEntry, catalogue, differencesOf, KINDS, type Kind } from '../catalogue.js';
import { helpAfter } from '../help.js';
import { fitted, inLines, widthOf, wrapped } from '../lines.js';
import { LOSS_FILE_OPTION } from '../loss-file.js';
import {
  type Cell,
  csv,
  type Line,
  type OutputOptions,
  print,
  styled,
  table,
  twoColumns,
} from '../output.js';
import { OUTPUT_OPTIONS } from '../rollouts-command.js';

const TITLES: Record<Kind, string> = {
  loss: 'Policy losses',
  value: 'Value losses',
  reward: 'Losses of reward models',
  logits: 'Losses of logits',
  correction: 'Corrections',
  advantage: 'Advantage functions',
  kl: 'KL functions',
  entropy: 'Entropy losses',
  algorithm: 'Algorithms',
};

const FLAGS: Record<Kind, string> = {
  loss: '(--loss, --policy-loss-fn)',
  value: '(--loss)',
  reward: '(--loss)',
  logits: '(in programs, as LOSS_FN)',
  correction: '(--correction name=NAME)',
  advantage: '(--advantage-fn)',
  kl: '(--kl-loss-fn, --kl-penalty-fn)',
  entropy: '(--entropy-loss-fn)',
  algorithm: '(--algorithm)',
};

const KIND_WORDS: Record<Kind, string> = {
  loss: 'a policy loss',
  value: 'a value loss',
  reward: 'a loss of reward models',
  logits: 'a loss of logits',
  correction: 'a correction',
  advantage: 'an advantage function',
  kl: 'a KL function',
  entropy: 'an entropy loss',
  algorithm: 'an algorithm',
};

const SYMBOLS =
  'ℓ is the loss of a token, A its advantage, R the reward of its row, r = exp(logprob − old_logprob), ' +
  'p = exp(logprob), δ = ref_logprob − logprob. In losses of logits, p is the distribution of the policy, and q that of ' +
  'the teacher.';

const MORE = "'policy-loss list <name>' describes one in full, and --long lists the options of all.";

const CUT = "A list that ends with … continues in 'policy-loss list <name>'.";

// The most lines that a function's options, inputs or metrics take in the tables.
const DETAIL_LINES = 4;

const SPELLING =
  'On the command line, clip_range is --clip-range, and epsilon of an advantage function is --advantage-epsilon.';

/** Adds the command `list` to the command-line program. */
export function addList(program: Command): void {
  const command = program
    .command('list')
    .summary('list the functions and algorithms, or describe one')
    .description(
      'Lists the functions and algorithms with a summary of each, or describes one in full: with its sources, options, ' +
        'defaults, inputs and metrics.',
    )
    .addArgument(new Argument('[what]', `a kind (${KINDS.join(', ')}), or a name to describe in full`));
  const long = new Option('--long', 'also list the sources, options, inputs and metrics of each');
  for (const option of [long, LOSS_FILE_OPTION(), ...OUTPUT_OPTIONS()]) command.addOption(option);
  command.addHelpText('after', helpAfter(['list', 'list loss --long', 'list gspo', 'list advantage --json']));
  command.action(async (what: string | undefined, options: OutputOptions & { long?: boolean }) => {
    const entries = entriesOf(what);
    const inFull = what !== undefined && !KINDS.includes(what as Kind);
    await print(options, {
      json: () => entries,
      csv: () =>
        csv(
          ['kind', 'name', 'class', 'about', 'source', 'options', 'framework', 'aliases', 'unlike'],
          entries.map(({ kind, name, class: cls, about, source, options, framework, aliases, unlike }) => [
            ...[kind, name, cls, about, source],
            ...[settings(options).join(' '), framework, aliases?.join(' '), differencesOf(unlike).join('; ')],
          ]),
        ),
      text: () =>
        inFull ? entries.map(describe).join('\n\n') : options.long ? overview(entries) : summaries(entries),
    });
  });
}

/**
 * Returns the entries whose kind, name or alias is `what`, or all entries if it is undefined.
 * @throws LossError `ERR_UNKNOWN_NAME`
 */
function entriesOf(what: string | undefined): CatalogueEntry[] {
  const all = catalogue();
  if (what === undefined) return all;
  const found = all.filter(({ kind, name, aliases = [] }) => [kind, name, ...aliases].includes(what));
  if (found.length === 0)
    throw unknownName('ERR_UNKNOWN_NAME', 'kind or name', what, [
      ...KINDS,
      ...new Set(all.flatMap(({ name, aliases = [] }) => [name, ...aliases])),
    ]);
  return found;
}

function overview(entries: readonly CatalogueEntry[]): string {
  const sections = sectionsOf(entries, (functions) => {
    const names = functions.flatMap(({ name, aliases = [] }) => [
      name,
      ...aliases.map((alias) => `or ${alias}`),
    ]);
    const nameWidth = Math.max(...names.map(({ length }) => length));
    // The width of the middle column: what the name and the source leave.
    const width = Math.min(Math.max(widthOf(process.stdout) - nameWidth - SOURCE_WIDTH - 2 * GAP, 20), 64);
    const rows = functions.map((entry) => [
      [entry.name, ...aliasLines(entry)],
      [...wrapped(entry.about, width), ...detailLines(entry, width)],
      entry.source.split(', '),
    ]);
    return table(['name', 'what it is', 'source'], rows);
  });
  return [...sections, notes(SYMBOLS, SPELLING, CUT)].join('\n\n');
}

/** Returns one line for each entry, which ends where the terminal does. */
function summaries(entries: readonly CatalogueEntry[]): string {
  const sections = sectionsOf(entries, (functions) => {
    const nameWidth = Math.max(...functions.map(({ name }) => name.length));
    const room = widthOf(process.stdout) - nameWidth - GAP;
    return twoColumns(
      functions.map(({ name, about }) => [
        name,
        about.length > room ? `${about.slice(0, room - 1)}…` : about,
      ]),
      'left',
    );
  });
  return [...sections, notes(SYMBOLS, MORE)].join('\n\n');
}

// The space between two columns of a table, and the usual width of the column of sources.
const GAP = 3;
const SOURCE_WIDTH = 20;

/** Returns the entries by kind and framework, each group with its title. */
function sectionsOf(
  entries: readonly CatalogueEntry[],
  draw: (functions: readonly CatalogueEntry[]) => string,
): string[] {
  return KINDS.flatMap((kind) => {
    const ofKind = entries.filter((entry) => entry.kind === kind);
    const titled = (of: string, functions: readonly CatalogueEntry[]) =>
      `${styled(['bold', 'underline'], `${TITLES[kind]}${of} ${FLAGS[kind]}`)}\n${draw(functions)}`;
    // Each framework has one or two of these.
    if (kind === 'value' || kind === 'reward') return ofKind.length > 0 ? [titled('', ofKind)] : [];
    return byFramework(ofKind, ({ framework }) => framework).map(({ framework, functions }) =>
      titled(ofFramework(framework), functions),
    );
  });
}

function notes(...texts: readonly string[]): string {
  return styled('dim', texts.map((text) => fitted(text)).join('\n'));
}

function aliasLines({ aliases = [] }: CatalogueEntry): Line[] {
  return aliases.map((alias) => ({ text: `or ${alias}`, style: 'dim' }));
}

function detailLines({ unlike, options, reads = [], metrics = {} }: CatalogueEntry, width: number): Line[] {
  const details = {
    options: settings(options),
    reads,
    metrics: Object.entries(metrics).map(([name, unit]) => `${name} (${unit})`),
  };
  const lists = Object.entries(details)
    .filter(([, words]) => words.length > 0)
    .flatMap(([title, words]) => {
      const lines = inLines([`${title}:`, ...words.join(', ').split(' ')], '', width);
      return lines.length > DETAIL_LINES ? [...lines.slice(0, DETAIL_LINES - 1), '…'] : lines;
    });
  const unlikeLines = differencesOf(unlike).flatMap((text) => wrapped(text, width));
  return [...unlikeLines, ...lists].map((text) => ({ text, style: 'dim' }));
}

function describe(entry: CatalogueEntry): string {
  const { kind, name, class: cls, about, details, source, framework, aliases, unlike, reads } = entry;
  const { options, help, metrics = {} } = entry;
  const facts: [string, Cell][] = [
    ['class', cls],
    ['what it is', about],
  ];
  if (details) facts.push(['details', details.join(' ')]);
  const differing = differencesOf(unlike);
  if (differing.length > 0) facts.push(['differences', differing]);
  facts.push(['source', source], ['framework', framework]);
  if (aliases) facts.push(['aliases', aliases.join(', ')]);
  if (reads) facts.push(['reads', reads.join(', ')]);
  const title = styled('bold', `${name} — ${KIND_WORDS[kind]}`);
  const optionLines = Object.entries(options).map(([option, value]): Cell[] => [
    option,
    value === null ? 'none' : String(value),
    ...(help ? [help[option]!] : []),
  ]);
  const metricLines = Object.entries(metrics);
  return [
    `${title}\n${twoColumns(facts, 'left')}`,
    ...(optionLines.length > 0
      ? [table(['option', 'default', ...(help ? ['what it does'] : [])], optionLines)]
      : []),
    ...(metricLines.length > 0 ? [table(['metric', 'unit'], metricLines)] : []),
  ].join('\n\n');
}

function settings(options: CatalogueEntry['options']): string[] {
  return Object.entries(options).map(([name, value]) => (value === null ? name : `${name}=${value}`));
}
