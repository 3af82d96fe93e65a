/** A figure a row, from its least to its 99th percentile. */

import { html } from "../html.js";
import { Table } from "../parts.js";

const SHARES = [["min", "Minimum"], ["p50", "Median"], ["avg", "Mean"], ["p90", "90 %"], ["p95", "95 %"], ["p99", "99 %"], ["max", "Maximum"]];

export function Distributions({ caption, rows }) {
  const known = rows.filter(([, summary]) => summary);
  if (!known.length) return null;
  const columns = [
    { name: "figure", title: "Figure", cell: ([title]) => title },
    ...SHARES.map(([name, title]) => ({ name, title, kind: "number", cell: ([, summary, show]) => show(summary[name]) })),
  ];
  return html`<${Table} caption=${caption} columns=${columns} rows=${known} keyOf=${([title]) => title} />`;
}
