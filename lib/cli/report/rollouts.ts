// The rollouts that stand out: their text, and their tokens coloured by gradient.
import { describePlace } from '../../rollouts/source.js';
import type { Excerpt, ExtremeRow } from './extremes.js';
import type { DataFacts, ReportSubject } from './facts.js';
import { type Html, html } from './html.js';
import { titleOf } from './metrics.js';
import { count, counted, rounded, short } from './numbers.js';
import type { PageData, StripData } from './page-data.js';
import type { Sketch } from './sketch.js';
import { SHADES } from './style.js';

/** A list for each subject's gradients, and one for the ratios. */
export function rolloutsSection(subjects: readonly ReportSubject[], facts: DataFacts, data: PageData): Html {
  const several = subjects.length > 1;
  const painter = new Painter(subjects, facts, data);
  const lists = facts.subjects.map(
    ({ extremes }, i) => html`<section class="subject" aria-labelledby="gradients-${i}">
<h3 id="gradients-${i}">Largest gradient of a token${several && html` <span class="of">${titleOf(subjects[i]!.title)}</span>`}</h3>
${
  extremes.rows.length === 0
    ? html`<p class="note">All gradients are 0.</p>`
    : html`${painter.legend(i, false)}
${extremes.rows.map((row) => rollout(row, 'gradient', painter))}`
}
</section>
`,
  );
  return html`<section id="rollouts" aria-labelledby="rollouts-title">
<h2 id="rollouts-title">Rollouts that stand out</h2>
<p>Tokens are coloured by ∂loss/∂logprob. A step against the gradient pushes the probability of tokens up where it is negative, and down where it is positive.${
    painter.characterwise &&
    html` Every rollout has as many tokens as its response has characters, so each character is shown as one token.`
  } <span class="hint">Point at a token for its numbers, or go through them with the arrow keys.</span></p>
${lists}${
  facts.logRatios &&
  html`<section class="subject" aria-labelledby="ratios">
<h3 id="ratios">Ratio of a token farthest from 1</h3>
${
  facts.extremes.rows.length === 0
    ? html`<p class="note">All ratios are 1.</p>`
    : html`${subjects.map((_, i) => painter.legend(i, several))}
${facts.extremes.rows.map((row) => rollout(row, 'ratio', painter))}`
}
</section>
`
}</section>`;
}

function rollout(row: ExtremeRow, by: 'gradient' | 'ratio', painter: Painter): Html {
  const { place, index, length, reward, prompt, response, tokens } = row;
  const peak = row.peak - tokens.first;
  const { grad, advantages } = tokens.gradients[0]!;
  const ratio = tokens.logRatios && Math.exp(tokens.logRatios[peak]!);
  const numbered = (x: number) => html`${short(x)} <span class="of">at token ${count(row.peak + 1)}</span>`;
  const facts: (readonly [name: string, value: Html] | undefined)[] = [
    by === 'gradient'
      ? ['largest gradient', numbered(grad[peak]!)]
      : ['ratio farthest from 1', numbered(ratio!)],
    by === 'gradient' && ratio !== undefined ? ['its ratio', html`${short(ratio)}`] : undefined,
    advantages && tokens.gradients.length === 1
      ? ['its advantage', html`${short(advantages[peak]!)}`]
      : undefined,
    reward === undefined ? undefined : ['reward', html`${short(reward)}`],
    ['tokens', html`${count(length)}`],
  ];
  const texts = painter.textsOf(row);
  return html`<article class="rollout">
<h4><bdi>${place ? describePlace(place) : `row ${index + 1}`}</bdi></h4>
<dl>${facts.map((fact) => html`${fact && html`<div><dt>${fact[0]}</dt><dd>${fact[1]}</dd></div>`}`)}</dl>
${prompt && block('Prompt', prompt)}${response && !texts && block('Response', response)}${tokens.gradients.map(
  ({ subject }, i) => painter.strip(row, i, subject, texts),
)}</article>
`;
}

/** @param what 'Prompt' or 'Response'. */
function block(what: string, { text, left }: Excerpt): Html {
  return html`<div class="block"><p class="block-name">${what}</p><div class="text${what === 'Prompt' && ' prompt'}" dir="auto">${text}</div>${
    left > 0 && html`<p class="note">… and ${counted(left, 'more character')}</p>`
  }</div>
`;
}

/** Paints tokens. */
class Painter {
  readonly characterwise: boolean;
  readonly #titles: readonly string[];
  readonly #scales: readonly number[];
  readonly #data: PageData;

  constructor(subjects: readonly ReportSubject[], facts: DataFacts, data: PageData) {
    // Tokens' own texts come first.
    const all = [facts.extremes, ...facts.subjects.map(({ extremes }) => extremes)];
    this.characterwise =
      facts.characterwise && all.some(({ rows }) => rows.some(({ tokens }) => !tokens.texts));
    this.#titles = subjects.map(({ title }) => title);
    this.#scales = facts.subjects.map(({ gradients }) => scaleOf(gradients));
    this.#data = data;
  }

  /** The texts of a row's tokens, where they are known. */
  textsOf({ tokens }: ExtremeRow): readonly string[] | undefined {
    return tokens.texts ?? (this.characterwise ? tokens.characters : undefined);
  }

  /** What the colours mean for a subject. */
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

  /** A row's tokens, coloured by a subject's gradient. @param at which of the row's gradients that is. */
  strip(row: ExtremeRow, at: number, subject: number, texts: readonly string[] | undefined): Html {
    const { first, mask, logRatios, gradients } = row.tokens;
    const { grad, advantages } = gradients[at]!;
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
      return html`<i class="${classes}">${texts && markedUp(texts[i]!)}</i>`;
    });
    const kind = row.tokens.texts ? 'text words' : texts ? 'text' : 'cells';
    const after = row.length - first - grad.length;
    const name = this.#titles.length > 1 && gradients.length > 1 ? this.#titles[subject]! : undefined;
    return html`<div class="block"><p class="block-name">${texts ? 'Response' : 'Tokens'}${name !== undefined && html` <span class="of">${titleOf(name)}</span>`}</p>${
      first > 0 && html`<p class="note">${counted(first, 'token')} before …</p>`
    }<div class="strip ${kind}" dir="auto" data-strip="${number}" tabindex="0" role="group" aria-label="${counted(grad.length, 'token')} coloured by gradient, largest at token ${row.peak + 1}; arrow keys go through them">${tokens}</div>${
      after > 0 && html`<p class="note">… and ${counted(after, 'more token')}</p>`
    }</div>
`;
  }
}

/** The gradient of the darkest shade: what all but a thousandth of either sign stay under. */
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

// A line's end is shown, as it is a token's colour that is to be seen.
function markedUp(text: string): string {
  return text.replaceAll('\n', '↵\n');
}

const DIGITS = 4;

function listOf(values: Float32Array): (number | null)[] {
  return Array.from(values, (x) => rounded(x, DIGITS));
}

/** One number where all that count are equal. */
function constantOr(values: Float32Array, mask: Uint8Array): (number | null)[] | number {
  const counting = values.filter((_, i) => mask[i] !== 0);
  const [first] = counting;
  const constant = first !== undefined && Number.isFinite(first) && counting.every((x) => x === first);
  return constant ? rounded(first, DIGITS)! : listOf(values);
}
