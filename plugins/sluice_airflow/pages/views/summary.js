/** The distribution of each figure over the completed checkpoints, and how it went over time. */

import { useResource, withQuery } from "../api.js";
import { Charts } from "../charts.js";
import { count } from "../format.js";
import { html } from "../html.js";
import { Empty, Resource, distributionsOf } from "../parts.js";
import { Distributions } from "./distributions.js";

export function Summary({ path }) {
  const resource = useResource(withQuery(path("checkpoints"), { limit: 1_000 }), { everyMs: 10_000 });
  return html`<h2 tabindex="-1">Summary</h2>
    <${Resource} resource=${resource}>${({ summary, history }) => summary.end_to_end_duration
      ? html`<p class="muted">Over the ${count(history.filter(({ status }) => status === "COMPLETED").length)} completed
            checkpoints of the newest ${count(history.length)}.</p>
          <${Distributions} caption="Distribution over completed checkpoints" rows=${distributionsOf("checkpoint", summary)} />
          <${Charts} checkpoints=${history} names=${["duration", "size", "records"]} />`
      : html`<${Empty} title="No completed checkpoint yet"><p>The summary is over completed checkpoints; the
          history says how far the first one is.</p><//>`}<//>`;
}
