// The data that a report's HTML hands to the program in the page, as JSON. Numbers that are not finite become null.

/** The page's data. */
export interface PageData {
  /** Indexed by the `data-chart` attribute of the element to draw in. */
  charts: ChartData[];
  /** Indexed by the `data-strip` attribute of the element that holds the tokens. */
  strips: StripData[];
}

export type ChartData = HistogramData | CurvesData;

/** Bins of equal width; the first begins at `low`. */
export interface BinsData {
  low: number;
  width: number;
  counts: number[];
}

/** A histogram. */
export interface HistogramData {
  kind: 'histogram';
  bins: BinsData;
  /** The kind of values: 'ratio' means that the bins hold logarithms of ratios. */
  x: 'ratio' | 'number';
  label: string;
  /** The noun for what is counted, such as 'token'. */
  unit: string;
  /** The number of values, including those outside the bins. */
  total: number;
}

/** Two lines over the ratio: one for advantage 1, one for advantage −1. */
export interface CurvesData {
  kind: 'curves';
  /** The quantity that the lines show. */
  y: 'loss' | 'gradient';
  label: string;
  logRatios: number[];
  positive: (number | null)[];
  negative: (number | null)[];
  /** Distribution of ln(ratio) in the rollouts. */
  density?: BinsData;
}

/** A row's tokens, for the tooltips. */
export interface StripData {
  /** Index of the first shown token in its row. */
  first: number;
  masked: boolean[];
  gradients: (number | null)[];
  logRatios?: (number | null)[];
  /** A single number applies to every token. */
  advantages?: (number | null)[] | number;
}
