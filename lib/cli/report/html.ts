// HTML in which text stays text: whatever is put into a template is escaped, unless it is HTML that was made here.

/** HTML that may stand in a page. */
export class Html {
  readonly text: string;

  private constructor(text: string) {
    this.text = text;
  }

  /** A template's HTML, with the values in it escaped. Absent values, and false, are nothing. */
  static template(strings: TemplateStringsArray, ...values: readonly HtmlValue[]): Html {
    return new Html(strings.reduce((text, part, i) => text + rendered(values[i - 1]) + part));
  }

  /** A program or a style sheet of this package's own, as the content of its element. */
  static asset(text: string): Html {
    if (/<\/(script|style)|<!--/i.test(text)) throw new Error('an asset would end its element');
    return new Html(text);
  }

  /** A value as the content of a script element of type application/json. */
  static json(value: unknown): Html {
    return new Html(JSON.stringify(value).replaceAll('<', '\\u003c'));
  }
}

/** What may be put into a template. */
export type HtmlValue = string | number | Html | readonly Html[] | undefined | false;

/** Makes HTML: html`<p title="${text}">${text}</p>`. Attributes must be quoted. */
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

// Control characters have no place in HTML: they are shown by their pictures. Characters that would turn the text after
// them around, and halves of characters, are shown as what cannot be shown.
function visible(text: string): string {
  return text.replace(HIDDEN, (character) => {
    const code = character.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? '\u2421' : '\ufffd';
  });
}

const HIDDEN =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for.
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]|\p{Surrogate}/gu;
