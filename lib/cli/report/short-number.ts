// Numbers with three significant digits, for the HTML and for the program in the page. The page inlines the compiled
// form of this module, so it must not import anything.

/** Returns a number with 3 significant digits. */
export function short(x: number): string {
  const size = Math.abs(x);
  if (!Number.isFinite(x) || x === 0) return withMinus(String(x));
  return withMinus(
    size < 1e-3 || size >= 1e6 ? x.toExponential(2).replace('e+', 'e') : String(Number(x.toPrecision(3))),
  );
}

/** Replaces hyphens by minus signs. */
export function withMinus(text: string): string {
  return text.replaceAll('-', '−');
}
