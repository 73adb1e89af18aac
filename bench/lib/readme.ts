// Writes the results of the last runs into bench/README.md and README.md, between markers, and draws speed.svg.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpuTable, gpuTable, logitsSteps } from './comparison.js';
import { drawSpeed } from './picture.js';
import { claim, shapeText, summaries } from './ratios.js';
import type { CpuReport, GpuReport } from './report.js';
import { inMarkdown, timesTable } from './tables.js';

const BENCH = new URL('../', import.meta.url);
const PAGE = new URL('README.md', BENCH);
const README = new URL('../README.md', BENCH);
const RESULTS = new URL('results/', BENCH);

/** Writes the tables of every kind of machine that has results. The others stay as they are. */
export function writeTables(): void {
  const reports = readdirSync(RESULTS)
    .sort()
    .map((name): CpuReport | GpuReport => JSON.parse(readFileSync(new URL(name, RESULTS), 'utf8')));
  const ofCpus = reports.filter((report) => report.kind === 'cpu');
  const ofGpus = reports.filter((report) => report.kind === 'gpu');
  if (ofCpus.length > 0) writeBetween(PAGE, 'cpu', ofCpus.map(describeCpu));
  if (ofGpus.length > 0) writeBetween(PAGE, 'gpu', ofGpus.map(describeGpu));
  const [first] = ofCpus;
  if (!first) return;
  writeBetween(README, 'speed', [claim(first)]);
  writeFileSync(new URL('speed.svg', BENCH), drawSpeed(first));
}

/** Replaces the text of a file between two markers. */
function writeBetween(file: URL, marker: string, parts: readonly string[]): void {
  const text = readFileSync(file, 'utf8');
  const [begin, end] = [`<!-- ${marker} -->`, `<!-- /${marker} -->`];
  const [from, to] = [text.indexOf(begin), text.indexOf(end)];
  if (from < 0 || to < from) throw new Error(`${file.pathname}: expected the markers ${begin} and ${end}`);
  writeFileSync(file, `${text.slice(0, from + begin.length)}\n${parts.join('\n\n')}\n${text.slice(to)}`);
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
