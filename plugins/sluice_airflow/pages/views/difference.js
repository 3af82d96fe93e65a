/** What changed between two snapshots: their figures, and the keys of a stage's state with both rows. */

import { useState } from "../vendor/preact-hooks.js";
import { useResource, withQuery } from "../api.js";
import { count, size, watermark } from "../format.js";
import { html } from "../html.js";
import { Empty, Figures, Link, Moment, ProblemNote, Resource, Table } from "../parts.js";
import { go } from "../route.js";
import { nameOf, namedBy } from "./snapshots.js";

const PAGE = 100;
const KINDS = [["", "All"], ["added", "Added"], ["removed", "Removed"], ["changed", "Changed"]];
const TONES = { added: "good", removed: "bad", changed: "warn" };

export function Difference({ uid, path, query }) {
  const listed = useResource(path("snapshots"), { everyMs: 0 });
  return html`<p class="crumbs"><${Link} to=${["p", uid, "snapshots"]}>Snapshots<//></p>
    <h2 tabindex="-1">Compare</h2>
    <${Resource} resource=${listed}>${({ snapshots }) => (snapshots.length < 2
      ? html`<${Empty} title="There are not two snapshots yet"><p>Every retained checkpoint and every savepoint can be compared;
          <code>num_retained</code> says how many checkpoints stay.</p><//>`
      : html`<${Compared} uid=${uid} path=${path} snapshots=${snapshots} query=${query} />`)}<//>`;
}

/** Without a choice it is the newest snapshot, and the checkpoint before it: a savepoint is one, too. */
function Compared({ uid, path, snapshots, query }) {
  const names = snapshots.map(namedBy);
  const to = query.to || names[0];
  const newest = snapshots[Math.max(0, names.indexOf(to))];
  const from = query.from || namedBy(snapshots.find((one) => one.id < newest.id) ?? snapshots[1]);
  const chosen = { ...query, from, to };
  return html`<${Snapshots} uid=${uid} snapshots=${snapshots} chosen=${chosen} />
    ${from === to
      ? html`<${Empty} title="That is one snapshot"><p>Choose two different ones.</p><//>`
      : html`<${Shown} key=${`${from} ${to}`} uid=${uid} path=${path} chosen=${chosen} />`}`;
}

function Snapshots({ uid, snapshots, chosen }) {
  const compare = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    go(["p", uid, "state", "compare"], { from: form.get("from"), to: form.get("to"), stage: chosen.stage });
  };
  const choice = (name, title) => html`<label>${title} <select name=${name}>${snapshots.map((one) => html`
    <option value=${namedBy(one)} selected=${namedBy(one) === chosen[name]}>${nameOf(one)}</option>`)}</select></label>`;
  return html`<form class="filters" onSubmit=${compare}>
    ${choice("from", "From")} ${choice("to", "To")}
    <button class="button" type="submit">Compare</button></form>`;
}

function Shown({ uid, path, chosen }) {
  const asked = { from: chosen.from, to: chosen.to };
  const resource = useResource(withQuery(path("snapshots", "difference"), asked), { everyMs: 0 });
  return html`<${Resource} resource=${resource}>${(data) => html`
    <p class="muted">Checkpoint ${data.before.id}, <${Moment} at=${data.before.triggered_at_ms} />, and checkpoint ${data.after.id
      }, <${Moment} at=${data.after.triggered_at_ms} />.</p>
    ${data.tables.length
      ? html`<${State} uid=${uid} path=${path} chosen=${chosen} tables=${data.tables} />`
      : html`<${Empty} title="No stage keeps state"><p>Keyed stages do: windows, aggregates, joins, deduplication.</p><//>`}
    <h3>Besides state</h3>
    ${data.differences.length
      ? html`<${Table} caption="What differs besides state" columns=${FIGURES} rows=${data.differences}
          keyOf=${(one) => `${one.about} ${one.name} ${one.what}`} />`
      : html`<p class="muted">Nothing differs: sources, watermarks, parallelism and tables are the same.</p>`}`}<//>`;
}

const told = (what, value) => {
  if (value === null) return html`<span class="absent">–</span>`;
  if (what === "watermark") return watermark(value);
  if (what === "bytes published") return size(value);
  return typeof value === "number" ? count(value) : value;
};

const FIGURES = [
  { name: "about", title: "Of", value: (one) => one.about },
  { name: "name", title: "Name", value: (one) => one.name },
  { name: "what", title: "What", value: (one) => one.what },
  { name: "before", title: "From", cell: (one) => told(one.what, one.before) },
  { name: "after", title: "To", cell: (one) => told(one.what, one.after) },
];

/** The chosen table of state; without a choice the first in which a key may differ. */
function State({ uid, path, chosen, tables }) {
  const isChosen = (one) => one.stage === chosen.stage && (!chosen.table || one.table === chosen.table);
  const files = tables.find(isChosen) ?? tables.find((one) => one.may_differ) ?? tables[0];
  const asked = { ...chosen, stage: files.stage, table: files.table };
  return html`<h3>State of ${nameOfTable(files, tables)}</h3>
    <${Filters} uid=${uid} tables=${tables} asked=${asked} />
    <${Figures} of=${[
      ["From", size(files.before.size_bytes), `${files.before.segments} segments`],
      ["To", size(files.after.size_bytes), `${files.after.segments} segments`],
      ["The same files", size(files.shared.size_bytes), "What both name need not be compared"]]} />
    <${Rows} key=${JSON.stringify(asked)} uid=${uid} path=${path} asked=${asked} />`;
}

const nameOfTable = ({ stage, table }, tables) =>
  (tables.filter((one) => one.stage === stage).length > 1 ? `${stage}, ${table}` : stage);

function Filters({ uid, tables, asked }) {
  const show = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const { stage, table } = tables[Number(form.get("table"))];
    go(["p", uid, "state", "compare"], {
      from: asked.from, to: asked.to, stage, table, kind: form.get("kind"), key: form.get("key").trim(),
    });
  };
  return html`<form class="filters" onSubmit=${show}>
    <label>Stage <select name="table">${tables.map((one, index) => html`
      <option value=${index} selected=${one.stage === asked.stage && one.table === asked.table}>${nameOfTable(one, tables)}${
        one.may_differ ? "" : " (the same)"}</option>`)}</select></label>
    <label>Keys <select name="kind">${KINDS.map(([value, title]) => html`
      <option value=${value} selected=${value === (asked.kind ?? "")}>${title}</option>`)}</select></label>
    <label>Only the key <input name="key" value=${asked.key ?? ""} placeholder="column=value" /></label>
    <button class="button" type="submit">Show</button></form>`;
}

function Rows({ uid, path, asked }) {
  const { from, to, table, kind, key, after } = asked;
  const route = path("state", asked.stage, "difference");
  const page = useResource(withQuery(route, { from, to, table, kind, key, after, limit: PAGE }), { everyMs: 0 });
  const place = ["p", uid, "state", "compare"];
  return html`<${Resource} resource=${page}>${(data) => html`
    <${Counted} data=${data} route=${route} asked=${{ from, to, table, kind, key }} />
    ${data.changes.length
      ? html`<${Table} caption="Keys of ${data.stage} that differ" columns=${columnsOf(data)} rows=${data.changes}
          keyOf=${(one) => JSON.stringify(one.key)} />`
      : html`<${Nothing} data=${data} asked=${asked} />`}
    <nav class="pager" aria-label="Pages of the keys">
      ${after ? html`<${Link} to=${place} query=${{ ...asked, after: "" }}>← First<//>` : null}
      ${data.next ? html`<${Link} to=${place} query=${{ ...asked, after: data.next }}>Next →<//>` : null}
    </nav>`}<//>`;
}

/** All pages are counted when that is asked for: it may take a reading of both states. */
function Counted({ data, route, asked }) {
  const [isAsked, setAsked] = useState(false);
  const whole = useResource(isAsked ? withQuery(route, { ...asked, limit: 0 }) : null, { everyMs: 0 });
  const all = whole.data;
  return html`<div class="muted"><p role="status">${words(data.counts)}${
      data.cut === "limit" ? " on this page, and there are more." : data.cut === "rows"
        ? ` in the ${count(data.rows_compared)} rows that this page compared, and there may be more.` : "."}
      ${all ? html` <strong>In all ${words(all.counts)}${all.cut ? ` in the first ${count(all.rows_compared)} rows` : ""}.</strong>` : null}</p>
    ${data.cut && !all ? html`<button type="button" class="button" disabled=${whole.isLoading} onClick=${() => setAsked(true)}>
      ${whole.isLoading ? "Counting…" : "Count all"}</button>` : null}
    <${ProblemNote} problem=${whole.problem} /></div>`;
}

function Nothing({ data, asked }) {
  if (data.problem) return html`<${Empty} title="The keys cannot be compared"><p>${data.problem}.</p><//>`;
  if (data.next) return html`<${Empty} title="No key differs here"><p>Next compares the rows behind these.</p><//>`;
  return asked.kind || asked.key
    ? html`<${Empty} title="No such key differs"><p>Choose all keys, or another one: write a column of the key, as in
        <code>user=7</code>.</p><//>`
    : html`<${Empty} title="No key differs"><p>The state of this stage is the same in both.</p><//>`;
}

const words = ({ added, removed, changed }) => `${count(added)} added, ${count(removed)} removed, ${count(changed)} changed`;

const columnsOf = ({ columns }) => [
  { name: " kind", title: "Change", value: ({ kind }) => kind, cell: ({ kind }) => html`<span class="badge ${TONES[kind]}">${kind}</span>` },
  ...columns.filter((one) => one.is_key).map(({ name, after, before }) => ({
    name, title: html`<span class="badge calm">key</span> ${name}`, hint: after ?? before,
    value: ({ key }) => key[name], cell: ({ key }) => shown(key[name]),
  })),
  ...columns.filter((one) => !one.is_key).map((one) => ({
    name: one.name, title: one.name, hint: hintOf(one), cell: (change) => both(change, one.name),
  })),
];

const hintOf = ({ before, after }) => {
  if (before === null) return `${after}; only in the second`;
  if (after === null) return `${before}; only in the first`;
  return before === after ? after : `${before}, then ${after}`;
};

function both({ before, after, changed }, name) {
  if (changed.includes(name)) {
    return html`<del>${shown(before[name])}</del> <span aria-hidden="true">→</span><span class="unseen">, now</span> <ins>${shown(after[name])}</ins>`;
  }
  return shown(after && name in after ? after[name] : before?.[name]);
}

export function shown(value) {
  if (value === null || value === undefined) return html`<span class="absent">null</span>`;
  return typeof value === "object" ? html`<code>${JSON.stringify(value)}</code>` : String(value);
}
