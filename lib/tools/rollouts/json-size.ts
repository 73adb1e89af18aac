// Measures JSON before it is parsed, because parsing creates all of its values at once.
import { BACKSLASH, CLOSE_BRACE, CLOSE_BRACKET, COMMA, OPEN_BRACE, OPEN_BRACKET, QUOTE } from './ascii.js';

/**
 * Returns the number of elements in all lists and objects of JSON, and how deeply these are nested. The elements are the
 * commas and opening brackets outside of strings. An empty list counts as one element.
 */
export function sizeOfJson(json: Uint8Array): { elements: number; depth: number } {
  let elements = 0;
  let level = 0;
  let depth = 0;
  for (let i = 0; i < json.length; i++) {
    const byte = json[i];
    if (byte === QUOTE)
      for (i++; i < json.length && json[i] !== QUOTE; i++) i += json[i] === BACKSLASH ? 1 : 0;
    else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) {
      elements++;
      level++;
      if (level > depth) depth = level;
    } else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) level--;
    else if (byte === COMMA) elements++;
  }
  return { elements, depth };
}
