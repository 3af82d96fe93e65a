/** What the pages are made of: figures, badges, tables, and the states without data. */

import { useState } from "./vendor/preact-hooks.js";
import { FIGURES } from "./figures.js";
import { ago, count, duration, isAbsent, moment, size, watermark, words } from "./format.js";
import { html } from "./html.js";
import { addressOf } from "./route.js";

const TONES = {
  COMPLETED: "good", RUNNING: "good", FINISHED: "good", completed: "good",
  IN_PROGRESS: "busy", RESTARTING: "warn", SUSPENDED: "calm", CANCELED: "calm", CREATED: "calm",
  FAILED: "bad", pending_or_failed: "warn",
};

export const Link = ({ to, query, children, ...rest }) =>
  html`<a href=${addressOf(to, query)} ...${rest}>${children}</a>`;

export const Badge = ({ status }) =>
  html`<span class="badge ${TONES[status] ?? "calm"}">${words(status)}</span>`;

export const Moment = ({ at, now }) =>
  isAbsent(at)
    ? html`<span class="absent">–</span>`
    : html`<time dateTime=${new Date(at).toISOString()} title="${new Date(at).toISOString()}">${
        now ? ago(at, now) : moment(at)
      }</time>`;

/** A list of named figures; what was not measured is left out. */
export const Figures = ({ of }) => html`<dl class="figures">
  ${of.filter(([, value]) => !isAbsent(value) && value !== "").map(
    ([name, value, hint, kind]) => html`<div class=${kind}><dt title=${hint}>${name}</dt><dd>${value}</dd></div>`,
  )}
</dl>`;

export const Empty = ({ title, children }) =>
  html`<section class="empty"><h3>${title}</h3><div>${children}</div></section>`;

export const Loading = () => html`<p class="loading" role="status">Loading…</p>`;

const ADVICE = {
  0: "Check that Airflow's API server runs; this page tries again by itself.",
  401: "Sign in to Airflow again, then open this page once more.",
  403: "Ask an administrator of this Airflow for access to the pipeline's DAG.",
  404: "It may be gone: a subsumed checkpoint, or a pipeline that is not declared any more.",
  429: "Too many requests at once; this page tries again by itself.",
};

const TITLES = { 409: "This cannot be done now", 422: "This was not understood" };

export function ProblemNote({ problem, hasData }) {
  if (!problem) return null;
  if (problem.againMs) return html`<div class="problem slow" role="status">
    <strong>The store is slow</strong>
    <p>${problem.detail}</p>
    <p>${hasData ? "Below is what was known before." : "The rest is shown when it comes."}</p>
  </div>`;
  const advice = ADVICE[problem.status] ?? (problem.status >= 500
    ? "Look into the API server's log; `sluice doctor` checks the store and its settings."
    : "");
  return html`<div class="problem" role="alert">
    <strong>${TITLES[problem.status] ?? (problem.title || "This did not work")}</strong>
    ${problem.detail && problem.detail !== problem.title ? html`<p>${problem.detail}</p>` : null}
    ${advice ? html`<p>${advice}</p>` : null}
    ${hasData ? html`<p>Below is what was known before.</p>` : null}
  </div>`;
}

/** The states that every page has before its data is there, and *children* with the data. */
export function Resource({ resource, children }) {
  const { data, problem, isLoading } = resource;
  return html`
    <${ProblemNote} problem=${problem} hasData=${Boolean(data)} />
    ${isLoading ? html`<${Loading} />` : null}
    ${data ? children(data) : null}`;
}

/** A failure in words; the reason leads to what it means and what to do. */
export function Failure({ reason, message }) {
  if (!reason && !message) return null;
  return html`<div class="failure">
    ${reason ? html`<${Link} to=${["reasons", reason]}>${words(reason)}<//>` : null}
    ${message ? html`<p>${message}</p>` : null}
  </div>`;
}

/** Where *value* lies below *most*; the number is said beside it, so the bar is decoration. */
export const Bar = ({ parts, most }) => html`<span class="bar" aria-hidden="true">
  ${parts.map(([kind, value]) => value > 0
    ? html`<span class=${kind} style="width:${Math.min(100, (100 * value) / (most || 1))}%"></span>`
    : null)}
</span>`;

/**
 * A table that can be sorted by its columns: `{name, title, value, cell, hint, kind}`, where `value`
 * sorts and `cell` shows. A column without any value is left out, and more than *first* rows wait
 * behind a button.
 */
export function Table({ caption, columns, rows, keyOf, rowClass, first = 200 }) {
  const [order, setOrder] = useState({ name: "", down: true });
  const [isWhole, setWhole] = useState(false);
  const told = columns.filter((one) => !one.value || rows.some((row) => !isAbsent(one.value(row))));
  const column = told.find(({ name }) => name === order.name);
  const sorted = column ? [...rows].sort(by(column.value, order.down)) : rows;
  const shown = isWhole ? sorted : sorted.slice(0, first);
  const turn = (name) => setOrder({ name, down: order.name === name ? !order.down : true });
  return html`<div class="scroll" role="region" aria-label=${caption} tabindex="0">
    <table>
      <caption class="unseen">${caption}</caption>
      <thead><tr>${told.map((one) => html`<${Head} key=${one.name} column=${one} order=${order} turn=${turn} />`)}</tr></thead>
      <tbody>${shown.map((row, index) => html`<tr key=${keyOf(row)} class=${rowClass?.(row)}>
        ${told.map(({ cell, value, kind }) => html`<td class=${kind}>${cell ? cell(row, index) : value(row)}</td>`)}
      </tr>`)}</tbody>
    </table>
    ${shown.length < sorted.length ? html`<button type="button" class="more" onClick=${() => setWhole(true)}>
      Show all ${count(sorted.length)}</button>` : null}
  </div>`;
}

function Head({ column: { name, title, value, hint, kind }, order, turn }) {
  if (!value) return html`<th scope="col" class=${kind} title=${hint}>${title}</th>`;
  const isOrder = order.name === name;
  const direction = order.down ? "descending" : "ascending";
  return html`<th scope="col" class=${kind} title=${hint} aria-sort=${isOrder ? direction : "none"}>
    <button type="button" onClick=${() => turn(name)}>${title}<span aria-hidden="true">${
      isOrder ? (order.down ? " ↓" : " ↑") : ""}</span></button>
  </th>`;
}

const by = (value, down) => (one, other) => {
  const [left, right] = [value(one), value(other)];
  if (isAbsent(left) || isAbsent(right)) return isAbsent(left) - isAbsent(right);
  const ordered = left < right ? -1 : left > right ? 1 : 0;
  return down ? -ordered : ordered;
};

/** A column whose values are bytes, milliseconds or plain numbers. */
export const numeric = (name, title, value, show, hint) =>
  ({ name, title, value, hint, kind: "number", cell: (row) => show(value(row)) });

const SHOWN = { "number": count, "bytes": size, "ms": duration, "ms since 1970": watermark };
const requestsOf = ({ requests }) => (requests ? requests.gets + requests.puts + requests.lists + requests.deletes : undefined);
const valueAt = (path) => (path === "requests.total" ? requestsOf : (one) => path.split(".").reduce((value, name) => value?.[name], one));

/** The figures of a checkpoint, a stage or a subtask: *of* takes one from the record, *show* tells its value. */
export const figuresOf = (scope) => FIGURES[scope].map((one) => ({ ...one, of: valueAt(one.path), show: SHOWN[one.unit] }));

/** Their columns; *cells* has, by path, what shows more than the value. */
export const figureColumns = (scope, cells = {}) => figuresOf(scope).map(({ path, title, says, of, show }) =>
  ({ ...numeric(path, title, of, show, says), ...cells[path] }));

/** A row of a table of distributions for each that *summary* has. */
export const distributionsOf = (scope, summary) => figuresOf(scope).map(({ path, title, show }) =>
  [title, valueAt(path.replace("checkpoint.", "checkpoint_duration."))(summary ?? {}), show]);
