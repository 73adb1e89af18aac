// Draws how many times as fast as PyTorch each function is, as SVG: bars on a logarithmic scale, in two columns. The
// picture has its own background, which is light or dark according to the viewer's system.
import { mediansOf, shapeText } from './ratios.js';
import type { CpuReport } from './report.js';
import { digits } from './tables.js';

const WIDTH = 820;
const MARGIN = 24;
const COLUMN = (WIDTH - 2 * MARGIN) / 2;
/** Where the bars begin within a column. The names are to their left. */
const LEFT = 150;
/** The length of the longest bar. Its number is to its right. */
const LENGTH = COLUMN - LEFT - 50;
const TOP = 72;
const ROW = 17;

const STYLE = `
    svg { font: 12px system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; }
    .paper { fill: #ffffff; stroke: #d5dae1; }
    text { fill: #1c2430; }
    .title { font-size: 15px; font-weight: 600; }
    .minor { fill: #5a6675; }
    .bar { fill: #0f7bd0; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #11161d; stroke: #2c3644; }
      text { fill: #e4e9f0; }
      .minor { fill: #9aa7b8; }
      .bar { fill: #4aa8f0; }
    }`;

/** Returns the picture of a run's largest shape. */
export function drawSpeed({ machine, date, torch, functions }: CpuReport): string {
  const { shape } = functions.at(-1)!;
  const bars = functions
    .filter((each) => shapeText(each.shape) === shapeText(shape))
    .flatMap(({ id, times }) => {
      const { ours, peer } = mediansOf(times);
      return peer === undefined || id.startsWith('expression') ? [] : [{ id, factor: peer / ours }];
    })
    .sort((a, b) => b.factor - a.factor);
  const most = Math.log(Math.max(...bars.map(({ factor }) => factor)));
  const perColumn = Math.ceil(bars.length / 2);
  const marks = bars.map(({ id, factor }, i) => {
    const left = MARGIN + LEFT + (i < perColumn ? 0 : COLUMN);
    const y = TOP + ROW * (i % perColumn);
    const width = Math.max((LENGTH * Math.log(factor)) / most, 1);
    return [
      text(left - 8, y + 12, id, '', 'end'),
      `<rect class="bar" x="${left}" y="${y + 2}" width="${width.toFixed(1)}" height="${ROW - 5}" rx="2"/>`,
      text(left + width + 6, y + 12, digits(factor), 'minor'),
    ].join('');
  });
  const height = TOP + ROW * perColumn + 40;
  const title = `How many times as fast as PyTorch: loss, metrics and gradient of ${shape.join(' × ')} tokens`;
  const foot = `${machine.cpu}, ${machine.threads} threads, ${machine.isa}; PyTorch ${torch}; ${date.slice(0, 10)}`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img" aria-label="${title}">
  <style>${STYLE}
  </style>
  <rect class="paper" x="0.5" y="0.5" width="${WIDTH - 1}" height="${height - 1}" rx="8"/>
  ${text(MARGIN, 32, title, 'title')}
  ${text(MARGIN, 52, 'the faster of eager PyTorch and torch.compile in its fastest form; logarithmic scale', 'minor')}
  ${marks.join('\n  ')}
  ${text(MARGIN, height - 16, foot, 'minor')}
</svg>
`;
}

function text(x: number, y: number, content: string, style: string, anchor = 'start'): string {
  return `<text class="${style}" x="${x.toFixed(1)}" y="${y}" text-anchor="${anchor}">${content}</text>`;
}
