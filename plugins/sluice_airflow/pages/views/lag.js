/** How far each source is behind, as of the newest trigger, and how fast its rows flow. */

import { count, duration, isAbsent, pending, perSecond, size, watermark } from "../format.js";
import { html } from "../html.js";
import { Moment, Table, numeric } from "../parts.js";

export function Lags({ pipeline, now }) {
  const { lag = [], nodes = [], last_completed: done } = pipeline;
  if (!lag.length) return null;
  const hasWatermark = lag.some((one) => !isAbsent(one.watermark));
  const rates = new Map(nodes.map(({ uid, rates: known }) => [uid, known ?? {}]));
  return html`<section><h3>Sources</h3>
    <${Table} caption="Sources of ${pipeline.uid}" columns=${columns(rates, now)} rows=${lag}
      keyOf=${(one) => one.id} rowClass=${(one) => (one.is_behind ? "late" : "")} />
    <p class="muted">Pending is what was there at the newest trigger, and is in no completed checkpoint.
      ${done && hasWatermark ? html` The watermark is that of checkpoint ${done.id}, <${Moment} at=${done.completed_timestamp} now=${now} />.` : null}
      <${Window} pipeline=${pipeline} /></p>
  </section>`;
}

/** Over which time rates are. */
export const Window = ({ pipeline: { rates_window: window, rates_checkpoints: many } }) => isAbsent(window)
  ? null : ` Rates are over ${duration(window)}, ${count(many)} completed checkpoint${many === 1 ? "" : "s"}.`;

const columns = (rates, now) => [
  { name: "id", title: "Source", value: ({ id }) => id, cell: Name },
  {
    name: "pending", title: "Pending", kind: "number", cell: pending,
    value: (one) => one.pending_records ?? one.pending_bytes ?? 0,
    hint: "What was there at the newest trigger, and is in no completed checkpoint",
  },
  { name: "as-of", title: "As of", value: (one) => one.as_of, cell: (one) => html`<${Moment} at=${one.as_of} now=${now} />` },
  numeric("rate", "Records/s", ({ id }) => rates.get(id)?.rows_out_per_second, perSecond),
  numeric("bytes", "Bytes/s", ({ id }) => rates.get(id)?.bytes_out_per_second, (value) => perSecond(value, size)),
  numeric("watermark", "Watermark", (one) => one.watermark, watermark),
  numeric("behind", "Before the trigger", (one) => one.watermark_lag, duration, "From the watermark to the trigger of the checkpoint that it is of"),
  numeric("emitted", "Latest row's age", (one) => one.emit_event_time_lag, duration, "From the latest event time until it had been read"),
];

const Name = ({ id, is_behind: isBehind, exhausted }) => html`${id}${
  isBehind ? html` <span class="badge warn">behind</span>` : exhausted ? html` <span class="badge calm">read to its end</span>` : null}`;
