/** Every declared pipeline: whether it gets on, and how far it is. */

import { useNow, useResource } from "../api.js";
import { count, duration, isAbsent, pending, size, watermark } from "../format.js";
import { html } from "../html.js";
import { Badge, Empty, Link, Moment, Resource, Table } from "../parts.js";

export const listed = (data) => (Array.isArray(data) ? data : data.pipelines ?? []);

export function Pipelines() {
  const now = useNow();
  const resource = useResource("pipelines", { everyMs: 5_000 });
  return html`<h2 tabindex="-1">Pipelines</h2>
    <${Resource} resource=${resource}>${(data) => {
      const pipelines = listed(data);
      return html`<${Broken} modules=${data.broken ?? []} />
        ${pipelines.length ? html`<${Lines} pipelines=${pipelines} now=${now} />` : html`<${NoPipeline} />`}`;
    }}<//>`;
}

const Broken = ({ modules }) => modules.map(({ module, error }) => html`<div class="problem" role="alert">
  <strong>${module} cannot be imported</strong>, so its pipelines are not listed.<p>${error}</p></div>`);

const NoPipeline = () => html`<${Empty} title="No pipeline that you may see">
  <p>A pipeline is a file in the project's pipelines folder; it appears here with its DAGs.
    If there are some, ask for access to their DAGs.</p>
  <p><code>sluice init FOLDER</code> begins a project with an example.</p>
<//>`;

const columns = (now) => [
  { name: "uid", title: "Pipeline", value: (one) => one.uid, cell: Name },
  { name: "status", title: "Status", value: (one) => one.status ?? "", cell: Status },
  { name: "id", title: "Last completed", kind: "number", value: (one) => one.last_completed?.id, cell: Last },
  {
    name: "age", title: "Its age", kind: "number",
    value: (one) => one.last_completed && -one.last_completed.completed_timestamp,
    cell: (one) => html`<${Moment} at=${one.last_completed?.completed_timestamp} now=${now} />`,
  },
  { name: "pending", title: "In progress", kind: "number", value: (one) => one.in_progress, cell: (one) => count(one.in_progress) },
  {
    name: "state", title: "State", kind: "number", value: (one) => one.last_completed?.state_size,
    cell: (one) => size(one.last_completed?.state_size),
  },
  { name: "lag", title: "Pending", kind: "number", value: mostPending, cell: Lag, hint: "What each source had at the newest trigger, and is in no completed checkpoint" },
  { name: "watermark", title: "Watermark", kind: "number", value: (one) => one.watermark, cell: Watermark, hint: "The least of the stages, in the last completed checkpoint" },
];

/** To sort by: records are counted first, then bytes; what a source cannot say is no figure. */
function mostPending({ lag = [] }) {
  const known = lag.map((one) => one.pending_records ?? one.pending_bytes).filter((value) => !isAbsent(value));
  return known.length ? Math.max(...known) : lag.length ? 0 : null;
}

function Lag({ lag = [] }) {
  if (!lag.length) return html`<span class="absent">–</span>`;
  return lag.map((one) => html`<div><span class="muted">${one.id}</span> ${pending(one)}${
    one.is_behind ? html` <span class="badge warn">behind</span>` : null}</div>`);
}

const Watermark = (one) => html`${watermark(one.watermark)}${isAbsent(one.watermark_lag) ? null
  : html`<div class="muted">${duration(one.watermark_lag)} before the trigger</div>`}`;

/** The worst first, and those by name. */
const URGENCY = ["bad", "warn", "good", "calm"];
const urgency = (one) => (one.error ? 0 : URGENCY.indexOf(one.health?.tone ?? "good"));
const byTrouble = (pipelines) => [...pipelines].sort((one, other) => urgency(one) - urgency(other) || one.uid.localeCompare(other.uid));

const Lines = ({ pipelines, now }) => html`<${Table} caption="All pipelines" columns=${columns(now)}
  rows=${byTrouble(pipelines)} keyOf=${(one) => one.uid} rowClass=${(one) => (one.failing || one.error ? "failing" : "")} />`;

const Name = (one) => html`<${Link} to=${["p", one.uid]}><strong>${one.uid}</strong><//>
  ${one.description ? html`<div class="muted">${one.description}</div>` : null}`;

const Status = (one) => html`${one.status ? html`<${Badge} status=${one.status} />` : null}
  ${one.paused ? html` <span class="badge warn" title="No periodic checkpoint is taken">paused</span>` : null}
  ${one.failing ? html` <span class="badge bad">failing</span>` : one.health?.is_late ? html` <span class="badge warn" title="Its newest completed checkpoint is older than its target">late</span>` : null}
  ${one.problem || one.error ? html`<div class="reason">${one.problem ?? one.error}</div>` : null}`;

const Last = (one) => one.last_completed
  ? html`<${Link} to=${["p", one.uid, "checkpoints", one.last_completed.id]}>${one.last_completed.id}<//>${
      one.last_completed.is_savepoint ? html` <span class="badge calm">savepoint</span>` : null}`
  : html`<span class="absent">none yet</span>`;
