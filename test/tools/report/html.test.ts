/** Tests that HTML templates escape the text that is inserted into them. */
import assert from 'node:assert/strict';
import { Html, html } from '../../../lib/tools/cli/report/html.js';

describe('an HTML template', () => {
  it('escapes values', () => {
    const hostile = `<script>"&'</script>`;
    const { text } = html`<p title="${hostile}">${hostile}</p>`;
    const escaped = '&lt;script&gt;&quot;&amp;&#39;&lt;/script&gt;';
    assert.equal(text, `<p title="${escaped}">${escaped}</p>`);
  });

  it('inserts HTML unchanged, and nothing for absent values', () => {
    const list = ['a', '<b>'].map((item) => html`<li>${item}</li>`);
    assert.equal(
      html`<ul>${list}</ul>${undefined}${false}${0}${html`<br>`}`.text,
      '<ul><li>a</li><li>&lt;b&gt;</li></ul>0<br>',
    );
  });

  it('replaces control characters, direction changes and lone surrogates', () => {
    assert.equal(
      html`${'a\u0000b\u001b[31m\r\n\t\u007f\u0085'}${'\u202eabc\u2066'}${'x\ud800y 😀 \udc00'}`.text,
      'a␀b␛[31m␍\n\t␡�' + '�abc�' + 'x�y 😀 �',
    );
  });

  it('writes JSON that cannot end its element', () => {
    const value = { text: '</script><!--<script>' };
    const { text } = Html.json(value);
    assert.ok(!text.includes('<'));
    assert.deepEqual(JSON.parse(text), value);
  });

  it('rejects a program that would end its element', () => {
    assert.equal(Html.asset('1 < 2').text, '1 < 2');
    assert.throws(() => Html.asset('"</script>"'), /end its element/);
  });
});
