/** What changed, the newest first: the marks of the charts, in words. */

import { asked, words } from "../format.js";
import { html } from "../html.js";
import { Link, Moment } from "../parts.js";

const FIRST = 8;
const TONES = { failure: "bad", restore: "busy", deploy: "warn", rescale: "warn", savepoint: "good", malformed: "warn", act: "calm" };

export function Changes({ uid, changes }) {
  if (!changes?.length) return null;
  const told = (some) => html`<ol class="story">${some.map((one) => html`<${Change} key=${`${one.timestamp}${one.says}`} uid=${uid} one=${one} />`)}</ol>`;
  return html`<section><h3>What changed</h3>
    ${told(changes.slice(0, FIRST))}
    ${changes.length > FIRST ? html`<details><summary>${changes.length - FIRST} older</summary>${told(changes.slice(FIRST))}</details>` : null}
  </section>`;
}

const Change = ({ uid, one }) => html`<li class=${TONES[one.kind]}>
  <div class="when"><${Moment} at=${one.timestamp} /></div>
  <div><p><span class="badge ${TONES[one.kind]}">${one.kind}</span> ${one.checkpoint == null ? one.says : html`<${Link} to=${["p", uid, "checkpoints", one.checkpoint]}>${one.says}<//>`}
    ${one.reason ? html` · <${Link} to=${["reasons", one.reason]}>${words(one.reason)}<//>` : null}</p>
    ${one.by ? html`<p class="muted">${asked(one.by, "")}</p>` : null}</div>
</li>`;
