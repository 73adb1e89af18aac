// The characters that have a meaning in text formats, as bytes of UTF-8.

export const TAB = 0x09;
export const NEWLINE = 0x0a;
export const RETURN = 0x0d;
export const SPACE = 0x20;
export const QUOTE = 0x22;
export const COMMA = 0x2c;
export const COLON = 0x3a;
export const OPEN_BRACKET = 0x5b;
export const BACKSLASH = 0x5c;
export const CLOSE_BRACKET = 0x5d;
export const OPEN_BRACE = 0x7b;
export const CLOSE_BRACE = 0x7d;

/** Returns whether a byte is a space, a tab or part of a line end. */
export function isBlank(byte: number | undefined): boolean {
  return byte === SPACE || byte === TAB || byte === NEWLINE || byte === RETURN;
}
