/** The pipeline as it is declared, each node with what the last completed checkpoint says of it. */

import { useResource } from "../api.js";
import { count, duration, isAbsent, pending, perSecond, size, watermark } from "../format.js";
import { html } from "../html.js";
import { Link, Resource, Table, numeric } from "../parts.js";
import { Window } from "./lag.js";
import { BOX, curve, layout } from "./layout.js";

export function Graph({ uid, path }) {
  const resource = useResource(path());
  const newest = useResource(`${path("checkpoints")}?limit=1`);
  return html`<h2 tabindex="-1">Graph</h2>
    <${Resource} resource=${resource}>${(data) => html`<${Drawn} uid=${uid} data=${data} newest=${newest.data?.history?.[0]} />`}<//>`;
}

function Drawn({ uid, data, newest }) {
  const { places, width, height } = layout(data.nodes, data.edges);
  return html`
    <div class="scroll" role="region" aria-label="Graph of ${uid}" tabindex="0">
      <div class="graph" style="width:${width}px;height:${height}px">
        <svg width=${width} height=${height} aria-hidden="true">
          <defs><marker id="arrow" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" orient="auto">
            <path d="M0,0 L8,4 L0,8 z" /></marker></defs>
          ${data.edges.map(({ producer, consumer }) => html`<path class="edge" marker-end="url(#arrow)"
            d=${curve(places.get(producer), places.get(consumer))} />`)}
        </svg>
        ${data.nodes.map((node) => html`<${Node} key=${node.uid} uid=${uid} node=${node} at=${places.get(node.uid)} newest=${newest} />`)}
      </div>
    </div>
    <h3>Nodes</h3>
    <p class="muted">Figures are of the last completed checkpoint.<${Window} pipeline=${data} /></p>
    <${Table} caption="Nodes of ${uid}" columns=${columns(uid)} rows=${data.nodes} keyOf=${(node) => node.uid} />`;
}

/** Failing: the newest checkpoint failed here; behind, as the model says: more waits, or others are further. */
function toneOf(node, newest) {
  if (node.kind === "stage" && newest?.status === "FAILED" && (newest.failure_message ?? "").includes(node.uid)) return "bad";
  return node.is_behind ? "warn" : "";
}

const facts = (node) => [
  ["epoch", node.epoch],
  ["parallelism", node.parallelism],
  ["pending", node.lag ? pending(node.lag) : null],
  ["watermark", isAbsent(node.watermark) ? null : watermark(node.watermark)],
  ["before the trigger", isAbsent(node.watermark_lag) ? null : duration(node.watermark_lag)],
  ["state", node.state_size ? size(node.state_size) : null],
  ["rows", rows(node)],
  ["flow", flow(node)],
  ["late", node.late_rows ? count(node.late_rows) : null],
].filter(([, value]) => !isAbsent(value));

/** Rows per second: in and out of a stage, out of a source. */
function flow({ rates }) {
  const told = [["in", rates?.rows_in_per_second], ["out", rates?.rows_out_per_second]];
  return told.filter(([, value]) => !isAbsent(value)).map(([way, value]) => `${perSecond(value)} ${way}`).join(", ") || null;
}

function rows(node) {
  if (isAbsent(node.rows_in)) return isAbsent(node.rows_out) ? null : `${count(node.rows_out)} out`;
  return isAbsent(node.rows_out) ? `${count(node.rows_in)} in` : `${count(node.rows_in)} in, ${count(node.rows_out)} out`;
}

function Node({ uid, node, at, newest }) {
  const tone = toneOf(node, newest);
  const name = node.kind === "stage" && !isAbsent(node.epoch)
    ? html`<${Link} to=${["p", uid, "checkpoints", node.epoch, node.uid]}>${node.uid}<//>` : node.uid;
  return html`<div class="node ${node.kind} ${tone}" style="left:${at.x}px;top:${at.y}px;width:${BOX.width}px;height:${BOX.height}px">
    <div class="kind">${node.kind} · ${node.operation}${node.is_finished ? " · finished" : ""}${
      tone === "bad" ? " · failing" : tone === "warn" ? " · behind" : ""}</div>
    <strong>${name}</strong>
    <ul>${facts(node).map(([title, value]) => html`<li><span class="muted">${title}</span> ${value}</li>`)}</ul>
  </div>`;
}

const columns = (uid) => [
  { name: "uid", title: "Node", value: (node) => node.uid },
  { name: "kind", title: "Kind", value: (node) => node.kind },
  { name: "operation", title: "Operation", value: (node) => node.operation },
  numeric("epoch", "Epoch", (node) => node.epoch, count, "The last completed checkpoint that it took part in; of a sink the one that readers see"),
  numeric("parallelism", "Parallelism", (node) => node.parallelism, count),
  {
    name: "pending", title: "Pending", kind: "number", hint: "What was there at the newest trigger, and is in no completed checkpoint",
    value: ({ lag }) => (lag ? lag.pending_records ?? lag.pending_bytes ?? 0 : null), cell: ({ lag }) => (lag ? pending(lag) : "–"),
  },
  numeric("watermark", "Watermark", (node) => node.watermark, watermark),
  numeric("behind", "Before the trigger", (node) => node.watermark_lag, duration, "From the watermark to the trigger of the epoch"),
  numeric("state", "State", (node) => node.state_size, size),
  numeric("in", "Rows in", (node) => node.rows_in, count),
  numeric("out", "Rows out", (node) => node.rows_out, count),
  numeric("in-rate", "In/s", ({ rates }) => rates?.rows_in_per_second, perSecond, "Rows read per second"),
  numeric("out-rate", "Out/s", ({ rates }) => rates?.rows_out_per_second, perSecond, "Rows written per second"),
  numeric("bytes-rate", "Bytes/s", ({ rates }) => rates?.bytes_out_per_second, (value) => perSecond(value, size), "Bytes written per second, as they are stored; of a source read"),
  numeric("late", "Late", (node) => node.late_rows, count),
];

