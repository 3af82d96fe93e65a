/** What checkpoints failed with, by root cause: where, since when, how often, and the stack on demand. */

import { useNow, useResource } from "../api.js";
import { count, words } from "../format.js";
import { html } from "../html.js";
import { Empty, Link, Moment, Resource } from "../parts.js";

const SHOWN = 8;

export function Exceptions({ uid, path }) {
  const now = useNow();
  const resource = useResource(path("exceptions"), { everyMs: 10_000 });
  return html`<h2 tabindex="-1">Exceptions</h2>
    <${Resource} resource=${resource}>${({ failures, groups }) => groups.length
      ? html`<p class="muted">The last ${count(failures)} failure${failures === 1 ? "" : "s"}, by root cause, the newest first.</p>
        ${groups.map((one) => html`<${Group} key=${one.checkpoints.at(-1)} uid=${uid} one=${one} now=${now} />`)}`
      : html`<${Empty} title="No failure"><p>No checkpoint has failed, as far as the history goes back.</p><//>`}<//>`;
}

const Group = ({ uid, one, now }) => html`<section class="card failed" aria-label="Failure in checkpoint ${one.checkpoints[0]}">
  <h3 class="reason">${one.root_cause}</h3>
  <p>${one.task ? html`<strong>${one.stage ?? one.task}${one.subtask == null ? "" : `/${one.subtask}`}</strong>, attempt ${count(one.attempt)} · ` : null}
    ${one.reason ? html`<${Link} to=${["reasons", one.reason]}>${words(one.reason)}<//>` : "its stage ran again, and succeeded"}</p>
  <p class="muted">${one.count > 1 ? html`${count(one.count)} times, first <${Moment} at=${one.first_timestamp} now=${now} />, last ` : null}<${Moment} at=${one.last_timestamp} now=${now} />,
    in ${one.count > 1 ? "checkpoints" : "checkpoint"} ${one.checkpoints.slice(0, SHOWN).map((id, index) => html`${index ? ", " : ""}<${Link} to=${["p", uid, "checkpoints", id]}>${id}<//>`)}${one.count > SHOWN ? ", …" : ""}</p>
  ${one.message.includes(one.root_cause) && one.message.length < one.root_cause.length + 20 ? null : html`<p>${one.message}</p>`}
  ${one.stack ? html`<details><summary>Stack, your frames first</summary><pre tabindex="0">${one.stack}</pre></details>` : null}
</section>`;
