// Formats numbers with three significant digits, for the HTML of a report and for the script in its page. The compiled
// form of this module is inserted into the page, so it must not import anything.

/** Formats a number with 3 significant digits. */
export function short(x: number): string {
  const size = Math.abs(x);
  if (!Number.isFinite(x) || x === 0) return withMinus(String(x));
  return withMinus(
    size < 1e-3 || size >= 1e6 ? x.toExponential(2).replace('e+', 'e') : String(Number(x.toPrecision(3))),
  );
}

/** Replaces hyphens with minus signs. */
export function withMinus(text: string): string {
  return text.replaceAll('-', '−');
}
