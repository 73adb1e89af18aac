// Adds doc comments to the declaration files in dist/functions: editors then show each option's help, range and
// default, and each class's formula, inputs, metrics and sources. The texts come from the declarations, so no source
// file repeats them.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';

const root = new URL('../../dist/functions/', import.meta.url);

/** Matches an option: its indentation, its name, and its properties up to the end of `help`. */
const OPTION =
  /^( +)readonly (\w+): \{\n(\s+readonly type: (?:(?!^\1\};)[\s\S])*?readonly help: (["'])(.*?)\4;)/gm;

/** Matches a declared class with its one-line comment. */
const CLASS = /\/\*\* (.*) \*\/\nexport declare class (\w+) extends \2_base/g;

for (const file of readdirSync(root, { recursive: true, encoding: 'utf8' })) {
  if (!file.endsWith('.d.ts')) continue;
  const url = new URL(file, root);
  const text = readFileSync(url, 'utf8');
  const documented = text.replace(
    OPTION,
    (option, indent, _name, properties, _quote, help) =>
      `${indent}/** ${describe(help, properties)} */\n${option}`,
  );
  const described = documented.replace(CLASS, (declared, comment, name) => {
    const start = text.indexOf(`declare const ${name}_base: `);
    return start < 0
      ? declared
      : declared.replace(`/** ${comment} */`, classComment(comment, text.slice(start)));
  });
  if (described !== text) writeFileSync(url, described);
}

function describe(help, properties) {
  const value = (name) =>
    new RegExp(`readonly ${name}: (?:["'](.*?)["']|(.*?));`).exec(properties)?.slice(1).find(Boolean);
  const [least, above, most] = [value('atLeast'), value('above'), value('atMost')];
  const range = [
    least === undefined ? undefined : `at least ${least}`,
    above === undefined ? undefined : `above ${above}`,
    most === undefined ? undefined : `at most ${most}`,
  ].filter(Boolean);
  const fallback = value('default') ?? (value('defaultFrom') && `that of ${value('defaultFrom')}`);
  return [
    `${help[0].toUpperCase()}${help.slice(1)}.`,
    range.length > 0 ? `Range: ${range.join(', ')}.` : undefined,
    fallback === undefined ? undefined : `Default: ${fallback}.`,
  ]
    .filter(Boolean)
    .join(' ');
}

/** Returns a class's comment: its own line, then text from its declaration. */
function classComment(own, declaration) {
  const words = (name) => {
    const list = new RegExp(`readonly ${name}: readonly \\[(.*?)\\];`).exec(declaration)?.[1] ?? '';
    return [...list.matchAll(/"(.*?)"|'(.*?)'/g)].map(([, double, single]) => double ?? single);
  };
  const summary = /readonly summary: (?:"(.*?)"|'(.*?)');/.exec(declaration);
  const metrics = /readonly metrics: \{([\s\S]*?)\n {4}\};/.exec(declaration)?.[1] ?? '';
  const units = [...metrics.matchAll(/readonly '?([\w/]+)'?: \{\s+readonly unit: ["'](.*)["'];/g)];
  const lines = [
    own,
    '',
    summary === null ? undefined : `${summary[1] ?? summary[2]}.`,
    ...words('details'),
    '',
    `Reads ${words('reads').join(', ') || 'nothing'}.`,
    units.length > 0
      ? `Metrics: ${units.map(([, name, unit]) => `${name} (${unit})`).join(', ')}.`
      : undefined,
    '',
    `Source: ${words('source').join(', ')}.`,
  ];
  return [
    '/**',
    ...lines.filter((line) => line !== undefined).map((line) => ` * ${line}`.trimEnd()),
    ' */',
  ].join('\n');
}
