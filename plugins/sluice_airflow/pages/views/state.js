/**
 * The keyed state of a stage in a checkpoint: its rows, a page at a time; or what changed between two;
 * or one key in every stage, as it came to be.
 */

import { useResource, withQuery } from "../api.js";
import { count } from "../format.js";
import { html } from "../html.js";
import { Empty, Link, Resource, Table } from "../parts.js";
import { go } from "../route.js";
import { Difference, shown } from "./difference.js";

const PAGE = 100;

export function State({ names, ...rest }) {
  if (names[0] === "compare") return html`<${Difference} ...${rest} />`;
  return names[0] === "key" ? html`<${Key} ...${rest} />` : html`<${StateOfOne} ...${rest} />`;
}

function StateOfOne({ uid, path, query }) {
  const pipeline = useResource(path(), { everyMs: 0 });
  return html`<h2 tabindex="-1">State</h2>
    <${Resource} resource=${pipeline}>${({ nodes, last_completed: last }) => {
      const stages = nodes.filter(({ kind, state_size: bytes }) => kind === "stage" && bytes !== 0);
      if (!last) return html`<${Empty} title="No completed checkpoint yet"><p>State is read from a completed checkpoint.</p><//>`;
      if (!stages.length) return html`<${Empty} title="No stage keeps state"><p>Keyed stages do: windows, aggregates, joins, deduplication.</p><//>`;
      const chosen = { stage: stages[0].uid, checkpoint: "latest", ...query };
      return html`<${Choice} uid=${uid} stages=${stages} chosen=${chosen} />
        <${KeyForm} uid=${uid} />
        <${Rows} key=${chosen.stage + chosen.checkpoint} uid=${uid} path=${path} chosen=${chosen} />`;
    }}<//>`;
}

function Choice({ uid, stages, chosen }) {
  const show = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    go(["p", uid, "state"], { stage: form.get("stage"), checkpoint: form.get("checkpoint").trim() || "latest" });
  };
  return html`<form class="filters" onSubmit=${show}>
    <label>Stage <select name="stage">${stages.map(({ uid: stage }) => html`
      <option value=${stage} selected=${stage === chosen.stage}>${stage}</option>`)}</select></label>
    <label>Checkpoint <input name="checkpoint" value=${chosen.checkpoint} title="latest, the id of a retained checkpoint, or a savepoint's name" /></label>
    <button class="button" type="submit">Show</button>
    <${Link} to=${["p", uid, "state", "compare"]} query=${{ stage: chosen.stage }}>Compare two snapshots<//>
  </form>`;
}

function Rows({ uid, path, chosen }) {
  const offset = Number(chosen.offset ?? 0);
  const asked = { checkpoint: chosen.checkpoint, table: chosen.table, limit: PAGE, offset };
  const resource = useResource(withQuery(path("state", chosen.stage), asked), { everyMs: 0 });
  return html`<${Resource} resource=${resource}>${(data) => html`
    <${Tables} uid=${uid} chosen=${chosen} data=${data} />
    <p class="muted">Checkpoint ${data.checkpoint}${data.rows.length
      ? `, rows ${count(offset + 1)} to ${count(offset + data.rows.length)}; ` : "; "}${
      count(data.stored_rows)} are stored, older versions and expired ones included.</p>
    ${data.rows.length
      ? html`<${Table} caption="State of ${data.stage}" columns=${columnsOf(data)} rows=${data.rows} keyOf=${(row) => data.rows.indexOf(row)} />`
      : html`<${Empty} title="No rows"><p>All its keys are deleted or have expired in this checkpoint.</p><//>`}
    <nav class="pager" aria-label="Pages of the state">
      ${offset > 0 ? html`<${Link} to=${["p", uid, "state"]} query=${{ ...chosen, offset: Math.max(0, offset - PAGE) || "" }}>← Before<//>` : null}
      ${data.next ? html`<${Link} to=${["p", uid, "state"]} query=${{ ...chosen, offset: data.next }}>Next →<//>` : null}
    </nav>`}<//>`;
}

const Tables = ({ uid, chosen, data }) => data.tables.length > 1
  ? html`<p>Tables: ${data.tables.map((name, index) => html`${index ? ", " : ""}${name === data.table
      ? html`<strong>${name}</strong>`
      : html`<${Link} to=${["p", uid, "state"]} query=${{ stage: chosen.stage, checkpoint: chosen.checkpoint, table: name }}>${name}<//>`}`)}</p>`
  : null;

function KeyForm({ uid, text = "" }) {
  const find = (event) => {
    event.preventDefault();
    go(["p", uid, "state", "key"], { key: new FormData(event.target).get("key").trim() });
  };
  return html`<form class="filters" onSubmit=${find}>
    <label>Key <input name="key" value=${text} required placeholder="user=7, day=2026-01-31"
      title="Every column of the key as column=value; a column alone is null, and stands first" /></label>
    <button class="button" type="submit">Look up in all stages</button>
  </form>`;
}

function Key({ uid, path, query }) {
  const text = query.key ?? "";
  const key = text.split(/,\s*(?=[^\s,=]+=)/);
  const resource = useResource(text ? withQuery(path("state"), { key }) : null, { everyMs: 0 });
  return html`<p class="crumbs"><${Link} to=${["p", uid, "state"]}>State<//></p>
    <h2 tabindex="-1">Key</h2>
    <${KeyForm} uid=${uid} text=${text} />
    ${text ? html`<${Resource} resource=${resource}>${(data) => html`
      <p class="muted">In the retained checkpoints ${data.checkpoints.join(", ")}.</p>
      ${data.tables.map((table) => html`<${KeyInTable} key=${table.stage + table.table} table=${table} />`)}
      ${data.others.length ? html`<p class="muted">Kept by other keys: ${data.others.map(({ stage, table, key_columns: names }) =>
        `${stage} (${table}) by ${names.join(", ")}`).join("; ")}.</p>` : null}`}<//>` : null}`;
}

function KeyInTable({ table }) {
  const rows = table.versions.flatMap((version) => {
    const of = version.first === version.last ? `${version.first}` : `${version.first} to ${version.last}`;
    const shown = version.rows.map((row, index) => ({ of, row, place: index }));
    if (!shown.length) return [{ of, row: null, place: 0 }];
    return version.has_more ? [...shown, { of: `${of}, and more`, row: {}, place: -1 }] : shown;
  });
  const columns = columnsOf(table).map((column) => ({
    ...column,
    value: ({ row }) => (row ? row[column.name] : ""),
    cell: ({ row }) => (row ? shown(row[column.name]) : html`<span class="absent">not there</span>`),
  }));
  const first = { name: "_of", title: "Checkpoint", value: ({ of }) => of };
  return html`<h3>${table.stage}</h3>
    <${Table} caption="${table.table} of ${table.stage}" columns=${[first, ...columns]} rows=${rows}
      keyOf=${({ of, place }) => `${of} ${place}`} />`;
}

const columnsOf = ({ columns }) => columns.map(({ name, type, is_key: isKey }) => ({
  name,
  title: html`${isKey ? html`<span class="badge calm">key</span> ` : null}${name}`,
  hint: type,
  kind: /Int|Float|UInt|Decimal/.test(type) ? "number" : "",
  value: (row) => row[name],
  cell: (row) => shown(row[name]),
}));
