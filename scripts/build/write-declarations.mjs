// Writes the declarations of all functions from the functions themselves, in place of those that tsc wrote: one interface
// with the options of a function, one type with its metrics, and its class. Does the same for the inputs of a batch, from
// their table. tsc prints the options and metrics of each
// statement as types without comments, so editors would not show what an option does. This runs after tsc, on files that
// tsc has just written.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

// Loads dist without the native module, which may not be built yet. The declarations do not need it.
process.env.POLICY_LOSS_NATIVE = fileURLToPath(new URL('no-native.cjs', import.meta.url));
const root = new URL('../../dist/', import.meta.url);
const api = await import(new URL('index.js', root));
const { createDefault, toCamelCase, validValues } = await import(new URL('base/options.js', root));
const { INPUTS } = await import(new URL('batch/columns.js', root));

const LEGEND = [
  [/ℓ/, 'ℓ is the loss of a token'],
  [/\bA\b/, 'A its advantage'],
  [/\br\b/, 'r = exp(logprob − old_logprob)'],
  [/\bp\b/, 'p = exp(logprob)'],
  [/\bR\b/, 'R is the reward of the row'],
];

/** The kinds of functions. Those of a kind without `stem` have the same options. */
const KINDS = [
  {
    base: 'PolicyLossFn',
    module: './policy-loss-fn.js',
    declaration: 'PolicyLossDeclaration',
    common: 'PolicyLossOptions',
    stem: (name) => name.replace(/Fn$/, ''),
    metrics: (name) => `${name.replace(/(Policy)?LossFn$/, '')}Metrics`,
  },
  ...['Value', 'Reward'].map((column) => ({
    base: `${column}LossFn`,
    module: './column-loss-fn.js',
    declaration: 'FunctionDeclaration',
    common: 'ColumnLossOptions',
    stem: (name) => name.replace(/Fn$/, ''),
    metrics: (name) => `${name.replace(/Fn$/, '')}Metrics`,
    ...(column === 'Reward' && { legend: [[/ℓ/, 'ℓ is the loss of a pair']] }),
  })),
  {
    base: 'LogitsLossFn',
    module: './logits-loss-fn.js',
    declaration: 'FunctionDeclaration',
    common: 'LogitsLossOptions',
    stem: (name) => name.replace(/Fn$/, ''),
    metrics: (name) => `${name.replace(/Fn$/, '')}Metrics`,
  },
  {
    base: 'CorrectionFn',
    module: './correction-fn.js',
    declaration: 'FunctionDeclaration',
    common: 'CorrectionFnOptions',
    stem: (name) => name.replace(/Fn$/, ''),
    metrics: (name) => `${name.replace(/Fn$/, '')}Metrics`,
  },
  {
    base: 'AdvantageFn',
    module: './advantage-fn.js',
    declaration: 'AdvantageDeclaration',
    common: 'AdvantageOptions',
    stem: (name) => `${name.replace(/(Group(ed)?)?Advantage(Fn)?$/, '')}Advantage`,
  },
  {
    base: 'KLFn',
    module: './kl-fn.js',
    declaration: 'KLDeclaration',
    common: 'KLOptions',
    legend: [[/δ/, 'δ = ref_logprob − logprob']],
  },
  {
    base: 'EntropyLossFn',
    module: './entropy.js',
    declaration: 'EntropyLossDeclaration',
    common: 'EntropyLossOptions',
  },
];
const MODULES = {
  FunctionDeclaration: '../base/declaration.js',
  LossAggMode: '../base/options.js',
  LogitsLossOptions: './logits-call.js',
  PolicyLossDeclaration: './policy-loss-declaration.js',
  PolicyLossOptions: './policy-loss-declaration.js',
  Either: './statement.js',
};
const TYPES = {
  number: 'number',
  integer: 'number',
  boolean: 'boolean',
  text: 'string | number',
  aggregation: 'LossAggMode',
};
const oneOf = (names) => names.map((each) => `'${each}'`).join(' | ');
const typeOf = ({ type, choices, of }) => {
  if (TYPES[type]) return TYPES[type];
  if (type === 'choice') return oneOf(choices);
  if (choices) return `${oneOf(choices)} | readonly (${oneOf(choices)})[]`;
  return `readonly ${of === 'text' ? 'string' : 'number'}[]`;
};
const capitalised = (text) => text.replace(/^[a-z]/, (letter) => letter.toUpperCase());
const sentence = (text) => `${capitalised(text)}.`;
const key = (name) => (/^\w+$/.test(name) ? name : `'${name}'`);
const words = (names) => oneOf([...new Set(names)]);

function optionComment({
  help,
  default: own,
  defaultFrom,
  atLeastOption,
  requiredWith,
  needs = {},
  trinity,
  ...rest
}) {
  const fallback = own ?? (defaultFrom && `that of ${defaultFrom}`);
  const created = trinity === own ? undefined : (trinity ?? undefined);
  return [
    sentence(help),
    sentence(`${validValues(rest)}${atLeastOption === undefined ? '' : `, and at least ${atLeastOption}`}`),
    requiredWith && `Required with ${requiredWith}.`,
    ...Object.entries(needs).map(
      ([choice, others]) =>
        `${choice} needs ${Object.entries(others)
          .map(([other, value]) => `${other} ${value}`)
          .join(', ')}.`,
    ),
    fallback !== undefined && `Default: ${fallback}.`,
    created !== undefined && `Default in create(): ${created}.`,
  ]
    .filter(Boolean)
    .join(' ');
}

const printOption = ([name, option]) =>
  `    /** ${optionComment(option)} */\n    ${key(name)}?: ${typeOf(option)} | null | undefined;\n`;
const printMetric = ([name, { unit, when }]) =>
  `    /** ${sentence(unit + (when ? `; ${when}` : ''))} */\n    ${key(name)}${when ? '?' : ''}: number;\n`;

// The types that have been printed, by what their functions share: the kind's name for options, and 'metrics' for these.
const printed = new Map();

/** Prints the members of a type that are not those of an earlier type, and the name of that type. */
function members(name, module, schema, print, share) {
  const earlier = printed.get(share) ?? [];
  const [base] = earlier
    .filter((each) => Object.entries(each.schema).every(([member, value]) => schema[member] === value))
    .sort((a, b) => Object.keys(b.schema).length - Object.keys(a.schema).length);
  if (Object.keys(schema).length > 2) printed.set(share, [...earlier, { name, schema }]);
  MODULES[name] = `./${module}`;
  const own = Object.entries(schema).filter(([member]) => !(member in (base?.schema ?? {})));
  return { base: base?.name, text: own.length > 0 ? `\n${own.map(print).join('')}` : '' };
}

/** Prints the type of a function's options. If some must be given, it is a choice of these and what they default to. */
function optionsType(name, module, options, { common, stem }) {
  if (!stem || Object.keys(options).length === 0) return { text: '', type: common, mark: '?' };
  const type = `${capitalised(stem(name))}Options`;
  const required = Object.entries(options).filter(([, { required }]) => required);
  const any = required.length > 0 ? type.replace(/Options$/, 'AnyOptions') : type;
  const { base, text } = members(any, module, options, printOption, common);
  const what = `/** Options of {@link ${name}}. */\n`;
  const all = `${what}export interface ${any} extends ${base ?? common} {${text}}\n`;
  if (required.length === 0) return { text: all, type, mark: '?' };
  const needed = words(required.map(([option]) => option));
  const given = words(required.map(([option, { defaultFrom }]) => defaultFrom ?? option));
  return {
    text: `${all}${what}export type ${type} = Either<${any}, ${given}, ${needed}>;\n`,
    type,
    mark: '',
  };
}

/** Prints the type of a function's metrics. It is not an interface, which is not assignable to Record<string, number>. */
function metricsType(name, module, schema, { metrics }) {
  if (!metrics) return { text: '', type: '' };
  const type = capitalised(metrics(name));
  const { base, text } = members(type, module, schema, printMetric, 'metrics');
  const parts = [base, text && `{${text}}`].filter(Boolean);
  return {
    text: `/** Metrics of {@link ${name}}. */\nexport type ${type} = ${parts.join(' & ') || 'Record<never, never>'};\n`,
    type: `<${type}>`,
  };
}

/** Returns a sentence about the options that must be given; undefined if there are none. */
function needed(options) {
  const required = Object.entries(options).filter(([, { required }]) => required);
  if (required.length === 0) return undefined;
  const names = required.map(([name]) => name).join(' and ');
  const sources = [...new Set(required.map(([name, { defaultFrom }]) => defaultFrom ?? name))].join(' and ');
  const given = sources === names ? names : `${sources}, or ${names}`;
  const hasDefaults = required.every(([name]) => createDefault(options, name) !== undefined);
  return `The constructor needs ${given}${hasDefaults ? '; create() has a default' : ', and so does create()'}.`;
}

function classComment(
  own,
  { legend = [] },
  { summary, options, details = [], unlike = {}, reads, metrics, source },
) {
  const units = Object.entries(metrics).map(
    ([name, { unit, when }]) => `${name} (${unit}${when === undefined ? '' : `; ${when}`})`,
  );
  const isOther = ([symbol]) => legend.every(([own]) => own.source !== symbol.source);
  const symbols = [...LEGEND.filter(isOther), ...legend]
    .filter(([symbol]) => symbol.test(summary))
    .map(([, meaning]) => meaning);
  const lines = [
    ...own
      .replace(/^\/\*\*|\*\/\n$/g, '')
      .trim()
      .split('\n')
      .map((line) => line.replace(/^ *\* ?/, '')),
    '',
    sentence(summary),
    symbols.length > 0 && sentence(symbols.join(', ')),
    ...details,
    needed(options) ?? false,
    ...Object.entries(unlike).map(([name, what]) => `Differs from ${name}: ${what}.`),
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

/** Adds imports of the names that a text uses and does not declare. */
function withImports(text, file) {
  const modules = { ...MODULES };
  for (const { base, module, declaration, common } of KINDS)
    for (const name of [base, declaration, common]) modules[name] ??= module;
  const imports = Object.entries(modules)
    .filter(([name, module]) => new RegExp(`\\b${name}\\b`).test(text) && module !== `./${file}`)
    .filter(([name]) => !new RegExp(`import [^;]*\\b${name}\\b[^;]* from `).test(text))
    .map(([name, module]) => `import type { ${name} } from '${module}';\n`);
  return imports.join('') + text;
}

/** A class as tsc wrote it: the type of its base, its comment, its name and its members. */
const CLASS =
  /declare const (\w+)_base: (?:(?!^declare )[\s\S])*?\n(\/\*\*(?:(?!\*\/)[\s\S])*\*\/\n)export declare class \1 extends \1_base \{\n([\s\S]*?)^\}\n/gm;

const folder = new URL('types/lib/losses/', root);
for (const file of readdirSync(folder)) {
  const js = file.replace('.d.ts', '.js');
  const url = new URL(file, folder);
  const before = readFileSync(url, 'utf8');
  const classes = [];
  let text = before.replace(CLASS, (_, name, own, members) => {
    const cls = api[name];
    const kind = KINDS.find(({ base }) => cls.prototype instanceof api[base]);
    const { declaration } = cls;
    classes.push(declaration);
    const given = optionsType(name, js, declaration.options, kind);
    const reported = metricsType(name, js, declaration.metrics, kind);
    return `${given.text}${reported.text}${classComment(own, kind, declaration)}export declare class ${name} extends ${kind.base}${reported.type} {
    /** The statement from which the class was made. */
    static readonly declaration: ${kind.declaration} & { readonly name: '${declaration.name}' };
    constructor(options${given.mark}: ${given.type});
${members}}
`;
  });
  // Options that several functions share. Those of a constant that is not exported are the options of a class.
  const values = await import(new URL(`losses/${js}`, root));
  text = text.replace(/PassedOptions<typeof (\w+)>(?=[;> ])/g, (_, constant) => {
    const names = [
      ...new RegExp(`const ${constant}: \\{\\n([\\s\\S]*?)^\\};`, 'm')
        .exec(before)[1]
        .matchAll(/^ {4}(?:readonly )?(\w+):/gm),
    ];
    const source =
      values[constant] ?? classes.find((each) => names.every(([, name]) => name in each.options)).options;
    return `{\n${names.map(([, name]) => printOption([name, source[name]])).join('')}}`;
  });
  if (text !== before) writeFileSync(url, withImports(text, js));
}

const VALUES = {
  floats: 'FloatColumn',
  flags: 'MaskColumn',
  numbers: 'RowNumbers | HalfColumn',
  ids: 'RowIds',
  step: 'number | ArrayLike<number>',
};
const SHAPES = {
  token: 'Shape [B, T]',
  row: 'Shape [B]',
  either: 'Shape [B, T], or [B] for one per row',
  pair: 'Shape [B], or [B / 2] for one per pair of rows',
};
const inputs = Object.entries(INPUTS);
const inputComment = ({ type, per, help }) => sentence(type === 'step' ? help : `${SHAPES[per]}: ${help}`);

/** Writes an interface in place of a type whose members tsc left to the table of inputs. */
function writeInterface(file, type, members, imports = '') {
  const url = new URL(`types/lib/${file}.d.ts`, root);
  const before = readFileSync(url, 'utf8');
  const lines = members.map(([name, comment, value]) => `    /** ${comment} */\n    ${name}: ${value};\n`);
  const text = before.replace(
    new RegExp(`export type ${type} = \\{[\\s\\S]*?\\n\\};\n`),
    `export interface ${type} {\n${lines.join('')}}\n`,
  );
  if (text === before) throw new Error(`${file}.d.ts: expected the type ${type}`);
  writeFileSync(url, imports + text);
}

writeInterface(
  'batch/batch',
  'BatchInputs',
  inputs.map(([name, input]) => [`${toCamelCase(name)}?`, inputComment(input), VALUES[input.type]]),
  "import type { FloatColumn, HalfColumn, MaskColumn, RowIds, RowNumbers } from './values.js';\n",
);
writeInterface('batch/batch', 'TrinityColumns', [
  ['shape?', 'The shape [B, T], for B rows that are padded to T tokens each.', 'readonly [number, number]'],
  ['cu_seqlens?', 'Offsets of packed rows, as `cuSeqlens`.', 'Int32Array | readonly number[]'],
  ...inputs.map(([name, input]) => [`${name}?`, inputComment(input), VALUES[input.type]]),
]);
writeInterface(
  'batch/batch',
  'VerlColumns',
  inputs
    .filter(([, { verl }]) => verl)
    .map(([name, { verl, type }]) => [`${verl}?`, `Verl's name of \`${toCamelCase(name)}\`.`, VALUES[type]]),
);
writeInterface(
  'program/expression',
  'ColumnSymbols',
  inputs
    .filter(([, { symbol }]) => symbol)
    .flatMap(([name, { symbol, help }]) =>
      [...new Set([symbol, name].map(toCamelCase))].map((each, i) => [
        `readonly ${each}`,
        i === 0 ? sentence(help) : `The same as \`${symbol}\`.`,
        'Expression',
      ]),
    ),
);

// The keys of a configuration in camelCase, which tsc's type has without their comments.
const config = new URL('types/lib/algorithm/config.d.ts', root);
const declared = readFileSync(config, 'utf8');
const [, body] = /export interface TrinityObjectiveConfig (\{\n[\s\S]*?^\})/m.exec(declared);
const camelCased = body.replace(/^( {4})(\w+)\?:/gm, (_, space, name) => `${space}${toCamelCase(name)}?:`);
writeFileSync(
  config,
  declared
    .replace(/type CamelCased<T> = [\s\S]*?\n\};\n/, `interface CamelCasedConfig ${camelCased}\n`)
    .replace('CamelCased<TrinityObjectiveConfig>', 'CamelCasedConfig'),
);
