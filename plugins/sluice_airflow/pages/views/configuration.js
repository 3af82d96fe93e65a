/** How the job takes checkpoints: what the declaration says, what is in force, and what is usual. */

import { refusal } from "../actions.js";
import { useResource } from "../api.js";
import { count, duration } from "../format.js";
import { html } from "../html.js";
import { Figures, Resource, Table } from "../parts.js";
import { Changed, InForce, PausedNote, Reset, valueOf } from "../timing.js";

export function Configuration({ path, pipeline }) {
  const resource = useResource(path("checkpoints", "config"), { everyMs: 5_000 });
  return html`<h2 tabindex="-1">Configuration</h2>
    <${Resource} resource=${resource}>${(config) => html`
      <${PausedNote} config=${config} />
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
      <${Settings} path=${path} pipeline=${pipeline} config=${config} onChanged=${resource.reload} />
      <${Params} params=${Object.entries(config.params ?? {})} />`}<//>`;
}

function Settings({ path, pipeline, config, onChanged }) {
  const mayChange = !refusal(pipeline, "config");
  const settings = config.settings.map((one) => ({ ...one, can_change: one.can_change && mayChange }));
  const changed = settings.filter((one) => one.changed);
  const cell = (one) => html`<${InForce} path=${path} setting=${one} shown=${shown(one, one.in_force)} onChanged=${onChanged} />`;
  return html`<h3>Options</h3>
    <p class="muted">${told(settings)}${" "}<${Changed} config=${config} />${" "}
      ${mayChange ? html`<${Reset} path=${path} changed=${changed} onChanged=${onChanged} />` : null}</p>
    <${Table} caption="Options of the checkpointing" rows=${settings} keyOf=${({ name }) => name}
      rowClass=${(one) => (one.declared !== one.in_force ? "late" : "")} columns=${[
        { name: "name", title: "Option", cell: ({ name, says }) => html`<code title=${says}>${name}</code>` },
        { name: "declared", title: "Declared", cell: (one) => shown(one, one.declared) },
        { name: "in_force", title: "In force", cell },
        { name: "default", title: "Default", cell: (one) => html`<span class=${one.default === one.declared ? "muted" : ""}>${shown(one, one.default)}</span>` },
      ]} />`;
}

/** Why what is in force is not what is declared. */
function told(settings) {
  const other = settings.filter((one) => one.declared !== one.in_force);
  const awaiting = other.filter((one) => one.awaits_restore && !one.changed);
  const byPerson = other.filter((one) => one.changed).length;
  const given = other.length - awaiting.length - byPerson;
  if (!other.length) return "What is declared is in force.";
  return [
    ...awaiting.map((one) => `${one.name}: declared ${wordOf(one.declared)}, in force ${wordOf(one.in_force)} until a restore.`),
    given ? `${given} ${given === 1 ? "was" : "were"} given with the submission, and ${given === 1 ? "stays" : "stay"} through restores.` : "",
    byPerson ? `${byPerson} ${byPerson === 1 ? "was" : "were"} changed by a person while the job ran.` : "",
  ].join(" ");
}

const wordOf = (value) => (value == null ? "none" : String(value));

const Params = ({ params }) => params.length ? html`<h3>Parameters of the submission</h3>
  <${Figures} of=${params.map(([name, value]) => [name, html`<code>${String(value)}</code>`])} />` : null;

function shown(setting, value) {
  if (value === null || value === undefined) return html`<span class="absent">none</span>`;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return value.toLowerCase().replaceAll("_", " ");
  return valueOf(setting, value);
}
