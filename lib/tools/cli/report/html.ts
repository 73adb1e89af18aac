// A template tag that makes HTML. It escapes every value that is inserted, except values that are HTML themselves.

/** HTML that is safe to insert into a page. */
export class Html {
  readonly text: string;

  private constructor(text: string) {
    this.text = text;
  }

  /**
   * Returns a template with the given values inserted. Values are escaped unless they are Html. `undefined` and `false`
   * insert nothing.
   */
  static template(strings: TemplateStringsArray, ...values: readonly HtmlValue[]): Html {
    return new Html(strings.reduce((text, part, i) => text + rendered(values[i - 1]) + part));
  }

  /**
   * Returns a script or a style sheet as HTML that can be inserted into a script or style element. The text is not
   * escaped, so it must come from this package or its dependencies.
   * @throws Error if the text contains a tag that would end its element.
   */
  static asset(text: string): Html {
    if (/<\/(script|style)|<!--/i.test(text))
      throw new Error('the asset contains a tag that would end its element');
    return new Html(text);
  }

  /** Returns a value as JSON that can be inserted into a script element of type application/json. */
  static json(value: unknown): Html {
    return new Html(JSON.stringify(value).replaceAll('<', '\\u003c'));
  }
}

/** A value that can be inserted into a template. */
export type HtmlValue = string | number | Html | readonly Html[] | undefined | false;

/**
 * Makes HTML from a template, such as html`<p title="${text}">${text}</p>`. The values of attributes must be in quotes.
 */
export const html = Html.template;

function rendered(value: HtmlValue): string {
  if (value === undefined || value === false) return '';
  if (value instanceof Html) return value.text;
  if (typeof value === 'object') return value.map(({ text }) => text).join('');
  return escaped(String(value));
}

function escaped(text: string): string {
  return visible(text).replace(/[&<>"']/g, (character) => ENTITIES[character]!);
}

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

/**
 * Replaces characters that would be invisible or misleading. An ASCII control character becomes the Unicode symbol that
 * depicts it, such as ␀. Other control characters, Unicode's line separators, lone surrogates, and characters that
 * change the direction of text become U+FFFD.
 */
function visible(text: string): string {
  return text.replace(HIDDEN, (character) => {
    const code = character.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? '\u2421' : '\ufffd';
  });
}

const HIDDEN =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the function replaces control characters.
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]|\p{Surrogate}/gu;
