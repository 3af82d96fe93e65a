/** The subtasks of a stage in one checkpoint: a bar each, so that the late and the large stand out. */

import { useResource } from "../api.js";
import { count, duration, sinceThen, size } from "../format.js";
import { html } from "../html.js";
import { Badge, Bar, Empty, Moment, Resource, Table, distributionsOf, figureColumns, numeric } from "../parts.js";
import { Distributions } from "./distributions.js";

export function Subtasks({ path, checkpoint, stage, now }) {
  const isPending = checkpoint.status === "IN_PROGRESS";
  const resource = useResource(path("checkpoints", checkpoint.id, "subtasks", stage.id), { everyMs: isPending ? 3_000 : 0 });
  return html`<h3>Subtasks of ${stage.id}</h3>
    <${Resource} resource=${resource}>${(data) => data.subtasks?.length
      ? html`<${Shown} data=${data} stage=${stage} isPending=${isPending} now=${now} triggered=${checkpoint.trigger_timestamp} />`
      : html`<${Empty} title="No figures of its subtasks">
          <p>The coordinator acknowledged for this stage (it was overtaken), or its subtasks were not kept.</p><//>`}<//>`;
}

const LEGEND = [["delay", "start delay"], ["sync", "reading, merging"], ["async", "waiting for uploads"], ["wait", "other, or waited for"]];

function Shown({ data, stage, isPending, now, triggered }) {
  const rows = byLateness(data.subtasks);
  const most = Math.max(1, ...rows.map((one) => one.end_to_end_duration ?? 0), isPending ? sinceThen(triggered, now) : 0);
  const largest = Math.max(1, ...rows.map((one) => one.checkpointed_size ?? 0));
  return html`
    <${Distributions} caption="Distribution over the subtasks of ${stage.id}" rows=${distributionsOf("subtask", data.summary)} />
    <p class="legend" aria-hidden="true">${LEGEND.map(([kind, title]) => html`<span><span class="key ${kind}"></span>${title}</span>`)}</p>
    <${Table} caption="Subtasks of ${stage.id}, the latest first" columns=${columns({ most, largest, now, triggered, isPending })}
      rows=${rows} keyOf=${({ index }) => index} rowClass=${(one) => (isDone(one) ? "" : "late")} first=${100} />`;
}

const isDone = ({ status }) => (status ?? "completed") === "completed";

const byLateness = (subtasks) => [...subtasks].sort((one, other) =>
  isDone(one) - isDone(other) || (other.end_to_end_duration ?? 0) - (one.end_to_end_duration ?? 0) || one.index - other.index);

/** Where the time went; what is no part of it, or is still running, comes last. */
function timeOf(one, { now, triggered, isPending }) {
  const whole = isDone(one) ? one.end_to_end_duration ?? 0 : isPending ? sinceThen(triggered, now) : 0;
  const delay = one.start_delay ?? 0;
  const sync = one.checkpoint?.sync ?? 0;
  const upload = one.checkpoint?.async ?? 0;
  return [["delay", delay], ["sync", sync], ["async", upload], ["wait", Math.max(0, whole - delay - sync - upload)]];
}

const columns = (scale) => [
  numeric("index", "Subtask", ({ index }) => index, String),
  { name: "status", title: "Status", value: ({ status }) => status ?? "completed", cell: (one) => (isDone(one) ? html`<${Badge} status="completed" />` : html`<span class="badge warn">${scale.isPending ? "late" : "did not acknowledge"}</span>`) },
  ...figureColumns("subtask", {
    end_to_end_duration: {
      kind: "wide",
      cell: (one) => html`<${Bar} parts=${timeOf(one, scale)} most=${scale.most} />${isDone(one) ? duration(one.end_to_end_duration) : scale.isPending ? `${duration(sinceThen(scale.triggered, scale.now))} so far` : "–"}`,
    },
    checkpointed_size: {
      kind: "wide",
      cell: (one) => html`<${Bar} parts=${[["size", one.checkpointed_size ?? 0]]} most=${scale.largest} />${size(one.checkpointed_size)}`,
    },
  }),
  numeric("alignment", "Alignment", (one) => one.alignment?.duration, duration, "Of its stage: from its first input's barrier to its last input's"),
  { name: "started", title: "Started", value: (one) => one.start_timestamp, cell: (one) => html`<${Moment} at=${one.start_timestamp} />` },
  { name: "acked", title: "Acknowledged", value: (one) => one.ack_timestamp, cell: (one) => html`<${Moment} at=${one.ack_timestamp} />` },
];
