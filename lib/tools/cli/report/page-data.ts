// The types of the data that a report's page contains as JSON, for the script in the page. Numbers that are not finite
// are null.

/** All data in the page. */
export interface PageData {
  /** The data of each chart. An element with the attribute `data-chart="2"` shows the chart with the index 2. */
  charts: ChartData[];
  /**
   * The data of each row of tokens. An element with the attribute `data-strip="2"` holds the tokens with the index 2.
   */
  strips: StripData[];
}

export type ChartData = HistogramData | LinesData;

/** The counts of values in bins of equal width. The first bin begins at `low`. */
export interface BinsData {
  low: number;
  width: number;
  counts: number[];
}

/** The data of a histogram. */
export interface HistogramData {
  kind: 'histogram';
  bins: BinsData;
  /**
   * What the horizontal axis shows. With 'ratio', the bins divide the natural logarithms of ratios, and the axis shows
   * the ratios.
   */
  x: 'ratio' | 'number';
  label: string;
  /** The noun for what is counted, such as 'token'. */
  unit: string;
  /** The number of values, including those outside the bins. */
  total: number;
}

/** The data of a chart of lines. */
export interface LinesData {
  kind: 'lines';
  /**
   * What the horizontal axis shows. With 'ratio', `xs` are the natural logarithms of the ratios that it shows; with 'name',
   * they are indices of `names`.
   */
  x: 'ratio' | 'number' | 'name';
  label: string;
  xs: number[];
  names?: string[];
  lines: LineData[];
  /** The distribution of ln(ratio) in the rollouts; absent if they have no old log-probabilities. */
  density?: BinsData;
}

/** A line of a chart. */
export interface LineData {
  /** The name of its colour in the style sheet. */
  colour: string;
  values: (number | null)[];
}

/** The numbers of the tokens in a row, which the tooltips show. */
export interface StripData {
  /** The index, within the row, of the first token that the page shows. */
  first: number;
  masked: boolean[];
  gradients: (number | null)[];
  logRatios?: (number | null)[];
  /** The advantage of each token, or a single number if all unmasked tokens have the same advantage. */
  advantages?: (number | null)[] | number;
}
