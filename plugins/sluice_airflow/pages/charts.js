/** Duration, size, rows and lag of checkpoints over time (uPlot, loaded when a chart is first drawn). */

import { useEffect, useRef } from "./vendor/preact-hooks.js";
import { count, duration, moment, size, timeOfDay, timeZone } from "./format.js";
import { html } from "./html.js";

const KINDS = {
  duration: {
    title: "Duration",
    show: duration,
    lines: [["end to end", "end_to_end_duration"], ["finalization", "finalization_duration"]],
  },
  size: { title: "Size", show: size, lines: [["checkpointed", "checkpointed_size"], ["state", "state_size"]] },
  pending: { title: "Records pending in the sources", show: count, lines: [["left behind the barriers", "pending_records"]] },
  pendingBytes: { title: "Bytes pending in the sources", show: size, lines: [["left behind the barriers", "pending_bytes"]] },
  behind: { title: "Watermark behind the trigger", show: duration, lines: [["event-time lag", "watermark_lag"]] },
  records: { title: "Rows", show: count, lines: [["records in", "records"], ["rows out of all stages", "rows_out"]] },
};

/**
 * A chart for each of *names* that was measured; of checkpoints that completed, as only their
 * figures compare. *marks* are what changed meanwhile, a line each at its time.
 */
export function Charts({ checkpoints, names, marks = [] }) {
  const known = checkpoints.filter(({ status }) => status === "COMPLETED").reverse();
  if (known.length < 2) return null;
  const measured = names.filter((name) => KINDS[name].lines.some(([, field]) => known.some((one) => one[field] != null)));
  return html`<div class="charts">${measured.map((name) => html`<${Chart} key=${name} kind=${KINDS[name]} checkpoints=${known} marks=${marks} />`)}</div>`;
}

function Chart({ kind, checkpoints, marks }) {
  const marked = useRef(marks);
  marked.current = marks;
  const place = useRef(null);
  const plot = useRef(null);
  const lines = kind.lines.filter(([, field]) => checkpoints.some((one) => one[field] != null));
  const data = [
    checkpoints.map((one) => one.trigger_timestamp / 1000),
    ...lines.map(([, field]) => checkpoints.map((one) => one[field] ?? null)),
  ];
  const shape = lines.map(([title]) => title).join();

  useEffect(() => drawn(place.current, plot, kind, lines, data, marked), [shape]);
  useEffect(() => plot.current?.setData(data), [checkpoints, marks]);
  return html`<figure><figcaption>${kind.title}</figcaption>
    <div ref=${place} class="chart" role="img" aria-label=${spoken(kind, checkpoints, lines)}></div></figure>`;
}

/** The chart in a sentence; all its figures are in the table of the history. */
function spoken(kind, checkpoints, lines) {
  const said = lines.map(([title, field]) => {
    const values = checkpoints.map((one) => one[field]).filter((value) => value != null);
    return `${title} ${kind.show(Math.min(...values))} to ${kind.show(Math.max(...values))}, last ${kind.show(values.at(-1))}`;
  });
  return `${kind.title} of ${checkpoints.length} checkpoints: ${said.join("; ")}`;
}

function drawn(place, plot, kind, lines, data, marked) {
  let isGone = false;
  const resized = new ResizeObserver(() => plot.current?.setSize(sizeOf(place)));
  const redraw = () => plot.current?.redraw(false);
  import("./vendor/uplot.js").then(({ default: Plot }) => {
    if (isGone) return;
    plot.current = new Plot(options(Plot, place, kind, lines, marked), data, place);
    resized.observe(place);
  });
  place.getRootNode().host?.addEventListener("theme", redraw);
  return () => {
    isGone = true;
    resized.disconnect();
    place.getRootNode().host?.removeEventListener("theme", redraw);
    plot.current?.destroy();
    plot.current = null;
  };
}

/** The time of day, and at midnight the date. */
function tick(seconds) {
  const time = timeOfDay(seconds * 1000);
  return time === "00:00" ? moment(seconds * 1000).slice(5, 10) : time;
}

const sizeOf = (place) => ({ width: Math.max(200, place.clientWidth), height: 180 });

const COLOURS = { failure: "--bad", restore: "--brand", deploy: "--warn", rescale: "--warn", savepoint: "--good", malformed: "--warn", act: "--muted" };

/** A line for each change within the chart's time, of its kind's colour. */
function drawMarks(plot, place, marks) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.setLineDash([4, 3]);
  for (const { kind, timestamp } of marks) {
    const x = Math.round(plot.valToPos(timestamp / 1000, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = getComputedStyle(place).getPropertyValue(COLOURS[kind]).trim();
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function options(Plot, place, kind, lines, marked) {
  const colour = (name) => () => getComputedStyle(place).getPropertyValue(name).trim();
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const series = lines.map(([title], index) => ({
    label: title,
    stroke: colour(`--line-${index + 1}`),
    width: 2,
    points: { show: false },
    value: (_, value) => kind.show(value),
  }));
  return {
    ...sizeOf(place),
    tzDate: (seconds) => Plot.tzDate(new Date(seconds * 1000), timeZone()),
    axes: [{ ...axis, values: (_, seconds) => seconds.map(tick) }, { ...axis, size: 70, values: (_, values) => values.map(kind.show) }],
    scales: { y: { range: (_, least, most) => [0, Math.max(1, most * 1.1)] } },
    series: [{ value: (_, seconds) => moment(seconds === null ? null : seconds * 1000) }, ...series],
    cursor: { points: { size: 6 } },
    hooks: { drawAxes: [(plot) => drawMarks(plot, place, marked.current ?? [])] },
  };
}
