/** How the job takes checkpoints: what the declaration says, what is in force, and what is usual. */

import { useResource } from "../api.js";
import { count, duration, size } from "../format.js";
import { html } from "../html.js";
import { Figures, Resource, Table } from "../parts.js";

const PERIOD = /(interval|pause|timeout|delay|backoff|period|window|after)(_ms)?$|interval/;

export function Configuration({ path }) {
  const resource = useResource(path("checkpoints", "config"), { everyMs: 30_000 });
  return html`<h2 tabindex="-1">Configuration</h2>
    <${Resource} resource=${resource}>${(config) => html`
      <${Figures} of=${[
        ["Mode", config.mode.replaceAll("_", " ")],
        ["Interval", config.interval == null ? "by hand only" : duration(config.interval)],
        ["Timeout", duration(config.timeout)],
        ["Minimum pause", duration(config.min_pause)],
        ["Concurrent checkpoints", count(config.max_concurrent)],
        ["Tolerable failures", count(config.tolerable_failed_checkpoints)],
        ["Unaligned", config.unaligned_checkpoints ? "yes" : "no"],
        ["Kept when the job", config.externalization?.enabled
          ? (config.externalization.delete_on_cancellation ? "fails, not when it is cancelled" : "fails or is cancelled") : "never"],
        ["State", config.state_backend],
        ["Stored in", html`<code>${config.checkpoint_storage}</code>`, "", "whole"],
      ]} />
      <${Settings} settings=${config.settings ?? []} />
      <${Params} params=${Object.entries(config.params ?? {})} />`}<//>`;
}

function Settings({ settings }) {
  const pending = settings.filter((one) => one.declared !== one.in_force).length;
  return html`<h3>Options</h3>
    <p class="muted">${pending
      ? `${pending} option${pending === 1 ? " is" : "s are"} declared otherwise than in force: they change with the next submission, or a restore that takes the declaration's configuration.`
      : "What is declared is in force."}</p>
    <${Table} caption="Options of the checkpointing" rows=${settings} keyOf=${({ name }) => name}
      rowClass=${(one) => (one.declared !== one.in_force ? "late" : "")} columns=${[
        { name: "name", title: "Option", cell: ({ name }) => html`<code>${name}</code>` },
        { name: "declared", title: "Declared", cell: (one) => said(one.name, one.declared) },
        { name: "in_force", title: "In force", cell: (one) => html`${said(one.name, one.in_force)}${
          one.declared === one.in_force ? null : html` <span class="badge warn">differs</span>`}` },
        { name: "default", title: "Default", cell: (one) => html`<span class=${one.default === one.declared ? "muted" : ""}>${said(one.name, one.default)}</span>` },
      ]} />`;
}

const Params = ({ params }) => params.length ? html`<h3>Parameters of the submission</h3>
  <${Figures} of=${params.map(([name, value]) => [name, html`<code>${String(value)}</code>`])} />` : null;

function said(name, value) {
  if (value === null || value === undefined) return html`<span class="absent">none</span>`;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return value.toLowerCase().replaceAll("_", " ");
  if (/bytes|threshold$/.test(name)) return size(value);
  return PERIOD.test(name) ? duration(value) : count(value);
}
