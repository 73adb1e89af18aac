// Adds doc comments to the declaration files in dist/types/lib/functions. Editors then show each option's help, valid values and
// default, and each class's formula, inputs, metrics and sources. The texts come from the declarations, so no source
// file repeats them. This runs after tsc, on files that tsc has just written.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

// Loads dist without the native module, which may not be built yet. The declarations do not need it.
process.env.POLICY_LOSS_NATIVE = fileURLToPath(new URL('no-native.cjs', import.meta.url));
const { default: _, ...exported } = await import('../../dist/index.js');
const { validValues } = await import('../../dist/core/options.js');

const LEGEND = [
  [/ℓ/, 'ℓ is the loss of a token'],
  [/\bA\b/, 'A its advantage'],
  [/\br\b/, 'r = exp(logprob − old_logprob)'],
  [/δ/, 'δ = ref_logprob − logprob'],
  [/\bp\b/, 'p = exp(logprob)'],
  [/\bR\b/, 'R is the reward of the row'],
];

const classes = Object.entries(exported).filter(([, value]) => value?.declaration !== undefined);
const options = new Map(
  classes.flatMap(([, { declaration }]) =>
    Object.entries(declaration.options).map(([name, option]) => [`${name}: ${option.help}`, option]),
  ),
);

/**
 * Matches an option in a declaration file: its indentation, its name, and its properties up to and including `help`.
 * TypeScript leaves out "readonly" if all options of the class come from constants.
 */
const OPTION =
  /^( +)(?:readonly )?(\w+): \{\n +readonly type: (?:(?!^\1\};)[\s\S])*?readonly help: (["'])(.*?)\3;/gm;

const root = new URL('../../dist/types/lib/functions/', import.meta.url);
for (const file of readdirSync(root, { recursive: true, encoding: 'utf8' })) {
  if (!file.endsWith('.d.ts')) continue;
  const url = new URL(file, root);
  let text = readFileSync(url, 'utf8').replace(OPTION, (found, indent, name, _quote, help) => {
    const option = options.get(`${name}: ${help}`);
    return option === undefined ? found : `${indent}/** ${optionComment(option)} */\n${found}`;
  });
  for (const [name, { declaration }] of classes) {
    const declared = new RegExp(`/\\*\\*((?:(?!\\*/)[^])*)\\*/\\n(?=export declare class ${name} )`);
    text = text.replace(declared, (_comment, own) => classComment(own, declaration));
  }
  writeFileSync(url, text);
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function optionComment(option) {
  const { help, defaultFrom, atLeastOption, requiredWith, needs = {} } = option;
  const fallback = option.default ?? (defaultFrom && `that of ${defaultFrom}`);
  return [
    sentence(help),
    sentence(`${validValues(option)}${atLeastOption === undefined ? '' : `, and at least ${atLeastOption}`}`),
    requiredWith && `Required with ${requiredWith}.`,
    ...Object.entries(needs).map(
      ([choice, others]) =>
        `${choice} needs ${Object.entries(others)
          .map(([other, value]) => `${other} ${value}`)
          .join(', ')}.`,
    ),
    fallback !== undefined && `Default: ${fallback}.`,
  ]
    .filter(Boolean)
    .join(' ');
}

function classComment(own, { summary, details = [], reads, metrics, source }) {
  const units = Object.entries(metrics).map(
    ([name, { unit, when }]) => `${name} (${unit}${when === undefined ? '' : `; ${when}`})`,
  );
  const symbols = LEGEND.filter(([symbol]) => symbol.test(summary)).map(([, meaning]) => meaning);
  const lines = [
    ...own
      .trim()
      .split('\n')
      .map((line) => line.replace(/^ *\* ?/, '')),
    '',
    sentence(summary),
    symbols.length > 0 && sentence(symbols.join(', ')),
    ...details,
    '',
    `Reads ${reads.join(', ')}.`,
    units.length > 0 ? `Metrics: ${units.join(', ')}.` : 'It has no metrics.',
    '',
    `Source: ${source.join(', ')}.`,
  ];
  return `/**\n${lines
    .filter((line) => line !== false)
    .map((line) => ` * ${line}`.trimEnd())
    .join('\n')}\n */\n`;
}
