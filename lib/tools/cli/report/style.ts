// The style sheet of a report's page: a light and a dark scheme, a layout for any width of the window, and one for
// paper.
import { LINE_COLOURS } from './lines-figure.js';

/**
 * The page colours tokens by gradient: one colour for negative gradients, one for positive. This is the number of
 * shades that each of the two colours has.
 */
export const SHADES = 8;

// People with colour blindness can distinguish the colours `up` and `down`. In charts, one of the two lines is also
// dashed, so that they can be distinguished in a black-and-white print.
const LIGHT = `
  color-scheme: light;
  --page: #fbfbfa; --text: #1c2228; --soft: #59636e; --line: #dce0e4; --grid: #e9ecee; --panel: #ffffff;
  --up: #0f62ab; --down: #b8450a; --up-cell: 79 163 232; --down-cell: 242 150 74; --bars: #7c8a99; --bars-fill: #7c8a9966;
  --density: #7c8a9940; --masked: #c9ced3; --warning: #8a3500; --warning-panel: #fff3e6; --focus: #0f62ab;
  --line-0: #0f62ab; --line-1: #b8450a; --line-2: #00795c; --line-3: #8a3d8f; --line-4: #8a6200; --line-5: #4f5b66;
  --line-6: #c02b57; --line-7: #007a94;`;
const DARK = `
  color-scheme: dark;
  --page: #14181c; --text: #e4e8eb; --soft: #9ba6b1; --line: #323a42; --grid: #252c33; --panel: #1b2025;
  --up: #6cb4f5; --down: #f5a15d; --up-cell: 27 100 171; --down-cell: 164 80 14; --bars: #93a1b0; --bars-fill: #93a1b055;
  --density: #93a1b038; --masked: #4a535c; --warning: #ffb778; --warning-panel: #33230f; --focus: #6cb4f5;
  --line-0: #6cb4f5; --line-1: #f5a15d; --line-2: #4fc9a4; --line-3: #d59ad9; --line-4: #e0b94a; --line-5: #aeb8c2;
  --line-6: #f58aa9; --line-7: #5fd0e3;`;

const shades = Array.from({ length: SHADES }, (_, i) => {
  const alpha = ((i + 1) / SHADES).toFixed(3);
  return `.u${i + 1} { background: rgb(var(--up-cell) / ${alpha}); } .d${i + 1} { background: rgb(var(--down-cell) / ${alpha}); }`;
}).join('\n');

const lineKeys = Array.from(
  { length: LINE_COLOURS },
  (_, i) => `.key.line-${i}::before { border-color: var(--line-${i}); }`,
).join('\n');

/** The page's style sheet. */
export const STYLE = `
:root {${LIGHT}
}
/* The script in the page sets data-paper while the page is printed. */
@media screen and (prefers-color-scheme: dark) {
  :root:not([data-paper]) {${DARK}
  }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 72rem; padding: 2.5rem clamp(1rem, 4vw, 3rem) 2rem;
  background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Liberation Sans", sans-serif;
}
h1, h2, h3, h4, p, figure, dl, dd { margin: 0; }
h1 { font-size: clamp(1.6rem, 1.2rem + 2vw, 2.25rem); line-height: 1.2; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.35rem; line-height: 1.3; margin-bottom: 0.75rem; }
h3 { font-size: 1.0625rem; line-height: 1.35; }
h3 > code { font-weight: 600; }
h4 { font-size: 0.9375rem; line-height: 1.35; }
p { max-width: 46rem; }
code { font: 0.9375em ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
a { color: var(--up); text-underline-offset: 0.15em; }
:focus-visible { outline: 2px solid var(--focus); outline-offset: 2px; }
.eyebrow { color: var(--soft); font-size: 0.875rem; margin-bottom: 0.25rem; }
.lead { font-size: 1.0625rem; margin-top: 0.5rem; }
.of, .note, .hint, footer, .block-name, dt { color: var(--soft); }
.of { font-weight: 400; }
/* A line break in a title is allowed only before an option. */
.of code, h3 > code { display: inline-block; max-width: 100%; }
.note, .readout { font-size: 0.875rem; }
.warning { background: var(--warning-panel); color: var(--warning); padding: 0.5rem 0.75rem; border-radius: 0.375rem; margin-bottom: 0.75rem; max-width: none; }
nav ul { display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; list-style: none; margin: 1rem 0 0; padding: 0; }
main > section { margin-top: 2.5rem; padding-top: 2rem; border-top: 1px solid var(--line); }
.subject { margin-top: 1.75rem; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: 0.875rem; }

/* The shadows at the edges and the bar show that a table continues; systems may hide their own bars. */
.scroll {
  overflow-x: auto; max-width: 100%; scrollbar-width: thin; scrollbar-color: var(--soft) var(--grid);
  background:
    linear-gradient(to left, var(--page) 30%, transparent) right / 2.5rem 100% no-repeat local,
    linear-gradient(to left, rgb(0 0 0 / 0.25), transparent) right / 0.9rem 100% no-repeat scroll;
}
@supports selector(::-webkit-scrollbar) {
  .scroll { scrollbar-width: auto; scrollbar-color: auto; }
  .scroll::-webkit-scrollbar { height: 0.6rem; }
  .scroll::-webkit-scrollbar-track { background: var(--grid); border-radius: 0.3rem; }
  .scroll::-webkit-scrollbar-thumb { background: var(--soft); border-radius: 0.3rem; }
}
table { border-collapse: collapse; font-size: 0.9375rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0 0.3rem 1.5rem; text-align: right; vertical-align: bottom; }
td { white-space: nowrap; }
tr > :first-child { position: sticky; left: 0; background: var(--page); padding: 0.3rem 0.5rem 0.3rem 0; text-align: left; }
th { font-weight: 400; }
thead th { color: var(--soft); border-bottom: 1px solid var(--line); line-height: 1.3; }
thead td { border-bottom: 1px solid var(--line); }
tbody .of code { display: block; width: max-content; max-width: min(16rem, 40vw); }
thead code { display: block; width: max-content; max-width: 16rem; margin-left: auto; text-align: right; }
tbody th { min-width: 7.5rem; }
tbody code { overflow-wrap: break-word; }
@media (min-width: 48rem) { tbody th { white-space: nowrap; } tbody wbr { display: none; } }
tbody tr + tr > *, tbody + tbody > tr:first-child > * { border-top: 1px solid var(--grid); }
tbody.main td, tbody.main th { font-weight: 600; }
details { margin-top: 1rem; }
summary { cursor: pointer; color: var(--up); width: fit-content; }
details[open] > summary { margin-bottom: 0.5rem; }

.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); gap: 2rem 2.5rem; }
.figures.two { grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); margin-top: 0.75rem; }
figure { min-width: 0; break-inside: avoid; }
figcaption { margin-bottom: 0.25rem; }
.y-title { font-size: 0.75rem; color: var(--soft); }
.plot { height: 14rem; position: relative; }
.readout { margin-top: 0.125rem; color: var(--soft); font-variant-numeric: tabular-nums; }
@media (max-width: 40rem) { .legend { min-height: 3em; } }
.legend { display: flex; flex-wrap: wrap; gap: 0 1rem; align-content: flex-start; }
.legend output { color: var(--text); }
.key output:not(:empty)::before { content: ": "; }
.key::before { content: ""; display: inline-block; width: 1.5rem; margin-right: 0.4rem; vertical-align: 0.25em; border-top: 2px solid; }
.key.up::before { border-color: var(--up); }
.key.down::before { border-color: var(--down); }
.key.dash-1::before { border-top-style: dashed; }
.key.dash-2::before { border-top-style: dotted; }
${lineKeys}
.key.density::before { border: 0; height: 0.75em; vertical-align: -0.05em; background: var(--density); }
.u-select { background: var(--density); }
.u-hz .u-cursor-x { border-right: 1px solid var(--soft); }

.scale { display: flex; flex-wrap: wrap; align-items: center; gap: 0.25rem 0.6rem; margin-top: 0.5rem; font-size: 0.875rem; max-width: none; font-variant-numeric: tabular-nums; }
.shades { display: inline-flex; border: 1px solid var(--line); }
.shades i { width: clamp(0.4rem, 1.8vw, 0.75rem); height: 1rem; }
/* A finding's severity stands in words too, so its colour is not needed to understand it. */
.finding h3 { display: flex; flex-wrap: wrap; gap: 0.25rem 0.6rem; align-items: baseline; }
.finding p, .marks { margin-top: 0.4rem; font-size: 0.9375rem; }
.severity { padding: 0 0.5rem; border: 1px solid; border-radius: 0.75rem; color: var(--soft); font-size: 0.8125rem; font-weight: 400; }
.severity.warning, .severity.error { background: var(--warning-panel); color: var(--warning); margin: 0; }
.severity.error { font-weight: 700; }
.places { overflow-wrap: anywhere; }
:target { outline: 2px solid var(--focus); outline-offset: 2px; }
.up { color: var(--up); } .down { color: var(--down); }
.rollout, .finding { margin-top: 1rem; padding: 1rem clamp(0.75rem, 2vw, 1.25rem); background: var(--panel); border: 1px solid var(--line); border-radius: 0.5rem; }
.rollout h4 { overflow-wrap: anywhere; }
dl { display: flex; flex-wrap: wrap; gap: 0.1rem 1.5rem; margin-top: 0.25rem; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
dl > div { display: flex; gap: 0.4rem; }
.block { margin-top: 0.75rem; }
.block-name { font-size: 0.8125rem; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; max-width: none; line-height: 1.65; }
.text.strip { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", "DejaVu Sans Mono", monospace; font-size: 0.9375rem; }
.prompt { color: var(--soft); }
.strip i { font-style: normal; }
.text.strip i { padding: 0.15em 0; -webkit-box-decoration-break: clone; box-decoration-break: clone; }
/* A border shows where each token ends. */
.words i { border-right: 1px solid var(--panel); }
.cells { display: flex; flex-wrap: wrap; gap: 1px; padding: 0.25rem 0; }
.cells i { width: 0.875rem; height: 1.125rem; }
.cells .z { background: var(--grid); }
[class^="u"]:is(i) { box-shadow: inset 0 2px var(--up); }
[class^="d"]:is(i) { box-shadow: inset 0 -2px var(--down); }
.m { color: var(--soft); background: repeating-linear-gradient(135deg, var(--masked) 0 1px, transparent 1px 4px); }
.x { background: var(--warning); color: var(--panel); }
.peak, .at { outline: 2px solid var(--text); outline-offset: -1px; border-radius: 2px; }
.at { outline-color: var(--focus); }
#tip {
  position: fixed; z-index: 1; max-width: 18rem; padding: 0.4rem 0.6rem; pointer-events: none; white-space: pre-line;
  background: var(--text); color: var(--page); border-radius: 0.375rem; font-size: 0.8125rem; line-height: 1.4; font-variant-numeric: tabular-nums;
}
#tip[hidden] { display: none; }
${shades}

@media (hover: none) { .hint { display: none; } }
@media print {
  @page { margin: 15mm; }
  :root { font-size: 81.25%; }
  body { max-width: none; padding: 0; background: none; }
  tr > :first-child { background: none; }
  nav, .hint, #tip, details:not([open]) { display: none; }
  .strip i, .shades i, .key::before, .m { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  .figures, .figures.two { grid-template-columns: 1fr 1fr; gap: 1rem 1.5rem; }
  .scroll { overflow: visible; background: none; }
  .peak { outline-width: 1.5px; }
  main > section { margin-top: 1.25rem; padding-top: 1rem; }
  h2, h3, h4 { break-after: avoid; }
  .rollout, .finding { break-inside: avoid; }
}
`;
