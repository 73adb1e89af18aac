// Writes the results of the last runs into bench/README.md, between the markers of their kind, and draws speed.svg.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpuTable, gpuTable, logitsSteps, shapeText, summaries } from './comparison.js';
import { drawSpeed } from './picture.js';
import type { CpuReport, GpuReport } from './report.js';
import { inMarkdown, timesTable } from './tables.js';

const BENCH = new URL('../', import.meta.url);
const README = new URL('README.md', BENCH);
const RESULTS = new URL('results/', BENCH);

/** Writes the tables of every kind of machine that has results. The others stay as they are. */
export function writeTables(): void {
  const reports = readdirSync(RESULTS)
    .sort()
    .map((name): CpuReport | GpuReport => JSON.parse(readFileSync(new URL(name, RESULTS), 'utf8')));
  const ofCpus = reports.filter((report) => report.kind === 'cpu');
  const ofGpus = reports.filter((report) => report.kind === 'gpu');
  let text = readFileSync(README, 'utf8');
  if (ofCpus.length > 0) text = between(text, 'cpu', ofCpus.map(describeCpu));
  if (ofGpus.length > 0) text = between(text, 'gpu', ofGpus.map(describeGpu));
  writeFileSync(README, text);
  if (ofCpus[0]) writeFileSync(new URL('speed.svg', BENCH), drawSpeed(ofCpus[0]));
}

/** Replaces the text between the markers of a kind. */
function between(text: string, kind: string, parts: readonly string[]): string {
  const [begin, end] = [`<!-- ${kind} -->`, `<!-- /${kind} -->`];
  const [from, to] = [text.indexOf(begin), text.indexOf(end)];
  if (from < 0 || to < from) throw new Error(`bench/README.md: expected the markers ${begin} and ${end}`);
  return `${text.slice(0, from + begin.length)}\n${parts.join('\n\n')}\n${text.slice(to)}`;
}

function describeCpu(report: CpuReport): string {
  const { machine, date, rounds, torch, functions, calls } = report;
  const { cpu, threads, isa, node, binary } = machine;
  const title =
    `${cpu}, ${threads} threads, ${isa}; ${binary}; Node ${node}, PyTorch ${torch ?? 'absent'}; medians of ` +
    `${rounds} rounds on ${date.slice(0, 10)}.`;
  const tables = [cpuTable(report), logitsSteps(report), timesTable('', calls, 'µs')];
  return [title, ...summaries(functions), ...tables.map(inMarkdown)].join('\n\n');
}

function describeGpu(report: GpuReport): string {
  const { device, driver, date, rounds, torch, functions } = report;
  const title =
    `${device}, driver ${driver ?? 'unknown'}, PyTorch ${torch ?? 'absent'}; batches of ` +
    `${shapeText(functions[0]!.shape)} tokens; medians of ${rounds} rounds on ${date.slice(0, 10)}.`;
  return [title, ...summaries(functions), inMarkdown(gpuTable(report))].join('\n\n');
}
