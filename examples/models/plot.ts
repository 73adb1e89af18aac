/** Draws a curve of numbers from 0 to 1 as text, one column per number. */
export function plot(curve: readonly number[], height = 10): string {
  const line = (level: number) => {
    const dots = curve.map((value) => (Math.round(value * height) === level ? '•' : ' ')).join('');
    return `${(level / height).toFixed(1)} │${dots}`.trimEnd();
  };
  const lines = Array.from({ length: height + 1 }, (_, i) => line(height - i));
  return [...lines, `    └${'─'.repeat(curve.length)}`].join('\n');
}
