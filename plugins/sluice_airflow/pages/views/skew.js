/** How unevenly subtasks work, over the last completed checkpoints: the slowest decides when a stage has acknowledged. */

import { useResource } from "../api.js";
import { count, duration } from "../format.js";
import { html } from "../html.js";
import { Empty, Link, Resource, Table, figuresOf } from "../parts.js";

const ROWS = [{ path: "duration", title: "Time", show: duration }, ...figuresOf("subtask")];
const UNEVEN = 2;

export function Skew({ uid, path }) {
  const resource = useResource(path("skew"), { everyMs: 30_000 });
  return html`<h2 tabindex="-1">Skew</h2>
    <${Resource} resource=${resource}>${({ checkpoints, stages, late_bounds: bounds }) => checkpoints
      ? html`<p class="muted">Over the last ${count(checkpoints)} completed checkpoint${checkpoints === 1 ? "" : "s"} of the present parallelism.
          A stage waits for its slowest subtask: ${UNEVEN} means that it takes twice as long as half of them.</p>
        ${stages.map((stage) => html`<${Stage} key=${stage.id} uid=${uid} stage=${stage} of=${checkpoints} bounds=${bounds} />`)}`
      : html`<${Empty} title="No completed checkpoint"><p>Its subtasks are compared once one has completed.</p><//>`}<//>`;
}

function Stage({ uid, stage, of, bounds }) {
  const rows = ROWS.flatMap(({ path: name, title, show }) =>
    (stage.figures[name] ? [{ name, title, show, ...stage.figures[name], newest: stage.figures[name].points.at(-1) }] : []));
  return html`<h3>${stage.id}, ${count(stage.num_subtasks)} subtask${stage.num_subtasks === 1 ? "" : "s"}</h3>
    ${rows.length ? html`<${Table} caption="Skew of ${stage.id}" columns=${columns(uid, stage.id, of)} rows=${rows} keyOf=${({ name }) => name}
      rowClass=${({ ratio }) => (ratio >= UNEVEN ? "late" : "")} />` : html`<p class="muted">Its subtasks were not measured.</p>`}
    <${Hot} stage=${stage} /><${Late} stage=${stage} bounds=${bounds} />`;
}

/** Where one key, or a few, have most of the rows: no other parallelism spreads them. */
function Hot({ stage }) {
  const { hot_groups: groups, rows_in: all } = stage;
  return groups.length ? html`<${Table} caption="Hot key groups of ${stage.id}" rows=${groups} keyOf=${({ group }) => group} columns=${[
    { name: "group", title: "Hot key group", kind: "number", value: ({ group }) => group },
    { name: "rows", title: "Rows", kind: "number", value: ({ rows }) => rows, cell: ({ rows }) => count(rows) },
    { name: "share", title: "Of all", kind: "number", cell: ({ rows }) => (all ? `${Math.round((100 * rows) / all)} %` : "–") },
    { name: "keys", title: "Keys that come often", cell: ({ keys }) => (keys.length ? html`<code>${keys.join("; ")}</code>` : html`<span class="absent">not shown</span>`) },
  ]} />` : null;
}

/** How late rows are behind the watermark: how much more lag would have kept how many. */
function Late({ stage, bounds }) {
  const rows = Object.entries(stage.late).map(([of, late]) => ({ of, ...late }));
  return rows.length ? html`<${Table} caption="Late rows of ${stage.id}" rows=${rows} keyOf=${({ of }) => of} columns=${[
    { name: "of", title: "Late rows of", value: ({ of }) => of },
    { name: "rows", title: "Rows", kind: "number", value: (late) => late.rows, cell: (late) => count(late.rows) },
    { name: "most", title: "Farthest behind", kind: "number", value: (late) => late.most_ms, cell: (late) => duration(late.most_ms) },
    ...bounds.map((bound, index) => ({ name: `within-${bound}`, title: `By ${duration(bound)} at most`, kind: "number", cell: ({ within }) => count(within[index]) })),
  ]} />` : null;
}

const columns = (uid, stage, of) => [
  { name: "figure", title: "Figure", value: ({ title }) => title },
  { name: "ratio", title: "Largest / median", kind: "number", value: ({ ratio }) => ratio, cell: ({ ratio }) => (ratio == null ? "–" : ratio.toFixed(1)) },
  { name: "worst", title: "Worst subtask", cell: ({ worst, worst_in: times }) => (times ? `${worst}, in ${count(times)} of ${count(of)}` : "none") },
  { name: "median", title: "Median, newest", kind: "number", cell: ({ newest, show }) => show(newest.median) },
  { name: "max", title: "Largest, newest", kind: "number", cell: ({ newest, show }) => html`<${Link} to=${["p", uid, "checkpoints", newest.checkpoint, stage]}>${show(newest.max)}<//>` },
  { name: "course", title: "Largest / median over time", kind: "wide", cell: ({ points, title }) => html`<${Course} points=${points} title=${title} />` },
];

/** The ratio of each checkpoint, old to new, from 1 up. */
function Course({ points, title }) {
  const ratios = points.map(({ max, median }) => (median ? max / median : 1));
  const most = Math.max(UNEVEN, ...ratios);
  const x = (index) => (ratios.length < 2 ? 0 : (160 * index) / (ratios.length - 1));
  const place = ratios.map((ratio, index) => `${x(index).toFixed(1)},${(28 - (26 * (ratio - 1)) / (most - 1)).toFixed(1)}`);
  return html`<svg class="course" viewBox="0 0 160 30" role="img" aria-label="${title}: ${Math.min(...ratios).toFixed(1)} to ${Math.max(...ratios).toFixed(1)}, last ${ratios.at(-1).toFixed(1)}">
    <polyline points=${place.join(" ")} /></svg>`;
}
