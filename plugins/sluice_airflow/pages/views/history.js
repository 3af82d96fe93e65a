/** The checkpoints of the job, newest first, a page at a time. */

import { useNow, useResource, withQuery } from "../api.js";
import { count, duration, sinceThen, size, words } from "../format.js";
import { html } from "../html.js";
import { Badge, Empty, Failure, Link, Moment, Resource, Table } from "../parts.js";
import { go } from "../route.js";

const PAGE = 50;
const TYPES = [["", "All"], ["CHECKPOINT", "Checkpoints"], ["SAVEPOINT", "Savepoints"]];
const STATUSES = [["", "All"], ["IN_PROGRESS", "In progress"], ["COMPLETED", "Completed"], ["FAILED", "Failed"]];

/** `pages` in the address are the ids that the pages begin below, the present one last. */
const begins = (query) => (query.pages ? query.pages.split(",") : []);

export function History({ uid, path, query }) {
  const now = useNow();
  const pages = begins(query);
  const asked = { limit: PAGE, before: pages.at(-1), status: query.status, type: query.type };
  const resource = useResource(withQuery(path("checkpoints"), asked));
  return html`<h2 tabindex="-1">History</h2>
    <${Filters} uid=${uid} query=${query} />
    <${Resource} resource=${resource}>${(data) => data.history.length
      ? html`<${Table} caption="Checkpoints, newest first" columns=${columns(uid, now)} rows=${data.history}
          keyOf=${(one) => one.id} rowClass=${(one) => (one.status === "FAILED" ? "failing" : "")} />`
      : html`<${Nothing} query=${query} uid=${uid} />`}<//>
    <${Pager} uid=${uid} query=${query} pages=${pages} next=${resource.data?.next} />`;
}

const Filters = ({ uid, query }) => html`<form class="filters" onSubmit=${(event) => event.preventDefault()}>
  <${Choice} title="Status" name="status" of=${STATUSES} uid=${uid} query=${query} />
  <${Choice} title="Type" name="type" of=${TYPES} uid=${uid} query=${query} />
</form>`;

const Choice = ({ title, name, of, uid, query }) => html`<label>${title}
  <select onChange=${(event) => go(["p", uid, "history"], { ...query, pages: "", [name]: event.target.value })}>
    ${of.map(([value, shown]) => html`<option value=${value} selected=${value === (query[name] ?? "")}>${shown}</option>`)}
  </select></label>`;

const Nothing = ({ query, uid }) => query.status || query.type || query.pages
  ? html`<${Empty} title="No such checkpoint"><p><${Link} to=${["p", uid, "history"]}>Show all checkpoints<//></p><//>`
  : html`<${Empty} title="No checkpoint yet">
      <p>The first one is triggered when the pipeline's DAG is unpaused and its sources have records.</p><//>`;

const Pager = ({ uid, query, pages, next }) => html`<nav class="pager" aria-label="Pages of the history">
  ${pages.length ? html`<${Link} to=${["p", uid, "history"]} query=${{ ...query, pages: pages.slice(0, -1).join(",") }}>← Newer<//>` : null}
  ${next ? html`<${Link} to=${["p", uid, "history"]} query=${{ ...query, pages: [...pages, next].join(",") }}>Older →<//>` : null}
</nav>`;

const columns = (uid, now) => [
  {
    name: "id", title: "Checkpoint", kind: "number", value: (one) => one.id,
    cell: (one) => html`<${Link} to=${["p", uid, "checkpoints", one.id]}>${one.id}<//>`,
  },
  { name: "status", title: "Status", value: (one) => one.status, cell: Outcome },
  { name: "type", title: "Type", value: (one) => one.checkpoint_type, cell: Type },
  { name: "acks", title: "Acknowledged", kind: "number", cell: Acknowledged },
  { name: "triggered", title: "Triggered", value: (one) => one.trigger_timestamp, cell: (one) => html`<${Moment} at=${one.trigger_timestamp} />` },
  { name: "duration", title: "Duration", kind: "number", value: (one) => one.end_to_end_duration, cell: (one) => durationOf(one, now), hint: "From the trigger to the latest acknowledgement, or to the failure" },
  { name: "size", title: "Checkpointed", kind: "number", value: (one) => one.checkpointed_size, cell: (one) => size(one.checkpointed_size), hint: "What was written for this checkpoint" },
  { name: "state", title: "State", kind: "number", value: (one) => one.state_size, cell: (one) => size(one.state_size), hint: "What its state names in all" },
  { name: "records", title: "Records", kind: "number", value: (one) => one.records, cell: (one) => count(one.records) },
];

const durationOf = (one, now) =>
  one.status === "IN_PROGRESS" ? duration(sinceThen(one.trigger_timestamp, now)) : duration(one.end_to_end_duration);

const Outcome = (one) => html`<${Badge} status=${one.status} />
  ${one.committed === false ? html` <span class="badge warn" title="Its sinks have not all published it yet">not committed</span>` : null}
  <${Failure} reason=${one.failure_reason} message=${one.failure_message} />`;

const Type = (one) => html`${words(one.checkpoint_type)}${one.unaligned_checkpoint ? ", unaligned" : ""}
  ${one.savepoint ? html`<div><code>${one.savepoint}</code></div>` : null}`;

const Acknowledged = (one) =>
  one.num_subtasks == null ? "–" : `${count(one.num_acknowledged_subtasks)} / ${count(one.num_subtasks)}`;
