/** Runs the command-line program in this process and captures its output. */

/** The exit code and the output of one run of the program. */
export interface Run {
  code: number | null;
  stdout: string;
  stderr: string;
}

/**
 * Captures what `program` writes to stdout and stderr. The streams are no terminals meanwhile.
 * @param width the number of characters in a line of the streams; unknown by default.
 */
export async function captured(program: () => Promise<number>, width?: number): Promise<Run> {
  const result: Run = { code: null, stdout: '', stderr: '' };
  const streams = (['stdout', 'stderr'] as const).map((name) => {
    const stream = process[name];
    const { write, isTTY, columns, fd } = stream;
    const capture = (text: string, done?: () => void) => {
      result[name] += text;
      done?.();
      return true;
    };
    // Without a file descriptor, the program cannot bypass write().
    Object.assign(stream, { write: capture, isTTY: false, columns: width, fd: undefined });
    return { stream, original: { write, isTTY, columns, fd } };
  });
  try {
    result.code = await program();
  } finally {
    for (const { stream, original } of streams) Object.assign(stream, original);
  }
  return result;
}
