/** What matters first, counts, what is in progress, and the latest checkpoint of each kind. */

import { useNow, useResource, withQuery } from "../api.js";
import { count, duration, sinceThen, size, words } from "../format.js";
import { Drivers, Health } from "./health.js";
import { Changes } from "./changes.js";
import { Lags } from "./lag.js";
import { html } from "../html.js";
import { Charts } from "../charts.js";
import { Empty, Failure, Figures, Link, Moment, Resource } from "../parts.js";

export function Overview({ uid, path, pipeline }) {
  const now = useNow();
  const resource = useResource(withQuery(path("checkpoints"), { limit: 200 }));
  const changes = useResource(path("changes"), { everyMs: 15_000 });
  return html`<h2 tabindex="-1">Overview</h2>
    ${pipeline
      ? html`<${Health} uid=${uid} path=${path} pipeline=${pipeline} now=${now} />`
      : html`<${Drivers} path=${path} now=${now} />`}
    <${Resource} resource=${resource}>${(data) => data.counts.total || data.counts.restored || data.counts.unsuccessful_triggers
      ? html`<${Shown} uid=${uid} data=${data} now=${now} pipeline=${pipeline} changes=${changes.data?.changes} />`
      : html`<${NoCheckpoint} />`}<//>`;
}

const NoCheckpoint = () => html`<${Empty} title="No checkpoint yet">
  <p>The first one is triggered when the pipeline's DAG is unpaused and its sources have records.</p>
<//>`;

function Shown({ uid, data, now, pipeline, changes }) {
  const { counts, latest, failures, history } = data;
  const pending = history.filter(({ status }) => status === "IN_PROGRESS");
  return html`
    <dl class="counts">
      ${[["Triggered", counts.total], ["In progress", counts.in_progress], ["Completed", counts.completed],
        ["Failed", counts.failed, counts.failed ? "bad" : ""],
        ...(counts.unsuccessful_triggers ? [["Refused in a row", counts.unsuccessful_triggers, "bad"]] : []),
        ["Restored", counts.restored]].map(
        ([name, value, tone]) => html`<div class=${tone}><dt>${name}</dt><dd>${count(value)}</dd></div>`)}
    </dl>
    ${pending.map((one) => html`<${Pending} key=${one.id} uid=${uid} one=${one} now=${now} />`)}
    <div class="cards">
      <${Card} title="Latest completed" uid=${uid} one=${latest.completed} now=${now} />
      <${Card} title="Latest failed" uid=${uid} one=${latest.failed} now=${now} />
      <${Card} title="Latest savepoint" uid=${uid} one=${latest.savepoint} now=${now} />
      <${Restored} restored=${latest.restored} now=${now} />
    </div>
    <${Failures} uid=${uid} failures=${failures} />
    ${pipeline ? html`<${Lags} pipeline=${pipeline} now=${now} />` : null}
    <${Changes} uid=${uid} changes=${changes} />
    <${Charts} checkpoints=${history} marks=${changes} names=${["duration", "size", "pending", "pendingBytes", "behind"]} />`;
}

export function Pending({ uid, one, now }) {
  const done = one.num_acknowledged_subtasks ?? 0;
  const all = one.num_subtasks ?? 0;
  return html`<section class="card pending" aria-label="Checkpoint ${one.id} is in progress">
    <h3><${Link} to=${["p", uid, "checkpoints", one.id]}>Checkpoint ${one.id}<//> is in progress,
      for ${duration(sinceThen(one.trigger_timestamp, now))}</h3>
    ${all ? html`<p><progress max=${all} value=${done} aria-label="Acknowledged subtasks"></progress>
      ${count(done)} of ${count(all)} subtasks have acknowledged</p>` : null}
  </section>`;
}

const ended = (one) => one.completed_timestamp ?? one.failure_timestamp ?? one.trigger_timestamp;

const Card = ({ title, uid, one, now }) => html`<section class="card">
  <h3>${title}</h3>
  ${one ? html`
    <p><${Link} to=${["p", uid, "checkpoints", one.id]}>Checkpoint ${one.id}<//>
      ${one.savepoint ? html` <code>${one.savepoint}</code>` : null}, <${Moment} at=${ended(one)} now=${now} /></p>
    <${Failure} reason=${one.failure_reason} message=${one.failure_message} />
    <${Figures} of=${[
      ["Duration", duration(one.end_to_end_duration)],
      ["Checkpointed", one.checkpointed_size == null ? null : size(one.checkpointed_size)],
      ["State", one.state_size == null ? null : size(one.state_size)],
      ["Records", one.records == null ? null : count(one.records)],
    ]} />` : html`<p class="absent">None</p>`}
</section>`;

const Restored = ({ restored, now }) => html`<section class="card">
  <h3>Latest restore</h3>
  ${restored ? html`
    <p>from ${restored.is_savepoint ? "savepoint" : "checkpoint"} ${restored.id}${", "}
      <${Moment} at=${restored.restore_timestamp} now=${now} /></p>
    <p class="path"><code>${restored.external_path}</code></p>` : html`<p class="absent">None</p>`}
</section>`;

function Failures({ uid, failures }) {
  const known = Object.entries(failures ?? {});
  if (!known.length) return null;
  return html`<section><h3><${Link} to=${["p", uid, "exceptions"]}>Why checkpoints failed<//></h3><ul class="plain">
    ${known.map(([reason, many]) => html`<li><${Link} to=${["reasons", reason]}>${words(reason)}<//>: <${Link} to=${["p", uid, "history"]} query=${{ status: "FAILED" }}>${count(many)} checkpoint${many === 1 ? "" : "s"}<//></li>`)}
  </ul></section>`;
}

