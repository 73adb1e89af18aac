// What a report's page gives to the program in it, as JSON. Numbers that are not finite are null.

/** All of it. */
export interface PageData {
  /** By the number in the `data-chart` of the element that it is drawn in. */
  charts: ChartData[];
  /** By the number in the `data-strip` of the element that holds the tokens. */
  strips: StripData[];
}

export type ChartData = HistogramData | CurvesData;

/** Bins of equal width. */
export interface BinsData {
  low: number;
  width: number;
  counts: number[];
}

/** A histogram. */
export interface HistogramData {
  kind: 'histogram';
  bins: BinsData;
  /** What the values are. Those of 'ratio' are logarithms of it. */
  x: 'ratio' | 'number';
  label: string;
  /** What is counted, as in '13 tokens'. */
  unit: string;
  /** How many there are in all. */
  total: number;
}

/** Two lines over the ratio, of advantage 1 and −1. */
export interface CurvesData {
  kind: 'curves';
  /** What the lines are of. */
  y: 'loss' | 'gradient';
  label: string;
  logRatios: number[];
  positive: (number | null)[];
  negative: (number | null)[];
  /** How the logarithms of the data's ratios are distributed. */
  density?: BinsData;
}

/** Tokens, for the tooltips. */
export interface StripData {
  /** The index of the first in its row. */
  first: number;
  masked: boolean[];
  gradients: (number | null)[];
  logRatios?: (number | null)[];
  /** One number is all tokens'. */
  advantages?: (number | null)[] | number;
}
