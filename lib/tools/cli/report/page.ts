/// <reference lib="dom" />
/// <reference lib="dom.iterable" />
// The script in a report's page. It draws the charts, and shows the numbers of the token or the bin under the pointer.
// The compiled file is inserted into the page after uPlot and short-number.ts, so it must not import values from any
// other module.
import type UPlot from 'uplot';
import type { BinsData, ChartData, HistogramData, LinesData, PageData, StripData } from './page-data.js';
import { short, withMinus } from './short-number.js';

const { uPlot } = globalThis as unknown as { uPlot: typeof UPlot };
const data: PageData = JSON.parse(document.getElementById('data')!.textContent!);

/**
 * Returns a function that reads a colour from the style sheet. A chart calls it whenever it draws, because the colour
 * differs between the light and the dark scheme.
 */
const colour = (name: string) => () =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);

const FONT = `12px ${getComputedStyle(document.body).fontFamily}`;

// The formats of numbers.

/**
 * Formats a number from the page's data with 3 significant digits. The data has null for a number that is not finite.
 */
function shown(x: number | null | undefined): string {
  return x === null || x === undefined ? 'not finite' : short(x);
}

/** Formats the numbers along an axis, all with the same number of decimals. */
function ticks(values: readonly number[]): string[] {
  const shortest = values.map((x) => String(Number(x.toPrecision(6))));
  const decimals = Math.max(0, ...shortest.map((text) => text.split('.')[1]?.length ?? 0));
  return shortest.map((text, i) => withMinus(text.includes('e') ? text : (values[i]! + 0).toFixed(decimals)));
}

/**
 * Returns the exponent of the power of ten in which an axis shows its numbers, or 0 if it shows them as they are.
 * @param most the largest absolute value on the axis.
 */
function powerFor(most: number): number {
  const power = Math.floor(Math.log10(most));
  return Number.isFinite(power) && (power < -2 || power > 4) ? power : 0;
}

const superscript = (n: number) =>
  [...String(n)].map((c) => (c === '-' ? '⁻' : '⁰¹²³⁴⁵⁶⁷⁸⁹'[Number(c)])).join('');

/**
 * Returns the positions of the labels on a ratio axis. They are the natural logarithms of round ratios.
 * @param low the natural logarithm of the ratio at which the axis begins.
 * @param high the natural logarithm of the ratio at which the axis ends.
 * @param apart the smallest allowed distance between two labels.
 */
function ratioTicks(low: number, high: number, apart: number): number[] {
  const [from, to] = [Math.exp(low), Math.exp(high)];
  for (const candidates of to / from > 8 ? byDecades(from, to) : bySteps(from, to)) {
    const logs = candidates.map(Math.log);
    if (logs.length > 1 && logs.every((x, i) => i === 0 || x - logs[i - 1]! >= apart)) return logs;
  }
  return [low, high];
}

function* bySteps(from: number, to: number): Generator<number[]> {
  const least = 10 ** Math.floor(Math.log10(to - from) - 2);
  for (const factor of [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500]) {
    const step = least * factor;
    const first = Math.ceil(from / step);
    const number = Math.floor(to / step) - first + 1;
    yield Array.from({ length: Math.max(number, 0) }, (_, i) => Number(((first + i) * step).toPrecision(12)));
  }
}

function* byDecades(from: number, to: number): Generator<number[]> {
  for (const digits of [[1, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
    const found: number[] = [];
    for (let power = Math.floor(Math.log10(from)); power <= Math.log10(to); power++)
      found.push(...digits.map((digit) => Number((digit * 10 ** power).toPrecision(6))));
    yield found.filter((x) => x >= from && x <= to);
  }
}

// The charts.

/** The settings that all axes have in common. */
const AXIS: UPlot.Axis = {
  font: FONT,
  labelFont: FONT,
  stroke: colour('soft'),
  grid: { stroke: colour('grid'), width: 1 },
  ticks: { stroke: colour('line'), width: 1, size: 4 },
  gap: 4,
};

function ratioAxis(label: string): UPlot.Axis {
  return {
    ...AXIS,
    label,
    labelSize: 20,
    labelGap: 2,
    size: 26,
    splits: (u, _axis, low, high) =>
      ratioTicks(low, high, ((high - low) / (u.bbox.width / uPlot.pxRatio)) * 46),
    values: (_u, splits) => ticks(splits.map(Math.exp)),
  };
}

/**
 * Returns a horizontal axis of numbers. Very large or very small numbers are shown in units of a power of ten.
 * @param most the largest absolute value on the axis.
 */
function numberAxis(label: string, most: number): UPlot.Axis {
  const power = powerFor(most);
  return {
    ...AXIS,
    label: power === 0 ? label : `${label}, in 10${superscript(power)}`,
    labelSize: 20,
    labelGap: 2,
    size: 26,
    space: 56,
    values: (_u, splits) => ticks(splits.map((x) => x / 10 ** power)),
  };
}

const UPRIGHT: UPlot.Axis = { ...AXIS, space: 36, size: widthOf };

/**
 * Returns a vertical axis of numbers.
 * @param most the largest absolute value on the axis.
 */
function valueAxis(most: number): UPlot.Axis {
  return { ...UPRIGHT, values: (_u, splits) => (powerFor(most) === 0 ? ticks(splits) : splits.map(short)) };
}

/** Returns a vertical axis of counts. */
function countAxis(): UPlot.Axis {
  const compact = new Intl.NumberFormat('en', { notation: 'compact' });
  const incrs = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((x) => x * 10 ** power)).flat();
  return { ...UPRIGHT, incrs, values: (_u, splits) => splits.map((n) => compact.format(n)) };
}

/** Returns the width in CSS pixels that the numbers along a vertical axis need. */
function widthOf(u: UPlot, values: (string | null)[] | null): number {
  u.ctx.save();
  u.ctx.font = FONT.replace('12px', `${12 * uPlot.pxRatio}px`);
  const widest = Math.max(0, ...(values ?? []).map((text) => u.ctx.measureText(text ?? '').width));
  u.ctx.restore();
  return Math.ceil(widest / uPlot.pxRatio) + 10;
}

function options(width: number, height: number, rest: Partial<UPlot.Options>): UPlot.Options {
  return {
    width,
    height,
    legend: { show: false },
    padding: [8, 14, 0, 0],
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, dist: 4 } },
    series: [],
    ...rest,
  };
}

/**
 * Returns the edges and the counts of the bins. Empty bins are added at both ends, so that the drawn outline begins and
 * ends at 0.
 */
function outline({ low, width, counts }: BinsData): { edges: number[]; counts: number[] } {
  const edges = Array.from({ length: counts.length + 3 }, (_, i) => low + (i - 1) * width);
  return { edges, counts: [0, ...counts, 0, 0] };
}

function histogram(chart: HistogramData, readout: HTMLElement) {
  const { edges, counts } = outline(chart.bins);
  const { label, unit, total, x } = chart;
  const idle = readout.textContent!;
  const value =
    x === 'ratio'
      ? (edge: number) => short(Math.exp(edge))
      : (edge: number) => short(Math.abs(edge) < chart.bins.width * 1e-6 ? 0 : edge);
  const describeBin = (bin: number | undefined) => {
    const n = bin === undefined ? undefined : counts[bin];
    if (n === undefined || bin! + 1 >= edges.length) {
      readout.textContent = idle;
      return;
    }
    // Keeps the height of the text constant while it changes, so that the rest of the page does not move.
    readout.style.minHeight ||= `${readout.offsetHeight}px`;
    const share = total > 0 ? Number(((100 * n) / total).toPrecision(2)) : 0;
    readout.textContent = `${value(edges[bin!]!)} to ${value(edges[bin! + 1]!)}: ${Math.round(n).toLocaleString('en')} ${unit}${Math.round(n) === 1 ? '' : 's'}, ${share}%`;
  };
  const rest: Partial<UPlot.Options> = {
    scales: {
      x: { time: false },
      y: { range: (_u, _low, high) => [0, high > 0 ? high * 1.06 : 1] },
    },
    series: [
      {},
      {
        paths: uPlot.paths.stepped!({ align: 1 }),
        points: { show: false },
        width: 1.25,
        stroke: colour('bars'),
        fill: colour('bars-fill'),
      },
    ],
    axes: [
      x === 'ratio'
        ? ratioAxis(label)
        : numberAxis(label, Math.max(Math.abs(edges[0]!), Math.abs(edges.at(-1)!))),
      countAxis(),
    ],
    hooks: {
      setCursor: [
        (u) => describeBin(inBounds(u) ? binAt(edges, u.posToVal(u.cursor.left!, 'x')) : undefined),
      ],
    },
  };
  return { rest, data: [edges, counts] as UPlot.AlignedData };
}

function inBounds(u: UPlot): boolean {
  return u.cursor.left !== undefined && u.cursor.left >= 0;
}

function binAt(edges: readonly number[], x: number): number {
  return Math.floor((x - edges[0]!) / (edges[1]! - edges[0]!));
}

function lines(chart: LinesData, readout: HTMLElement) {
  const { x, xs, names = [], density } = chart;
  const slot = (name: string | number) => readout.querySelector(`[data-slot="${name}"]`)!;
  const most = chart.lines
    .flatMap(({ values }) => values)
    .reduce<number>((a, y) => Math.max(a, Math.abs(y ?? 0)), 0);
  const rest: Partial<UPlot.Options> = {
    scales: { x: { time: false }, y: { range: (_u, low, high) => padded(low, high) } },
    series: [
      {},
      ...chart.lines.map(
        (line, i): UPlot.Series => ({
          width: 2,
          points: { show: x !== 'ratio' },
          stroke: colour(line.colour),
          dash: DASHES[i % DASHES.length]!,
        }),
      ),
    ],
    axes: [axisOf(chart), valueAxis(most)],
    hooks: {
      drawClear: [(u) => density && drawDensity(u, density)],
      drawAxes: [(u) => x === 'ratio' && drawCross(u)],
      setCursor: [
        (u) => {
          const at = inBounds(u) ? u.cursor.idx : undefined;
          const fill = (name: string | number, text: (i: number) => string) => {
            slot(name).textContent = at === null || at === undefined ? '' : text(at);
          };
          chart.lines.forEach(({ values }, i) => {
            fill(i, (at) => shown(values[at]));
          });
          fill('x', (at) => {
            if (x === 'ratio') return `at ratio ${short(Math.exp(xs[at]!))}`;
            return `at ${x === 'name' ? names[xs[at]!] : short(xs[at]!)}`;
          });
        },
      ],
    },
  };
  return { rest, data: [xs, ...chart.lines.map(({ values }) => values)] as UPlot.AlignedData };
}

// The key of line i in the legend has the class `dash` with the index of its pattern.
const DASHES = [[], [7, 5], [2, 4]];

function axisOf({ x, label, xs, names = [] }: LinesData): UPlot.Axis {
  if (x === 'ratio') return ratioAxis(label);
  const axis = numberAxis(
    label,
    xs.reduce((most, value) => Math.max(most, Math.abs(value)), 0),
  );
  if (x === 'number') return axis;
  return { ...axis, label, splits: () => xs, values: (_u, splits) => splits.map((i) => names[i] ?? '') };
}

function padded(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [-1, 1];
  const room = (high - low) * 0.08 || Math.abs(high) * 0.5 || 1;
  return [low - room, high + room];
}

/** Draws the distribution of the ratios in the data behind the curves, upwards from the bottom of the chart. */
function drawDensity(u: UPlot, bins: BinsData): void {
  const { ctx, bbox } = u;
  const { edges, counts } = outline(bins);
  const most = counts.reduce((most, n) => Math.max(most, n), 0);
  if (most === 0) return;
  const bottom = bbox.top + bbox.height;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.beginPath();
  ctx.moveTo(u.valToPos(edges[0]!, 'x', true), bottom);
  counts.forEach((n, i) => {
    const y = bottom - (n / most) * bbox.height * 0.85;
    ctx.lineTo(u.valToPos(edges[i]!, 'x', true), y);
    ctx.lineTo(u.valToPos(edges[i + 1] ?? edges[i]!, 'x', true), y);
  });
  ctx.fillStyle = colour('density')();
  ctx.fill();
  ctx.restore();
}

/** Draws a vertical line at ratio 1 and a horizontal line at value 0. */
function drawCross(u: UPlot): void {
  const { ctx, bbox, scales } = u;
  const within = (x: number, scale: UPlot.Scale | undefined) => x >= scale!.min! && x <= scale!.max!;
  ctx.save();
  ctx.strokeStyle = colour('soft')();
  ctx.globalAlpha = 0.6;
  ctx.lineWidth = uPlot.pxRatio;
  ctx.beginPath();
  if (within(0, scales.x)) {
    const x = Math.round(u.valToPos(0, 'x', true));
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
  }
  if (within(0, scales.y)) {
    const y = Math.round(u.valToPos(0, 'y', true));
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
  }
  ctx.stroke();
  ctx.restore();
}

function draw(element: HTMLElement, chart: ChartData): UPlot {
  const readout = document.querySelector<HTMLElement>(`[data-readout="${element.dataset.chart}"]`)!;
  const { rest, data } = chart.kind === 'histogram' ? histogram(chart, readout) : lines(chart, readout);
  return new uPlot(options(element.clientWidth, element.clientHeight, rest), data, element);
}

const charts = [...document.querySelectorAll<HTMLElement>('[data-chart]')].map((element) => ({
  element,
  plot: draw(element, data.charts[Number(element.dataset.chart)]!),
}));

const resizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const { element, plot } = charts.find(({ element }) => element === target)!;
    resize(element, plot);
  }
});
for (const { element } of charts) resizes.observe(element);

function resize(element: HTMLElement, plot: UPlot, width = element.clientWidth): void {
  if (width > 0 && width !== plot.width) plot.setSize({ width, height: element.clientHeight });
}

// Draws all charts again, which makes them read the colours of the current scheme.
const redraw = () => {
  for (const { plot } of charts) plot.redraw(false, false);
};
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);

// A printed page uses the light scheme, and two charts fit next to each other. This is the width of such a chart in CSS
// pixels.
const PAPER_WIDTH = 300;
const onPaper = () => {
  document.documentElement.dataset.paper = '';
  for (const { element, plot } of charts) resize(element, plot, PAPER_WIDTH);
  redraw();
};
const offPaper = () => {
  delete document.documentElement.dataset.paper;
  for (const { element, plot } of charts) resize(element, plot);
  redraw();
};
addEventListener('beforeprint', onPaper);
addEventListener('afterprint', offPaper);

// Token tooltips.

const tip = document.getElementById('tip')!;
let selected: Element | undefined;

/** Shows a token's numbers in a tooltip. */
function show(token: Element): void {
  hide();
  const strip = token.parentElement!;
  const index = [...strip.children].indexOf(token);
  tip.textContent = describe(data.strips[Number(strip.dataset.strip)]!, index);
  tip.hidden = false;
  token.classList.add('at');
  selected = token;
  place(token);
}

/** Places the tooltip under a token, or above it if there is no room below. */
function place(token: Element): void {
  const { left, top, bottom } = token.getClientRects()[0] ?? token.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(left, innerWidth - width - 8))}px`;
  tip.style.top = `${bottom + 6 + height > innerHeight ? top - height - 6 : bottom + 6}px`;
}

function hide(): void {
  tip.hidden = true;
  selected?.classList.remove('at');
  selected = undefined;
}

function describe({ first, masked, gradients, logRatios, advantages }: StripData, index: number): string {
  const name = `token ${(first + index + 1).toLocaleString('en')}`;
  if (masked[index]) return `${name}\nmasked`;
  const logRatio = logRatios?.[index];
  const advantage = typeof advantages === 'number' ? advantages : advantages?.[index];
  return [
    name,
    `gradient ${shown(gradients[index])}`,
    ...(logRatios ? [`ratio ${shown(typeof logRatio === 'number' ? Math.exp(logRatio) : null)}`] : []),
    ...(advantages !== undefined ? [`advantage ${shown(advantage)}`] : []),
  ].join('\n');
}

function tokenOf(target: EventTarget | null): Element | undefined {
  return target instanceof Element && target.parentElement?.dataset.strip !== undefined ? target : undefined;
}

document.addEventListener('pointerover', ({ target }) => {
  const token = tokenOf(target);
  if (token) show(token);
  else hide();
});
addEventListener('scroll', () => selected && place(selected), { passive: true });
document.addEventListener('keydown', (event) => {
  const strip =
    event.target instanceof HTMLElement && event.target.dataset.strip !== undefined && event.target;
  if (!strip) return;
  const last = strip.children.length - 1;
  const at = selected?.parentElement === strip ? [...strip.children].indexOf(selected) : -1;
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
  if (event.key === 'Escape') hide();
  if (to === undefined || last < 0) return;
  event.preventDefault();
  const token = strip.children[Math.max(0, Math.min(to, last))]!;
  token.scrollIntoView({ block: 'nearest' });
  show(token);
});
document.addEventListener('focusout', hide);
