// `policy-loss doctor`: looks for faults in a dump of a training step.
import type { Command } from 'commander';
import { type Diagnosis, Examination, type Finding, type Severity } from '../../doctor/index.js';
import { type ReadProgress, streamRollouts } from '../../rollouts/index.js';
import { version } from '../about.js';
import { describeRows, missingColumns, wordsOf } from '../evidence.js';
import { BadResult } from '../exit.js';
import { inLines, widthOf, wrapped } from '../lines.js';
import { countsOf, csv, type Printable, readable, type Style, styled, twoColumns } from '../output.js';
import { checkWritable, REPORT_OPTION, writePage } from '../report-file.js';
import {
  type RolloutsOptions,
  type RolloutsRun,
  rolloutsCommand,
  runOnRollouts,
} from '../rollouts-command.js';

/** The result of `policy-loss doctor`, as `--json` prints it. */
export interface DoctorResult extends Diagnosis {
  /** The number of invalid rows that were skipped; absent without --skip-bad-rows. */
  skipped?: number;
}

/** Adds the command `doctor` to the command-line program. */
export function addDoctor(program: Command): void {
  rolloutsCommand(program, {
    name: 'doctor',
    summary: 'look for faults in a dump of a training step',
    description:
      'Looks for what is wrong or suspicious in rollout files: trainer against rollout engine, ratios, KL estimates, ' +
      'advantages, groups, masks, lengths, entropies, duplicates. Says what each finding means, which rows show it, ' +
      'and what to try.',
    computes: false,
    strict:
      'exit with 1 if there is an error or a warning among the findings, or a key that occurs twice in a JSON object',
    options: [
      REPORT_OPTION('write an HTML page with the findings and the distributions that they are about'),
    ],
    help: HELP,
    examples: EXAMPLES,
  }).action(async (patterns: string[], options: RolloutsOptions) => {
    const { report } = options;
    await checkWritable(report);
    let isBad = false;
    await runOnRollouts(patterns, options, [], {}, async (run) => {
      const examination = new Examination();
      const page = report === undefined ? undefined : await newPage(run.files);
      for await (const part of partsOf(run)) {
        examination.add(part);
        page?.add(part);
      }
      const diagnosis = examination.finish();
      if (page) await writePage(report!, page.finish(examination, diagnosis));
      isBad = diagnosis.findings.some(({ severity }) => severity !== 'info');
      return printable(diagnosis, run);
    });
    if (options.strict && isBad) throw new BadResult();
  });
}

const HELP = `\
A check runs if the files have the columns that it needs; the others are listed with what they lack. Dumps that hold only
the old log-probabilities are fine. docs/doctor.md lists all checks with their thresholds.`;

const EXAMPLES = [
  'doctor rollouts.jsonl',
  "doctor 'train_data/step_7/rank_*.jsonl' --report out.html",
  'doctor rollouts.parquet --column rollout_logprobs=generation_logprobs --json',
  'doctor rollouts.jsonl --strict --quiet',
];

/** Imported only for pages, so that other runs do not load the code that builds them. */
async function newPage(files: readonly string[]) {
  const { DoctorPage } = await import('../report/doctor-page.js');
  return new DoctorPage(files, version);
}

function partsOf({ files, settings }: RolloutsRun) {
  const { progress, read, batchTokens } = settings;
  progress.begin('reading');
  const options = {
    ...read,
    // Most trainers do not save the current log-probabilities.
    logprobs: 'optional' as const,
    maxTokens: batchTokens,
    onProgress: ({ bytes, totalBytes, rows, tokens }: ReadProgress) =>
      progress.advance(totalBytes > 0 ? bytes / totalBytes : 0, rows, tokens),
  };
  return streamRollouts(files, options);
}

function printable(diagnosis: Diagnosis, { skipped }: RolloutsRun): Printable {
  const result: DoctorResult = { ...diagnosis, ...(skipped !== undefined && { skipped }) };
  return {
    json: () => result,
    csv: () =>
      csv(
        ['severity', 'id', 'title', 'rows', 'places', 'evidence'],
        result.findings.map((finding) => {
          const { severity, id, title, rows, evidence } = finding;
          return [
            severity,
            id,
            title,
            rows.count,
            describeRows(finding, result.rows),
            JSON.stringify(evidence),
          ];
        }),
      ),
    text: () => describe(result),
  };
}

const STYLES: Record<Severity, Style> = { error: ['bold', 'red'], warning: 'yellow', info: 'dim' };

function describe(result: DoctorResult): string {
  const { findings, checks } = result;
  const blocks = findings.map((finding) => describeFinding(finding, result.rows));
  const ran = checks.filter((check) => check.ran).length;
  const verdict =
    findings.length === 0
      ? 'Nothing is wrong or suspicious.'
      : `${countsBySeverity(findings)} in ${ran} checks.`;
  const missing = [...missingColumns(result)].map(([column, runs]): [string, string] => [
    column,
    runs.map(({ name }) => name).join(', '),
  ]);
  return [
    ...blocks,
    verdict,
    ...(missing.length > 0 ? [`Checks that need further columns:\n${twoColumns(missing, 'left')}`] : []),
    styled('dim', countsOf(result)),
  ].join('\n\n');
}

// The width of an indented name with the gap after it, and the largest width of the text next to it.
const NAME_WIDTH = '  evidence   '.length;
const MAX_WIDTH = 90;

function describeFinding(finding: Finding, rows: number): string {
  const { id, severity, title, meaning, advice, evidence } = finding;
  const width = Math.min(MAX_WIDTH, widthOf(process.stdout) - NAME_WIDTH);
  const lines = (text: string) => wrapped(text, width);
  const numbers = Object.entries(evidence).map(([name, x]) => `${wordsOf(name)} ${readable(x)}`);
  const table = twoColumns(
    [
      ['rows', lines(describeRows(finding, rows))],
      ...(numbers.length > 0 ? [['evidence', inLines(numbers, ',', width)] as const] : []),
      ['meaning', lines(meaning)],
      ['try', lines(advice)],
    ],
    'left',
  );
  const indented = table.replace(/^(?=.)/gm, '  ');
  const [head, ...more] = wrapped(`${title} (${id})`, widthOf(process.stdout) - severity.length - 2);
  const heads = [
    `${styled(STYLES[severity], severity)}  ${styled('bold', head!)}`,
    ...more.map((line) => `  ${styled('bold', line)}`),
  ];
  return `${heads.join('\n')}\n${indented}`;
}

function countsBySeverity(findings: readonly Finding[]): string {
  const names = {
    error: ['error', 'errors'],
    warning: ['warning', 'warnings'],
    info: ['note', 'notes'],
  } as const;
  const counts = (Object.keys(names) as Severity[]).flatMap((severity) => {
    const count = findings.filter((finding) => finding.severity === severity).length;
    return count === 0 ? [] : [`${count} ${names[severity][count === 1 ? 0 : 1]}`];
  });
  return counts.join(', ');
}
