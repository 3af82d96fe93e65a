/** What a failure reason means and what to do: the documentation's own words, in the wheel. */

import { useEffect, useState } from "../vendor/preact-hooks.js";
import { words } from "../format.js";
import { html } from "../html.js";
import { Empty, Loading } from "../parts.js";

export function Reason({ name }) {
  const [sections, setSections] = useState(null);
  useEffect(() => {
    fetch(new URL("../failure-reasons.json", import.meta.url)).then((answer) => answer.json()).then(setSections);
  }, []);
  const said = sections?.[name];
  return html`
    <p class="crumbs"><a href="#" onClick=${(event) => { event.preventDefault(); history.back(); }}>Back</a></p>
    <h2 tabindex="-1">${words(name)}</h2>
    <p class="muted"><code>${name}</code></p>
    ${sections ? null : html`<${Loading} />`}
    ${said ? said.map(([title, text]) => html`<section class="said">${title ? html`<h3>${title}</h3>` : null}
      ${text.split("\n\n").map((one) => html`<p>${marked(one)}</p>`)}</section>`) : null}
    ${sections && !said ? html`<${Empty} title="This reason has no page">
      <p>The journal's sentence and the log of the task that failed say more.</p><//>` : null}`;
}

/** Code in backticks, and nothing else of Markdown, is in these sections. */
const marked = (text) => text.split("`").map((piece, index) => (index % 2 ? html`<code>${piece}</code>` : piece));
