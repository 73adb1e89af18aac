// Draws pictures of a run as SVG. In the first, the upper panel shows PPO's tokens per second for each contender, on a
// logarithmic scale. The lower panel compares the speed of every function with its traffic floor (see floor.ts), a loop
// that only reads and writes the same memory. The second does so for what starts from logits. A picture has its own background, which is light or dark according to the
// viewer's system.
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { LARGE } from './functions.js';
import { BACKWARD, FORWARD, FUSED, shareOf } from './logits.js';
import { find, OURS, type Report } from './report.js';
import { digits } from './tables.js';

const WIDTH = 820;
const MARGIN = 24;
/** The x coordinate at which bars begin. The names of the bars are to the left of it. */
const LEFT = 168;
/** The x coordinate at which the longest bar ends. Its number is to the right of it. */
const RIGHT = 680;
/** The width of each of the two columns in the lower panel. */
const COLUMN = (WIDTH - 2 * MARGIN) / 2;

const STYLE = `
    svg { font: 13px system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; }
    .paper { fill: #ffffff; stroke: #d5dae1; }
    text { fill: #1c2430; }
    .title { font-size: 15px; font-weight: 600; }
    .minor { fill: #5a6675; font-size: 12px; }
    .ours { fill: #0f7bd0; }
    .floor { fill: #8a96a5; }
    .peer { fill: #c9872b; }
    .track { fill: #e9edf2; }
    .grid { stroke: #dfe4ea; }
    .mark { stroke: #1c2430; stroke-dasharray: 3 3; opacity: 0.55; }
    .own { font-weight: 600; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #11161d; stroke: #2c3644; }
      text { fill: #e4e9f0; }
      .minor { fill: #9aa7b8; }
      .ours { fill: #4aa8f0; }
      .floor { fill: #758294; }
      .peer { fill: #d79b45; }
      .track { fill: #1f2833; }
      .grid { stroke: #263040; }
      .mark { stroke: #e4e9f0; }
    }`;

/** Writes the picture of a run to a file. Writes nothing if PPO was not timed. */
export function drawSpeed(report: Report, path: string): void {
  if (!find(report, 'ppo', LARGE, true)) return;
  const upper = speeds(report, 64);
  const functions = report.functions
    .filter(({ shape, gradient }) => gradient && shape.join() === LARGE.join())
    .map(({ id, times }) => ({ id, part: times.floor!.median / times[OURS]!.median }))
    .sort((a, b) => b.part - a.part);
  const lower = partsOfFloor(functions, upper.bottom + 46, {
    title: 'Every function: speed relative to its traffic floor',
    note: 'the floor reads the same columns and writes the gradient without computing; marks at 0.6 and 0.8',
    lines: [0.6, 0.8],
  });
  const about = "Tokens per second of PPO's loss and gradient by policy-loss and other implementations";
  write(path, report, about, [upper, lower]);
}

/** Writes the picture of what starts from logits. Writes nothing if it was not timed. */
export function drawLogits(report: Report, path: string): void {
  const { logits } = report;
  if (!logits) return;
  const steps = { [FORWARD]: 'forward', [BACKWARD]: 'backward', [FUSED]: 'PPO, both' };
  const parts = Object.entries(steps).flatMap(([step, name]) =>
    logits.map((each) => {
      const { shape, dtype } = each;
      return {
        id: `${name}, ${shape[1]}, ${dtype === 'float32' ? 'f32' : 'bf16'}`,
        part: shareOf(each, step),
      };
    }),
  );
  const panel = partsOfFloor(parts, 40, {
    title: 'From logits: speed relative to reading them once, or to reading and writing them once',
    note: `${logits
      .map(({ shape }) => shape.join(' × '))
      .filter((text, i, all) => all.indexOf(text) === i)
      .join(' and ')} logits; marks at 0.8 and 0.85`,
    lines: [0.8, 0.85],
  });
  write(
    path,
    report,
    'The speed of log-probabilities and gradients from logits relative to that of the memory',
    [panel],
  );
}

function write(path: string, report: Report, about: string, panels: readonly Panel[]): void {
  const { cpu, threads, isa, binary } = report.machine;
  const height = panels.at(-1)!.bottom + 44;
  const foot =
    `${cpu}, ${threads} threads, ${isa}; module compiled by ${binary.compiler}; ` +
    `medians of one run, ${report.date.slice(0, 10)}`;
  const marks = [...panels.flatMap((panel) => panel.marks), label(MARGIN, height - 18, foot, 'minor')];
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img" aria-label="${about}">
  <style>${STYLE}
  </style>
  <rect class="paper" x="0.5" y="0.5" width="${WIDTH - 1}" height="${height - 1}" rx="8"/>
  ${marks.join('\n  ')}
</svg>
`;
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, svg);
}

interface Panel {
  marks: string[];
  bottom: number;
}

function speeds(report: Report, top: number): Panel {
  const { times } = find(report, 'ppo', LARGE, true)!;
  const tokens = LARGE[0] * LARGE[1];
  const entries = Object.entries(times)
    .map(([name, { median }]) => ({ name, speed: tokens / (median / 1e3) }))
    .sort((a, b) => b.speed - a.speed);
  const own = entries.find(({ name }) => name === OURS)!.speed;
  const least = 10 ** Math.floor(Math.log10(Math.min(...entries.map(({ speed }) => speed)) / 1.5));
  const most = Math.max(...entries.map(({ speed }) => speed));
  const x = (speed: number) => LEFT + ((RIGHT - LEFT) * Math.log(speed / least)) / Math.log(most / least);
  const marks = [
    label(MARGIN, top - 34, `PPO, loss and gradient of ${LARGE.join(' × ')} tokens`, 'title'),
    label(MARGIN, top - 16, 'million tokens per second, logarithmic scale', 'minor'),
  ];
  const row = 28;
  const bottom = top + row * entries.length;
  for (let decade = least; decade <= most; decade *= 10) {
    marks.push(
      `<line class="grid" x1="${n(x(decade))}" y1="${top - 4}" x2="${n(x(decade))}" y2="${bottom}"/>`,
    );
    marks.push(label(x(decade), bottom + 14, grouped(decade / 1e6), 'minor', 'middle'));
  }
  entries.forEach(({ name, speed }, i) => {
    const y = top + row * i;
    const kind = name === OURS ? 'ours' : name === 'floor' ? 'floor' : 'peer';
    const text = kind === 'floor' ? 'traffic floor' : name;
    const compared = kind === 'peer' ? `   ${rounded(own / speed)}× slower` : '';
    marks.push(label(LEFT - 10, y + 16, text, kind === 'ours' ? 'own' : '', 'end'));
    marks.push(
      `<rect class="${kind}" x="${LEFT}" y="${y + 3}" width="${n(x(speed) - LEFT)}" height="${row - 10}" rx="2"/>`,
    );
    marks.push(
      label(x(speed) + 8, y + 16, `${grouped(speed / 1e6)}${compared}`, kind === 'ours' ? 'own' : ''),
    );
  });
  return { marks, bottom: bottom + 18 };
}

// Draws parts of a floor's speed in two columns, with vertical lines at some parts.
function partsOfFloor(
  parts: readonly { id: string; part: number }[],
  top: number,
  { title, note, lines }: { title: string; note: string; lines: readonly number[] },
): Panel {
  const marks = [label(MARGIN, top, title, 'title'), label(MARGIN, top + 18, note, 'minor')];
  const row = 20;
  const begin = top + 32;
  const perColumn = Math.ceil(parts.length / 2);
  const length = COLUMN - (LEFT - MARGIN) - 56;
  parts.forEach(({ id, part }, i) => {
    const left = LEFT + (i < perColumn ? 0 : COLUMN);
    const y = begin + row * (i % perColumn);
    marks.push(label(left - 10, y + 14, id, '', 'end'));
    marks.push(
      `<rect class="track" x="${left}" y="${y + 4}" width="${n(length)}" height="${row - 8}" rx="2"/>`,
    );
    marks.push(
      `<rect class="ours" x="${left}" y="${y + 4}" width="${n(length * Math.min(part, 1))}" height="${row - 8}" rx="2"/>`,
    );
    marks.push(label(left + length + 8, y + 14, part.toFixed(2), 'minor'));
  });
  [perColumn, parts.length - perColumn].forEach((rows, column) => {
    for (const at of rows > 0 ? lines : []) {
      const x = n(LEFT + column * COLUMN + length * at);
      marks.push(`<line class="mark" x1="${x}" y1="${begin}" x2="${x}" y2="${begin + row * rows}"/>`);
    }
  });
  return { marks, bottom: begin + row * perColumn };
}

function label(x: number, y: number, text: string, style: string, anchor?: 'middle' | 'end'): string {
  const escaped = text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
  const attributes = `${style && ` class="${style}"`}${anchor ? ` text-anchor="${anchor}"` : ''}`;
  return `<text x="${n(x)}" y="${n(y)}"${attributes} xml:space="preserve">${escaped}</text>`;
}

const n = (x: number) => Number(x.toFixed(1));

// Formats a number: as a whole number if it is at least 10, otherwise with three significant digits.
const rounded = (x: number) => (x >= 10 ? String(Math.round(x)) : digits(x));

const grouped = (x: number) => (x >= 10 ? Math.round(x).toLocaleString('en') : String(Number(digits(x))));
