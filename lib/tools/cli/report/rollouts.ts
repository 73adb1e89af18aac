// The page's section of rollouts with extreme tokens. It shows their texts, and their tokens coloured by gradient.
import { describePlace } from '../../rollouts/index.js';
import type { Excerpt, ExtremeRow } from './extremes.js';
import { marksOf, type ReportFindings } from './findings.js';
import { type Html, html } from './html.js';
import { titleOf } from './metrics.js';
import { count, counted, rounded } from './numbers.js';
import type { PageData, StripData } from './page-data.js';
import { short } from './short-number.js';
import type { Sketch } from './sketch.js';
import type { DataStatistics, ReportSubject } from './statistics.js';
import { SHADES } from './style.js';

/**
 * Returns the section. For each loss and algorithm (subject), it lists the rollouts with the largest gradients. A
 * further list has the rollouts with the ratios farthest from 1. Adds the numbers of the tokens to `data`, and links
 * each rollout to the findings about it, if there are any.
 */
export function rolloutsSection(
  subjects: readonly ReportSubject[],
  statistics: DataStatistics,
  data: PageData,
  findings: ReportFindings,
): Html {
  const several = subjects.length > 1;
  const [{ variable = 'logprob' } = {}] = subjects;
  const pushed = variable === 'values' ? 'value' : 'probability';
  const painter = new Painter(subjects, statistics, data);
  const lists = statistics.subjects.map(
    ({ extremes }, i) => html`<section class="subject" aria-labelledby="gradients-${i}">
<h3 id="gradients-${i}">Largest token gradient${several && html` <span class="of">${titleOf(subjects[i]!.title)}</span>`}</h3>
${
  extremes.rows.length === 0
    ? html`<p class="note">All gradients are 0.</p>`
    : html`${painter.legend(i, false)}
${extremes.rows.map((row) => rollout(row, 'gradient', painter, findings))}`
}
</section>
`,
  );
  return html`<section id="rollouts" aria-labelledby="rollouts-title">
<h2 id="rollouts-title">Rollouts that stand out</h2>
<p>Colours show ∂loss/∂${variable}. A negative gradient pushes a token’s ${pushed} up; a positive one pushes it down.${
    painter.characterwise &&
    html` Every response has one character per token, so each character is shown as one token.`
  } <span class="hint">Point at a token, or use the arrow keys, to see its numbers.</span></p>
${lists}${
  statistics.logRatios &&
  html`<section class="subject" aria-labelledby="ratios">
<h3 id="ratios">Token ratio farthest from 1</h3>
${
  statistics.extremes.rows.length === 0
    ? html`<p class="note">All ratios are 1.</p>`
    : html`${subjects.map((_, i) => painter.legend(i, several))}
${statistics.extremes.rows.map((row) => rollout(row, 'ratio', painter, findings))}`
}
</section>
`
}</section>`;
}

function rollout(
  row: ExtremeRow,
  by: 'gradient' | 'ratio',
  painter: Painter,
  findings: ReportFindings,
): Html {
  const { place, index, length, reward, prompt, response, tokens } = row;
  const peak = row.peak - tokens.first;
  const { grad, advantages } = tokens.gradients[0]!;
  const ratio = tokens.logRatios && Math.exp(tokens.logRatios[peak]!);
  const numbered = (x: number) => html`${short(x)} <span class="of">at token ${count(row.peak + 1)}</span>`;
  const entries: (readonly [name: string, value: Html] | undefined)[] = [
    by === 'gradient'
      ? ['largest gradient', numbered(grad[peak]!)]
      : ['ratio farthest from 1', numbered(ratio!)],
    by === 'gradient' && ratio !== undefined ? ['token’s ratio', html`${short(ratio)}`] : undefined,
    advantages && tokens.gradients.length === 1
      ? ['token’s advantage', html`${short(advantages[peak]!)}`]
      : undefined,
    reward === undefined ? undefined : ['reward', html`${short(reward)}`],
    ['tokens', html`${count(length)}`],
  ];
  const texts = painter.textsOf(row);
  return html`<article class="rollout"${findings.anchor(index)}>
<h4><bdi>${place ? describePlace(place) : `row ${index + 1}`}</bdi></h4>
<dl>${entries.map((entry) => html`${entry && html`<div><dt>${entry[0]}</dt><dd>${entry[1]}</dd></div>`}`)}</dl>${marksOf(findings, index)}
${prompt && block('Prompt', prompt)}${response && !texts && block('Response', response)}${tokens.gradients.map(
  ({ subject }, i) => painter.strip(row, i, subject, texts),
)}</article>
`;
}

/** Returns a prompt or response that is shown as a plain text, without its tokens. */
function block(name: 'Prompt' | 'Response', { text, omitted }: Excerpt): Html {
  return html`<div class="block"><p class="block-name">${name}</p><div class="text${name === 'Prompt' && ' prompt'}" dir="auto">${text}</div>${
    omitted > 0 && html`<p class="note">… and ${counted(omitted, 'more character')}</p>`
  }</div>
`;
}

/** Renders the tokens of rollouts, coloured by gradient, and the legends of the colours. */
class Painter {
  readonly characterwise: boolean;
  readonly #titles: readonly string[];
  readonly #scales: readonly number[];
  readonly #data: PageData;

  constructor(subjects: readonly ReportSubject[], statistics: DataStatistics, data: PageData) {
    // Characters are shown as tokens only if a row has no texts for its tokens.
    const all = [statistics.extremes, ...statistics.subjects.map(({ extremes }) => extremes)];
    this.characterwise =
      statistics.characterwise && all.some(({ rows }) => rows.some(({ tokens }) => !tokens.texts));
    this.#titles = subjects.map(({ title }) => title);
    this.#scales = statistics.subjects.map(({ gradients }) => scaleOf(gradients));
    this.#data = data;
  }

  /** Returns the texts of the tokens that are kept of a row, if they are known. */
  textsOf({ tokens }: ExtremeRow): readonly string[] | undefined {
    return tokens.texts ?? (this.characterwise ? tokens.characters : undefined);
  }

  /**
   * Returns the legend of the colours that show the gradients of a loss or algorithm.
   * @param subject the index of the loss or algorithm.
   * @param named whether the legend includes the title of the loss or algorithm.
   */
  legend(subject: number, named: boolean): Html {
    const shades = Array.from({ length: SHADES }, (_, i) => i + 1);
    const scale = short(this.#scales[subject]!);
    return html`<p class="scale">${named && html`<span class="scale-name">${titleOf(this.#titles[subject]!)}</span> `}<span class="scale-end">≤ −${scale}</span> <span class="shades" role="img" aria-label="shades from pushed up to pushed down">${shades
      .toReversed()
      .map(
        (shade) => html`<i class="u${shade}"></i>`,
      )}<i class="z"></i>${shades.map((shade) => html`<i class="d${shade}"></i>`)}</span> <span class="scale-end">≥ ${scale}</span> <span class="scale-words"><span class="up">pushed up</span> · <span class="down">pushed down</span></span></p>
`;
  }

  /**
   * Returns the tokens of a row, coloured by the gradient of a loss or algorithm (subject). Adds the numbers of the
   * tokens to the page's data.
   * @param position the index of the subject in `row.tokens.gradients`.
   * @param subject the index of the subject among all losses and algorithms.
   * @param texts the text of each token; undefined if the texts are not known.
   */
  strip(row: ExtremeRow, position: number, subject: number, texts: readonly string[] | undefined): Html {
    const { first, mask, logRatios, gradients } = row.tokens;
    const { grad, advantages } = gradients[position]!;
    const scale = this.#scales[subject]!;
    const strip: StripData = {
      first,
      masked: [...mask].map((m) => m === 0),
      gradients: listOf(grad),
      ...(logRatios && { logRatios: listOf(logRatios) }),
      ...(advantages && { advantages: constantOr(advantages, mask) }),
    };
    const number = this.#data.strips.push(strip) - 1;
    const tokens = [...grad].map((g, i) => {
      const shade = mask[i] === 0 ? 'm' : shadeOf(g, scale);
      const classes = i === row.peak - first ? `${shade} peak` : shade;
      return html`<i class="${classes}">${texts && withLineEnds(texts[i]!)}</i>`;
    });
    const kind = row.tokens.texts ? 'text words' : texts ? 'text' : 'cells';
    const later = row.length - first - grad.length;
    const name = this.#titles.length > 1 && gradients.length > 1 ? this.#titles[subject]! : undefined;
    return html`<div class="block"><p class="block-name">${texts ? 'Response' : 'Tokens'}${name !== undefined && html` <span class="of">${titleOf(name)}</span>`}</p>${
      first > 0 && html`<p class="note">${counted(first, 'earlier token')} …</p>`
    }<div class="strip ${kind}" dir="auto" data-strip="${number}" tabindex="0" role="group" aria-label="${counted(grad.length, 'token')} coloured by gradient; token ${row.peak + 1} is the extreme one. Arrow keys move between tokens.">${tokens}</div>${
      later > 0 && html`<p class="note">… and ${counted(later, 'more token')}</p>`
    }</div>
`;
  }
}

/**
 * Returns the absolute gradient that gets the darkest shade. At most 0.1% of the tokens have a larger positive
 * gradient, and at most 0.1% a negative gradient that is larger in absolute value.
 */
function scaleOf(gradients: Sketch): number {
  if (gradients.count === 0) return 0;
  const within = (q: number) => Math.max(-gradients.quantile(q), gradients.quantile(1 - q));
  return within(0.001) || within(0);
}

function shadeOf(gradient: number, scale: number): string {
  if (!Number.isFinite(gradient)) return 'x';
  if (gradient === 0) return 'z';
  const shade = Math.min(Math.ceil((Math.abs(gradient) / scale) * SHADES), SHADES);
  return `${gradient < 0 ? 'u' : 'd'}${shade}`;
}

// Shows a sign at each line break. Otherwise the colour of a token that is only a line break would not be visible.
function withLineEnds(text: string): string {
  return text.replaceAll('\n', '↵\n');
}

const DIGITS = 4;

function listOf(values: Float32Array): (number | null)[] {
  return Array.from(values, (x) => rounded(x, DIGITS));
}

/** Returns a single number if all unmasked values are equal and finite, and the list of values otherwise. */
function constantOr(values: Float32Array, mask: Uint8Array): (number | null)[] | number {
  const unmasked = values.filter((_, i) => mask[i] !== 0);
  const [first] = unmasked;
  const constant = first !== undefined && Number.isFinite(first) && unmasked.every((x) => x === first);
  return constant ? rounded(first, DIGITS)! : listOf(values);
}
