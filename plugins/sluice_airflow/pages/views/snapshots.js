/** What the job can be restored from: retained checkpoints and savepoints, and what each pins. */

import { useNow, useResource, withQuery } from "../api.js";
import { Dispose, RestoreFrom } from "../actions.js";
import { count, size, words } from "../format.js";
import { html } from "../html.js";
import { Empty, Link, Moment, Resource, Table, numeric } from "../parts.js";

export function Snapshots({ uid, path, pipeline }) {
  const now = useNow();
  const resource = useListThenVerdicts(path("snapshots"));
  return html`<h2 tabindex="-1">Snapshots</h2>
    <${Resource} resource=${resource}>${({ snapshots }) => snapshots.length
      ? html`<${Table} caption="Snapshots of ${uid}, the newest first" columns=${columns(uid, path, pipeline, now, snapshots, resource.reload)} rows=${snapshots}
          keyOf=${(one) => `${one.kind} ${one.savepoint ?? one.id}`} rowClass=${(one) => (one.can_restore === false ? "failing" : "")} />`
      : html`<${Empty} title="Nothing to restore from yet">
          <p>Every completed checkpoint that is retained is listed here, and every savepoint.</p><//>`}<//>`;
}

/** The checks ask the sinks and read versions of their tables, which takes seconds on S3. */
function useListThenVerdicts(list) {
  const listed = useResource(list, { everyMs: 60_000 });
  const checked = useResource(listed.data && withQuery(list, { checks: true }), { everyMs: 60_000 });
  const reload = () => {
    listed.reload();
    checked.reload();
  };
  return { ...(checked.data ? checked : { ...listed, problem: listed.problem ?? checked.problem }), reload };
}

/** What a person calls it, and what a route takes. */
export const nameOf = (one) => (one.savepoint ? `savepoint ${one.savepoint}` : `checkpoint ${one.id}`);

export const namedBy = (one) => one.savepoint ?? String(one.id);

/** To the newest one; the newest itself from the one before it. */
const Compare = ({ uid, one, newest }) => html`<${Link} to=${["p", uid, "state", "compare"]}
  query=${one === newest ? { to: namedBy(one) } : { from: namedBy(one) }} aria-label="Compare ${nameOf(one)}">Compare<//>`;

const columns = (uid, path, pipeline, now, snapshots, reload) => [
  { name: "name", title: "Snapshot", value: nameOf, cell: (one) => html`${one.id == null
    ? nameOf(one) : html`<${Link} to=${["p", uid, "checkpoints", one.id]}>${nameOf(one)}<//>`}` },
  { name: "verdict", title: "Can be restored", cell: Verdict },
  { name: "type", title: "Type", value: (one) => one.type, cell: (one) => words(one.type) },
  { name: "age", title: "Its age", kind: "number", value: (one) => one.completed_at_ms && -one.completed_at_ms,
    cell: (one) => html`<${Moment} at=${one.completed_at_ms} now=${now} />` },
  numeric("size", "State", (one) => one.full_bytes, size),
  numeric("generation", "Generation", (one) => one.generation, count),
  { name: "tables", title: "Tables", cell: (one) => Object.entries(one.tables ?? {}).map(([sink, version]) =>
    html`<div>${sink}: <span class="muted">version</span> ${version}</div>`) },
  { name: "compare", title: html`<span class="unseen">Compare</span>`, cell: (one) => (snapshots.length > 1 && one.id != null
    ? html`<${Compare} uid=${uid} one=${one} newest=${snapshots[0]} />` : null) },
  { name: "act", title: html`<span class="unseen">Actions</span>`, cell: (one) => html`
    ${one.can_restore === false ? null : html`<${RestoreFrom} path=${path} pipeline=${pipeline} snapshot=${one} name=${nameOf(one)} />`}
    ${one.savepoint ? html` <${Dispose} path=${path} pipeline=${pipeline} savepoint=${one.savepoint} onGone=${reload} />` : null}` },
];

const VERDICTS = new Map([[true, ["good", "yes"]], [false, ["bad", "no"]], [null, ["calm", "not checked yet"]]]);

function Verdict(one) {
  const [look, said] = VERDICTS.get(one.can_restore ?? null);
  return html`<span class="badge ${look}">${said}</span>
  ${one.is_of_this_life ? null : html` <span class="badge calm" title="The job as it was submitted before took it">earlier life</span>`}
  ${(one.problems ?? []).map((problem) => html`<div class="reason">${problem}</div>`)}`;
}
