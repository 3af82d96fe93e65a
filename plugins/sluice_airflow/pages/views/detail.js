/** One checkpoint, down to its subtasks: every time, every size, and who is late. */

import { useNow, useResource } from "../api.js";
import { asked, count, duration, pending, sinceThen, size, watermark, words } from "../format.js";
import { Abort } from "../actions.js";
import { html } from "../html.js";
import { Badge, Empty, Failure, Figures, Link, Moment, Resource, Table, figureColumns, figuresOf, numeric } from "../parts.js";
import { Subtasks } from "./subtasks.js";

export function Detail({ uid, path, pipeline, names }) {
  const now = useNow();
  const [id, stage] = names;
  const resource = useResource(path("checkpoints", id));
  return html`<p class="crumbs"><${Link} to=${["p", uid, "history"]}>History<//></p>
    <h2 tabindex="-1">Checkpoint ${id}</h2>
    <${Resource} resource=${resource}>${(one) => html`<${Shown} uid=${uid} path=${path} pipeline=${pipeline} one=${one} stage=${stage} now=${now} />`}<//>`;
}

function Shown({ uid, path, pipeline, one, stage, now }) {
  const stages = Object.values(one.tasks ?? {});
  const opened = stages.find(({ id }) => id === stage) ?? stages[latestOf(one, stages)];
  return html`
    <p><${Badge} status=${one.status} /> ${one.discarded ? html`<span class="badge calm">discarded</span>` : null}
      ${" "}${words(one.checkpoint_type)}${one.unaligned_checkpoint ? ", unaligned" : ""}${asked(one.cause)}
      ${one.run ? html` <a href=${one.run}>Its run in Airflow</a>` : null}</p>
    ${one.status === "IN_PROGRESS" ? html`<div class="actions"><${Abort} path=${path} pipeline=${pipeline} checkpoint=${one} /></div>` : null}
    <${Failure} reason=${one.failure_reason} message=${one.failure_message} />
    <${Late} one=${one} stages=${stages} now=${now} uid=${uid} />
    <${Totals} one=${one} now=${now} />
    <${Exceptions} of=${one.exceptions ?? []} run=${one.run} />
    <${Sources} one=${one} />
    ${stages.length ? html`<h3>Stages</h3>
      <${Table} caption="Stages of checkpoint ${one.id}" columns=${columns(uid, one)} rows=${stages} keyOf=${({ id }) => id}
        rowClass=${({ id }) => (id === opened?.id ? "opened" : "")} />
      <${Subtasks} key=${opened.id} path=${path} checkpoint=${one} stage=${opened} now=${now} />`
    : html`<${Empty} title="No figures of its stages">
        <p>It ended before a stage began, or its statistics are not kept any more
          (<code>history_size</code> says how many are).</p><//>`}`;
}

/** The stage that a person looks for: the one that is waited for, or that ended last. */
function latestOf(one, stages) {
  const late = stages.findIndex((stage) => stage.num_acknowledged_subtasks < stage.num_subtasks);
  if (late >= 0 && one.status !== "COMPLETED") return late;
  const moments = stages.map((stage) => stage.latest_ack_timestamp ?? 0);
  return moments.lastIndexOf(Math.max(...moments));
}

function Late({ one, stages, now, uid }) {
  if (one.status !== "IN_PROGRESS") return null;
  const late = stages.filter((stage) => stage.num_acknowledged_subtasks < stage.num_subtasks);
  if (!late.length) return html`<p class="note" role="status">All subtasks have acknowledged; the checkpoint is being completed.</p>`;
  return html`<p class="note" role="status">Waiting, for ${duration(sinceThen(one.trigger_timestamp, now))} now, for ${
    late.map((stage, index) => html`${index ? ", " : ""}<${Link} to=${["p", uid, "checkpoints", one.id, stage.id]}>${stage.id}<//> (${count(stage.num_subtasks)} subtasks, which acknowledge at once)`)}.</p>`;
}

const Totals = ({ one, now }) => html`<${Figures} of=${[
  ["Triggered", html`<${Moment} at=${one.trigger_timestamp} />`],
  ["Latest acknowledgement", one.latest_ack_timestamp && html`<${Moment} at=${one.latest_ack_timestamp} />`],
  ["Completed", one.completed_timestamp && html`<${Moment} at=${one.completed_timestamp} />`],
  ["Failed", one.failure_timestamp && html`<${Moment} at=${one.failure_timestamp} />`],
  ["Acknowledged", one.num_subtasks == null ? null : `${count(one.num_acknowledged_subtasks)} of ${count(one.num_subtasks)}`],
  ...figuresOf("checkpoint").map((figure) => figure.path === "end_to_end_duration" ? lasting(figure, one, now) : [figure.title, known(figure.of(one), figure.show), figure.says]),
  ["Committed", one.committed == null ? null : one.committed ? "yes" : "not yet", "Whether every sink has published it"],
  ["Savepoint", one.savepoint],
  ["Path", one.external_path && html`<code>${one.external_path}</code>`, "", "whole"],
]} />`;

/** How long it took, or has taken; one that failed, until then. */
const lasting = ({ title, says, of, show }, one, now) => one.status === "IN_PROGRESS"
  ? [title, show(sinceThen(one.trigger_timestamp, now)), "From the trigger until now"]
  : [title, known(of(one), show), one.status === "FAILED" ? "From the trigger to the failure" : says];

const known = (value, show) => (value == null ? null : show(value));

/** The log of a stage is that of its task in the run. */
const logOf = (run, task) => `${run}/tasks/${encodeURIComponent(task)}`;

function Exceptions({ of, run }) {
  if (!of.length) return null;
  return html`<section><h3>What failed</h3><ul class="plain">${of.map((one) => html`<li>
    <strong>${one.stage ?? one.task}${one.index == null ? "" : `/${one.index}`}</strong>, attempt ${one.attempt}: ${one.message}${run ? html` <a href=${logOf(run, one.task)}>Log</a>` : null}
    ${one.stack ? html`<details><summary>Stack, your frames first</summary><pre tabindex="0">${one.stack}</pre></details>` : null}</li>`)}</ul></section>`;
}

function Sources({ one }) {
  const sources = Object.values(one.sources ?? {});
  if (!sources.length) return null;
  return html`<h3>Sources</h3>
    <${Table} caption="Sources of checkpoint ${one.id}" columns=${ofSources} rows=${sources} keyOf=${({ id }) => id} />`;
}

const ofSources = [
  { name: "id", title: "Source", value: ({ id }) => id },
  numeric("records", "Records", (one) => one.records ?? 0, count, "Those of its epoch"),
  numeric("size", "Size", (one) => one.size, size),
  {
    name: "pending", title: "Left behind the barrier", kind: "number", cell: pending,
    value: (one) => one.pending_records ?? one.pending_bytes ?? 0, hint: "What was there when it was triggered, for later epochs",
  },
  numeric("watermark", "Watermark", (one) => one.watermark, watermark),
];

const columns = (uid, { id: checkpoint, run }) => [
  {
    name: "id", title: "Stage", value: ({ id }) => id,
    cell: ({ id, unaligned_checkpoint: isUnaligned }) => html`<${Link} to=${["p", uid, "checkpoints", checkpoint, id]}>${id}<//>${
      isUnaligned ? html` <span class="badge calm">unaligned</span>` : null}${
      run ? html` <a href=${logOf(run, `${id}.snapshot`)} aria-label="Log of ${id}">log</a>` : null}`,
  },
  { name: "status", title: "Status", value: ({ status }) => status, cell: ({ status }) => html`<${Badge} status=${status} />` },
  {
    name: "acks", title: "Acknowledged", kind: "number", value: (one) => one.num_acknowledged_subtasks / one.num_subtasks,
    cell: (one) => `${count(one.num_acknowledged_subtasks)} / ${count(one.num_subtasks)}`,
  },
  { name: "latest", title: "Latest ack", value: (one) => one.latest_ack_timestamp, cell: (one) => html`<${Moment} at=${one.latest_ack_timestamp} />` },
  ...figureColumns("stage"),
];
